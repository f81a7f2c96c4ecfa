"""Reading rows: every file format gives the same rows, and errors say what is wrong."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from helpers.clusters import clustered
from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical.cli import rows as module
from powerspherical.cli.columns import Wanted
from powerspherical.cli.rows import read
from powerspherical.engines import block_limit
from powerspherical.mixture import PowerSphericalMixture

X = clustered(40, dim=3)[0]
X /= np.linalg.norm(X, axis=1, keepdims=True)


def columns(x: np.ndarray) -> pa.Table:
    return pa.table({"text": ["a"] * len(x)} | {f"x{i}": column for i, column in enumerate(x.T)})


def lists(x: np.ndarray, size: int = -1) -> pa.Table:
    kind = pa.list_(pa.from_numpy_dtype(x.dtype), size)
    return pa.table({"text": ["a"] * len(x), "embedding": pa.array(list(x), kind)})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the same rows in every format, and with parts of them in two folders."""
    path = tmp_path_factory.mktemp("files")
    np.save(path / "a.npy", X)
    np.save(path / "fortran.npy", np.asfortranarray(X))
    np.save(path / "swapped.npy", X.astype(">f8"))
    np.savez(path / "a.npz", rows=X, labels=np.arange(len(X)), texts=np.array([["a"], [None]], dtype=object))
    np.savez_compressed(path / "fortran.npz", rows=np.asfortranarray(X))

    def text(name: str, x=X, delimiter=",", fmt="%.17g", header="", comments="") -> None:
        np.savetxt(path / name, x, fmt, delimiter, header=header, comments=comments)

    indexed = np.column_stack([np.arange(len(X)), X])
    text("a.csv")
    text("header.csv", header="x,y,z")
    text("COMMENT.CSV", header="made by a test\nx,y,z", comments="# ")
    text("a.tsv", delimiter="\t")
    text("quotes.csv", delimiter=";", fmt='"%.17g"', header='"x";"y;z";"w"')
    text("pandas.csv", indexed, header=",0,1,2")
    text("named.csv", indexed, header=",x,y,z")
    for name in ("a.npy", "fortran.npy", "a.csv"):
        (path / f"{name}.gz").write_bytes(gzip.compress((path / name).read_bytes()))
    pq.write_table(columns(X), path / "columns.parquet", row_group_size=15)
    pq.write_table(lists(X), path / "lists.parquet", row_group_size=15)
    pq.write_table(lists(X, 3), path / "fixed.parquet")
    for name in ("parts", "texts"):
        (path / name).mkdir()
    for part, (start, stop) in enumerate([(0, 0), (0, 10), (10, 40)]):
        pq.write_table(lists(X[start:stop]), path / "parts" / f"{part}.parquet")
        if stop:
            text(f"texts/{part}.csv", X[start:stop], header="x,y,z")
    (path / "texts" / ".hidden.csv").write_text("no table")
    (path / "texts" / "README").write_text("no table")
    return path


ARRAYS = "a.npy fortran.npy swapped.npy a.npy.gz fortran.npy.gz a.npz fortran.npz"
TEXTS = "a.csv header.csv COMMENT.CSV a.tsv quotes.csv pandas.csv named.csv a.csv.gz texts"
PARQUET = "columns.parquet lists.parquet fixed.parquet parts"


@pytest.mark.parametrize("in_memory", [2**31, 100], ids=["memory", "scratch file"])
@pytest.mark.parametrize("name", f"{ARRAYS} {TEXTS} {PARQUET}".split())
def test_every_form_holds_the_same_rows(name: str, in_memory: int, files, monkeypatch) -> None:
    """Bit for bit, in the same order, also in blocks of seven rows."""
    monkeypatch.setattr(module, "IN_MEMORY", in_memory)
    with block_limit(3 * 7):
        data = read(files / name, Wanted())
        blocks = dict(data.blocks())
    np.testing.assert_array_equal(data.rows, X)
    assert (data.rows.dtype, data.count, data.dim) == (np.float64, 40, 3)
    assert list(blocks) == [0, 7, 14, 21, 28, 35]
    np.testing.assert_array_equal(np.concatenate(list(blocks.values())), X)


@pytest.mark.parametrize(
    "kind", ["float16", "float32", ">f4", "int8", "uint16", "int64", "float64", "longdouble"]
)
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet"])
def test_numbers_of_any_kind(kind: str, name: str, tmp_path) -> None:
    """They are computed in float32 if it has all of them, else in float64."""
    x, path = np.round(X * 100).astype(kind), tmp_path / name
    if name == "a.npy":
        np.save(path, x)
    elif name == "a.npz":
        np.savez_compressed(path, x)
    elif kind in (">f4", "longdouble"):
        pytest.skip("Parquet has no such numbers")
    else:
        pq.write_table(lists(x), path)
    rows = read(path, Wanted()).rows
    assert rows.dtype == ("float32" if kind in ("float16", "float32", ">f4", "int8", "uint16") else "float64")
    np.testing.assert_array_equal(rows, x)


def test_a_key_chooses(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", a=X, b=-X)
    pq.write_table(pa.table({"a": list(X), "b": list(-X)}), tmp_path / "a.parquet")
    for name in ("a.npz", "a.parquet"):
        np.testing.assert_array_equal(read(tmp_path / name, Wanted(key="b")).rows, -X)


def npy(array, **options) -> bytes:
    """The content of a .npy file."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(**arrays) -> bytes:
    """The content of a .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def parquet(row_group_size: int | None = None, **values) -> bytes:
    """The content of a Parquet file."""
    file = io.BytesIO()
    pq.write_table(pa.table(values), file, row_group_size)
    return file.getvalue()


PAIR = [1.0, 2.0]
FLAT, TWO, WORDS = npy(X[:, 0]), parquet(a=[PAIR], b=[PAIR]), parquet(text=["a"])
ONE = parquet(e=[PAIR])
EMPTY = parquet(e=pa.array([], pa.list_(pa.float64())))
HALF_FIXED = parquet(e=pa.array([PAIR, None], pa.list_(pa.float32(), 2)))
RAGGED = parquet(3, e=[PAIR, PAIR, [3.0, 4.0], [1.0, 2.0, 3.0], [4.0]])  # ten numbers in five lists
#: The names of bad files, their content, and what is said of them. Options may follow the name.
BAD_FILES = {
    "missing.npy": (None, "cannot read missing.npy: No such file"),
    "missing.csv": (None, "cannot read missing.csv: No such file"),
    "missing.npz": (None, "cannot read missing.npz: No such file"),
    "missing.parquet": (None, "cannot read missing.parquet: No such file"),
    "a.txt": (b"1,2", "must end in .npy, .npz, .csv, .tsv, .parquet, .npy.gz, .csv.gz, .tsv.gz, or it must"),
    "flat.npy": (FLAT, "its shape is (40,)"),
    "flat.npy --key c": (FLAT, "--key applies only to .npz and .parquet files, not to flat.npy"),
    "empty.npy": (npy(X[:0]), "its shape is (0, 3)"),
    "thin.npy": (npy(X[:, :1]), "at least two numbers, but its shape is (40, 1)"),
    "words.npy": (npy([["a", "b"]]), "it holds <U1, not real numbers"),
    "objects.npy": (npy(np.array([{}, {}])), "cannot read objects.npy"),
    "broken.npy": (b"", "cannot read broken.npy"),
    "archive.npy": (npz(a=X), "is an .npz archive"),
    "archive.npy.gz": (gzip.compress(npz(a=X)), "is an .npz archive"),
    "packed.npy.gz": (gzip.compress(npy(X))[:-20], "ended before"),
    "short.npy.gz": (gzip.compress(npy(X)[:-20]), "ended before"),
    "array.npz": (npy(X), "not a zip file"),
    "two.npz": (npz(a=X, b=X), "has 2 (a, b): choose with --key"),
    "two.npz --key c": (npz(a=X, b=X), "it has no array 'c', only a, b"),
    "objects.npz --key a": (npz(a=np.array([[{}, {}]])), "it holds object, not real numbers"),
    "none.npz": (npz(a=X[0]), "has 0 (none)"),
    "packed.npz.gz": (b"", "unpack it with gunzip first"),
    "packed.csv.gz": (b"1,2\n", "Not a gzipped file"),
    "ragged.csv": (b"1,2\n3,4,5\n", "Row #2: Expected 2 columns, got 3"),
    "empty.csv": (b"", "no rows"),
    "header.csv": (b"x,y\n", "no rows"),
    "spaces.csv": (b"0.1 0.2\n0.3 0.4\n", "numbers need a decimal point, and commas, semicolons or tabs"),
    "latin.csv": (b"1,2\n\xe9,3\n", "save it as UTF-8"),
    "twins.csv": (b"x,x,y\n1.5,2.5,3.5\n", "2 of its columns are called 'x'"),
    "broken.parquet": (b"no parquet", "cannot read broken.parquet"),
    "empty.parquet": (EMPTY, "no rows"),
    "text.parquet": (WORDS, "its shape is (0, 0)"),
    "text.parquet --key text": (WORDS, "no column 'text' of lists of numbers; those with lists are: none"),
    "two.parquet": (TWO, "2 of its columns hold lists of numbers (a, b): choose with --key"),
    "two.parquet --key c": (TWO, "no column 'c' of lists of numbers; those with lists are: a, b"),
    "two.parquet --key a --columns b": (TWO, "--key already names the column"),
    "ragged.parquet": (RAGGED, "row 3 has a list of length 3, but the first row has 2 numbers"),
    "null.parquet": (parquet(e=[PAIR, None]), "row 1 has no list"),
    "fixed.parquet": (HALF_FIXED, "row 1 has no list"),
    "late.parquet": (parquet(e=[None, PAIR]), "the first row of its column 'e' holds no numbers"),
    "nothing": ({}, "the folder has no .csv or .parquet files"),
    "both": ({"0.csv": b"", "1.parquet": b""}, "the folder has both .csv and .parquet files"),
    "order": ({"0.csv": b"x,y\n0.1,0.2", "1.csv": b"y,x\n0.1,0.2"}, "1.csv: it has no column 'x'"),
    "others": ({"0.parquet": ONE, "1.parquet": parquet(f=[PAIR])}, "1.parquet: it has no column 'e'"),
    "kinds": ({"0.parquet": ONE, "1.parquet": parquet(e=["a"])}, "1.parquet: its column 'e' holds string"),
}


@pytest.mark.parametrize(("content", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(content, says: str, request, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = request.node.callspec.id.split()
    if isinstance(content, dict):
        (tmp_path / name).mkdir()
    for file, part in content.items() if isinstance(content, dict) else [(".", content)]:
        if part is not None:
            (tmp_path / name / file).write_bytes(part)
    assert_wrong_use(["fit", name, *options], says, capsys)


CELLS = {"text": "x", "comma": "1,5", "underscore": "1_0", "arabic": "\u0663\u0664", "hexadecimal": "0x10"}
CELLS |= {"none": "None", "no-break space": "\u00a00.5", "at the end": "0.5\u00a0"}


@pytest.mark.parametrize(
    ("cell", "row"),
    [*((cell, 3) for cell in CELLS.values()), ("x", 0), ("x", 70_000)],
    ids=[*CELLS, "first row", "later block"],
)
def test_a_cell_that_is_not_a_number_is_named(cell: str, row: int, tmp_path, monkeypatch, capsys) -> None:
    """Also one that Python would read as a number, and one beyond the first block that Arrow parses."""
    monkeypatch.chdir(tmp_path)
    lines = ["x;y;z"] + ["0.25;0.125;0.0625"] * max(row + 3, 8)
    lines[row + 1] = f"0.25;{cell};0.0625"
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    where = f"its column 'y' has {cell!r} in row {row} (counted from 0)"
    assert_wrong_use(["fit", "a.csv"], f"cannot read a.csv: {where}, which is not a number", capsys)


@pytest.mark.slow
def test_an_error_in_a_text_file_ends_the_command_cleanly(tmp_path) -> None:
    """A thread of Arrow that reads ahead uses nothing of Python. It aborted four of five processes at their end."""
    text = "x,y\n0.1,0.2,0.3\n" + "0.123456,0.234567\n" * 6_000_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
    code = "from powerspherical.cli import main; main(['fit', 'a.csv.gz'])"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "cannot read a.csv.gz: CSV parse error: Row #2: Expected 2 columns, got 3" in done.stderr


def peak(command: list[str]) -> int:
    """The largest number of bytes in Python objects and NumPy arrays while a command runs, beyond those before."""
    tracemalloc.start()
    try:
        assert cli.run(command) == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """The path of a model file."""
    fitted = PowerSphericalMixture(3, random_state=0).fit(X)
    return str(fitted.save(tmp_path_factory.mktemp("model") / "model.safetensors"))


@pytest.mark.parametrize(
    ("form", "kind"),
    [("a.npy", "float16"), ("a.npy", "float32"), ("a.npy.gz", "float16"), ("a.npz", "int32")],
)
def test_large_arrays_are_not_held_in_memory(
    form: str, kind: str, model, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "IN_MEMORY", 2**16)
    x = (np.tile(X, (9000, 1)) * 100).astype(kind)
    content = npz(x=x) if form == "a.npz" else npy(x)
    (tmp_path / form).write_bytes(gzip.compress(content, 1) if form.endswith(".gz") else content)
    command = ["predict", model, form, "--out", "labels.npy"]
    with block_limit(2**12):
        cli.run(command)  # imports what is needed
        assert peak([*command, "--force"]) < x.nbytes / 2


@pytest.mark.slow
def test_a_large_text_file_needs_little_more_than_its_numbers(model, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.tile(X, (8000, 1))
    for name, rows in (("few.csv", X), ("a.csv", x)):
        pyarrow.csv.write_csv(pa.table(dict(zip("xyz", rows.T, strict=True))), name)
    command = ["predict", model, "a.csv", "--out", "labels.npy", "--strict"]
    assert cli.run(["predict", model, "few.csv"]) == 0  # imports what is needed
    with block_limit(2**14):
        assert peak(command) < 1.3 * 4 * x.size
    labels = np.load("labels.npy").reshape(-1, len(X))
    np.testing.assert_array_equal(labels, np.tile(labels[0], (8000, 1)))


MEASURED = """
import re, sys
from powerspherical.cli import main
try:
    main(["cluster", sys.argv[1], "-k", "3", "--max-iter", "2", "--out", sys.argv[1] + ".out"])
finally:
    print(re.search("VmHWM: *[^0-9]*([0-9]+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_clusters_of_a_wide_text_file_need_little_more_than_its_numbers(tmp_path) -> None:
    """The largest resident memory of the command, above that for a small file. `getrusage` would count pytest's own."""
    peaks = []
    for name, count, dim in (("few.csv", 100, 8), ("wide.csv", 40_000, 768)):
        rows = np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32)
        pyarrow.csv.write_csv(pa.table({f"x{i}": column for i, column in enumerate(rows.T)}), tmp_path / name)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(tmp_path / name)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(1024 * int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 1.3 * rows.nbytes


def test_parquet_is_decoded_once(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = clustered(3000, dim=4)[0]
    pq.write_table(lists(x), "a.parquet", row_group_size=500)
    decoded, iter_batches = [], pq.ParquetFile.iter_batches

    def counted(*arguments, **options):
        for batch in iter_batches(*arguments, **options):
            decoded.append(len(batch))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    for name in ("read", "read_row_group", "read_row_groups"):  # nothing decodes in another way
        monkeypatch.delattr(pq.ParquetFile, name)
    assert cli.run(["cluster", "a.parquet", "-k", "3", "--out", "out"]) == 0
    assert 3000 <= sum(decoded) <= 4000  # the first thousand also decide about the columns


def test_other_rows_are_announced_or_refused(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.eye(3)[[0, 1, 2, 0, 1]]
    np.save("unit.npy", x.astype(np.float16) * (1 + 2e-4))
    x[[1, 4]] *= [[2.0], [0.5]]
    np.save("a.npy", x)
    with block_limit(3 * 2):
        assert cli.run(["fit", "unit.npy", "--strict"]) == 0
        assert capsys.readouterr().err == ""
        assert cli.run(["fit", "a.npy"]) == 0
        assert capsys.readouterr().err == (
            "powerspherical: 2 of 5 rows are not unit vectors (lengths from 0.5 to 2); normalised\n"
        )
        says = "2 of 5 rows are not unit vectors, the first is row 1 of a.npy: normalise them"
        assert_wrong_use(["fit", "a.npy", "--strict"], says, capsys)


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (np.nan, float, "has NaN or infinite values"),
        (np.inf, float, "has NaN or infinite values"),
        (1e308, float, "the norm of row 7 of a.npy overflows float64"),
        (0.0, float, "has only zeros"),
        (1e-42, np.float32, "underflows float32"),  # subnormal: too few digits for a direction
    ],
)
def test_a_row_without_a_direction_is_named(value, dtype, says, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = X.astype(dtype)
    x[7] = 1.5 * value
    np.save("a.npy", x)
    with block_limit(3 * 2):
        assert cli.run(["fit", "a.npy"]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "row 7 of a.npy" in shown
