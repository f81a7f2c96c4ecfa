"""Reading rows: every file format gives the same rows, and errors say what is wrong."""

from __future__ import annotations

import gzip
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
    """A folder with the same rows in every format, and a model."""
    path = tmp_path_factory.mktemp("files")
    np.save(path / "a.npy", X)
    np.save(path / "fortran.npy", np.asfortranarray(X))
    np.save(path / "swapped.npy", X.astype(">f8"))
    np.savez(path / "a.npz", rows=X, labels=np.arange(len(X)), texts=np.array([["a"], [None]], dtype=object))
    np.savez_compressed(path / "fortran.npz", rows=np.asfortranarray(X))
    np.savetxt(path / "a.csv", X, delimiter=",", fmt="%.17g")
    np.savetxt(path / "header.csv", X, delimiter=",", fmt="%.17g", header="x,y,z", comments="")
    np.savetxt(path / "COMMENT.CSV", X, delimiter=",", fmt="%.17g", header="made by a test\nx,y,z")
    np.savetxt(path / "a.tsv", X, delimiter="\t", fmt="%.17g")
    np.savetxt(path / "quotes.csv", X, delimiter=";", fmt='"%.17g"', header='"x";"y;z";"w"', comments="")
    indexed = np.column_stack([np.arange(len(X)), X])
    for name, header in (("pandas", ",0,1,2"), ("named", ",x,y,z")):
        np.savetxt(path / f"{name}.csv", indexed, delimiter=",", fmt="%.17g", header=header, comments="")
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
            np.savetxt(
                path / "texts" / f"{part}.csv", X[start:stop], delimiter=",", header="x,y,z", comments=""
            )
    (path / "texts" / ".hidden.csv").write_text("no table")
    (path / "texts" / "README").write_text("no table")
    PowerSphericalMixture(3, random_state=0).fit(X).save(path / "model.safetensors")
    return path


FORMATS = [
    *("a.npy", "fortran.npy", "swapped.npy", "a.npy.gz", "fortran.npy.gz", "a.npz", "fortran.npz"),
    *(
        "a.csv",
        "header.csv",
        "COMMENT.CSV",
        "a.tsv",
        "quotes.csv",
        "pandas.csv",
        "named.csv",
        "a.csv.gz",
        "texts",
    ),
    *("columns.parquet", "lists.parquet", "fixed.parquet", "parts"),
]


@pytest.mark.parametrize("where", ["memory", "scratch file"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_form_holds_the_same_rows(name: str, where: str, files, monkeypatch, capsys) -> None:
    """The same fit and the same labels in the same order, also in blocks of seven rows."""
    monkeypatch.chdir(files)
    if where == "scratch file":
        monkeypatch.setattr(module, "IN_MEMORY", 100)
    expected = PowerSphericalMixture(3, random_state=0).fit(X).predict(X)
    with block_limit(3 * 7):
        assert cli.run(["predict", "model.safetensors", name, "--strict"]) == 0
        assert capsys.readouterr().out.split() == [str(label) for label in expected]
        assert (
            cli.run(["fit", name, "--model", "power-spherical", "--out", "fit.safetensors", "--force"]) == 0
        )
    twin = PowerSphericalMixture(tol=1e-9, max_iter=1000, random_state=0).fit(X)
    found = PowerSphericalMixture.load("fit.safetensors")
    np.testing.assert_allclose(found.mean_directions_, twin.mean_directions_, rtol=1e-13)
    np.testing.assert_allclose(found.concentrations_, twin.concentrations_, rtol=1e-12)


@pytest.mark.parametrize(
    "kind", ["float16", "float32", ">f4", "int8", "uint16", "int64", "float64", "longdouble"]
)
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.parquet"])
def test_numbers_of_any_kind(kind: str, name: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.round(X * 100).astype(kind)
    if name == "a.npy":
        np.save(name, x)
    elif name == "a.npz":
        np.savez_compressed(name, x)
    elif kind in (">f4", "longdouble"):
        pytest.skip("Parquet has no such numbers")
    else:
        pq.write_table(lists(x), name)
    np.save("same.npy", x.astype(np.float64))
    shown = []
    for file in (name, "same.npy"):
        assert cli.run(["fit", file, "--model", "von-mises-fisher"]) == 0
        shown.append(capsys.readouterr().out.replace(file, "").replace("  ", " "))
    assert shown[0] == shown[1]


def test_a_key_chooses(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", a=X, b=-X)
    pq.write_table(pa.table({"a": list(X), "b": list(-X)}), "a.parquet")
    np.save("b.npy", -X)
    shown = []
    for arguments in (["b.npy"], ["a.npz", "--key", "b"], ["a.parquet", "--key", "b"]):
        assert cli.run(["fit", *arguments]) == 0
        shown.append(capsys.readouterr().out.partition("\n")[2])
    assert shown[1:] == shown[:1] * 2


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    np.save(folder / "long.npy", X)
    np.save(folder / "flat.npy", X[:, 0])
    np.save(folder / "empty.npy", X[:0])
    np.save(folder / "thin.npy", X[:, :1])
    np.save(folder / "words.npy", np.array([["a", "b"]]))
    np.save(folder / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.savez(folder / "two.npz", a=X, b=X)
    np.savez(folder / "none.npz", a=X[0])
    (folder / "archive.npy").write_bytes((folder / "two.npz").read_bytes())
    (folder / "array.npz").write_bytes((folder / "flat.npy").read_bytes())
    (folder / "broken.npy").write_text("")
    (folder / "broken.parquet").write_text("no parquet")
    (folder / "ragged.csv").write_text("1,2\n3,4,5\n")
    (folder / "header.csv").write_text("x,y\n")
    (folder / "spaces.csv").write_text("0.1 0.2\n0.3 0.4\n")
    (folder / "twins.csv").write_text("x,x,y\n1.5,2.5,3.5\n")
    (folder / "packed.csv.gz").write_text("1,2\n")
    (folder / "packed.npy.gz").write_bytes(gzip.compress((folder / "long.npy").read_bytes())[:-20])
    (folder / "archive.npy.gz").write_bytes(gzip.compress((folder / "two.npz").read_bytes()))
    (folder / "packed.npz.gz").write_bytes(b"")
    (folder / "empty.csv").write_text("")
    (folder / "latin.csv").write_bytes(b"1,2\n\xe9,3\n")
    (folder / "a.txt").write_text("1,2")
    (folder / "nothing").mkdir()
    table = pa.table(
        {"e": [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [1.0, 2.0, 3.0], [4.0]]}
    )  # ten numbers in total
    pq.write_table(table, folder / "ragged.parquet", row_group_size=3)
    fixed = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"e": fixed}), folder / "fixed.parquet")
    pq.write_table(pa.table({"e": [None, [1.0, 2.0]]}), folder / "nothing_first.parquet")
    pq.write_table(pa.table({"e": [[1.0, 2.0], None]}), folder / "null.parquet")
    pq.write_table(table[:0], folder / "empty.parquet")
    pq.write_table(pa.table({"text": ["a"]}), folder / "text.parquet")
    pq.write_table(pa.table({"a": [[1.0, 2.0]], "b": [[1.0, 2.0]]}), folder / "two.parquet")
    np.savez(folder / "objects.npz", a=np.array([[{}, {}]]))
    (folder / "short.npy.gz").write_bytes(gzip.compress((folder / "long.npy").read_bytes()[:-20]))
    for name, second in (("others", {"f": [[1.0, 2.0]]}), ("kinds", {"e": ["a"]})):
        (folder / name).mkdir()
        pq.write_table(table[:1], folder / name / "0.parquet")
        pq.write_table(pa.table(second), folder / name / "1.parquet")
    for name, suffix in (("order", "csv"), ("both", "parquet")):
        (folder / name).mkdir()
        (folder / name / "0.csv").write_text("x,y\n0.1,0.2\n")
        (folder / name / f"1.{suffix}").write_text("y,x\n0.1,0.2\n")
    return folder


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.npy", "cannot read missing.npy: No such file"),
        ("missing.csv", "cannot read missing.csv: No such file"),
        ("missing.npz", "cannot read missing.npz: No such file"),
        ("missing.parquet", "cannot read missing.parquet: No such file"),
        (
            "a.txt",
            "must end in .npy, .npz, .csv, .tsv, .parquet, .npy.gz, .csv.gz, .tsv.gz, or it must be a folder",
        ),
        ("flat.npy", "its shape is (40,)"),
        ("empty.npy", "its shape is (0, 3)"),
        ("thin.npy", "at least two numbers, but its shape is (40, 1)"),
        ("words.npy", "it holds <U1, not real numbers"),
        ("objects.npy", "cannot read objects.npy"),
        ("broken.npy", "cannot read broken.npy"),
        ("archive.npy", "is an .npz archive"),
        ("array.npz", "not a zip file"),
        ("two.npz", "has 2 (a, b): choose with --key"),
        ("packed.csv.gz", "Not a gzipped file"),
        ("packed.npy.gz", "ended before"),
        ("short.npy.gz", "ended before"),
        ("archive.npy.gz", "is an .npz archive"),
        ("packed.npz.gz", "unpack it with gunzip first"),
        ("two.npz --key c", "it has no array 'c', only a, b"),
        ("objects.npz --key a", "it holds object, not real numbers"),
        ("none.npz", "has 0 (none)"),
        ("flat.npy --key c", "--key applies only to .npz and .parquet files, not to flat.npy"),
        ("ragged.csv", "Row #2: Expected 2 columns, got 3"),
        ("empty.csv", "no rows"),
        ("header.csv", "no rows"),
        ("spaces.csv", "numbers need a decimal point, and commas, semicolons or tabs"),
        ("latin.csv", "save it as UTF-8"),
        ("twins.csv", "2 of its columns are called 'x'"),
        ("nothing", "the folder has no .csv or .parquet files"),
        ("both", "the folder has both .csv and .parquet files"),
        ("broken.parquet", "cannot read broken.parquet"),
        ("empty.parquet", "no rows"),
        ("text.parquet", "its shape is (0, 0)"),
        ("text.parquet --key text", "no column 'text' of lists of numbers; those with lists are: none"),
        ("two.parquet", "2 of its columns hold lists of numbers (a, b): choose with --key"),
        ("two.parquet --key c", "no column 'c' of lists of numbers; those with lists are: a, b"),
        ("two.parquet --key a --columns b", "--key already names the column"),
        ("ragged.parquet", "row 3 has a list of length 3, but the first row has 2 numbers"),
        ("null.parquet", "row 1 has no list"),
        ("fixed.parquet", "row 1 has no list"),
        ("nothing_first.parquet", "the first row of its column 'e' holds no numbers"),
        ("others", "1.parquet: it has no column 'e'"),
        ("kinds", "1.parquet: its column 'e' holds string"),
        ("order", "1.csv: it has no column 'x'"),
    ],
)
def test_bad_files(name: str, says: str, bad_files, monkeypatch, capsys) -> None:
    monkeypatch.chdir(bad_files)
    assert_wrong_use(["fit", *name.split()], says, capsys)


@pytest.mark.parametrize(
    "cell",
    ["x", "1,5", "1_0", "\u0663\u0664", "\u00a00.5", "0x10", "None", "0.5\u00a0"],
    ids=["text", "comma", "underscore", "arabic", "no-break space", "hexadecimal", "none", "at the end"],
)
@pytest.mark.parametrize("row", [0, 3, 70_000])
def test_a_cell_that_is_not_a_number_is_named(cell: str, row: int, tmp_path, monkeypatch, capsys) -> None:
    """Also one that Python would read as a number, and one beyond the first block that Arrow parses."""
    monkeypatch.chdir(tmp_path)
    lines = ["x;y;z"] + ["0.25;0.125;0.0625"] * max(row + 3, 8)
    lines[row + 1] = f"0.25;{cell};0.0625"
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    says = (
        f"cannot read a.csv: its column 'y' has {cell!r} in row {row} (counted from 0), which is not a number"
    )
    assert_wrong_use(["fit", "a.csv"], says, capsys)


@pytest.mark.slow
def test_an_error_in_a_text_file_ends_the_command_cleanly(tmp_path) -> None:
    """A thread of Arrow that reads ahead uses nothing of Python. It aborted four of five processes at their end."""
    text = "x,y\n0.1,0.2,0.3\n" + "0.123456,0.234567\n" * 6_000_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
    code = "from powerspherical.cli import main; main(['fit', 'a.csv.gz'])"
    for _ in range(4):
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


@pytest.mark.parametrize("kind", ["float16", "float32", "int32"])
@pytest.mark.parametrize("form", ["a.npy", "a.npy.gz", "a.npz"])
def test_large_arrays_are_not_held_in_memory(
    kind: str, form: str, files, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "IN_MEMORY", 2**16)
    x = (np.tile(X, (3000, 1)) * 100).astype(kind)
    np.save("a.npy", x)
    np.savez("a.npz", x)
    (tmp_path / "a.npy.gz").write_bytes(gzip.compress((tmp_path / "a.npy").read_bytes(), 1))
    command = ["predict", str(files / "model.safetensors"), form, "--out", "labels.csv"]
    with block_limit(2**12):
        cli.run(command)  # imports what is needed
        assert peak([*command, "--force"]) < x.nbytes / 2


@pytest.mark.slow
def test_a_large_text_file_needs_little_more_than_its_numbers(files, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.tile(X, (8000, 1))
    pyarrow.csv.write_csv(pa.table({name: x[:, index] for index, name in enumerate("xyz")}), "a.csv")
    command = ["predict", str(files / "model.safetensors"), "a.csv", "--out", "labels.npy", "--strict"]
    assert cli.run([*command[:2], str(files / "a.csv")]) == 0  # imports what is needed
    with block_limit(2**14):
        assert peak(command) < 1.3 * 4 * x.size
    labels = np.load("labels.npy").reshape(-1, len(X))
    np.testing.assert_array_equal(labels, np.tile(labels[0], (8000, 1)))


def test_parquet_is_decoded_once(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    x = clustered(3000, dim=4)[0]
    pq.write_table(lists(x), "a.parquet", row_group_size=500)
    rows = []
    original = pq.ParquetFile.iter_batches, pq.ParquetFile.read_row_group

    def batches(self, *arguments, **options):
        for batch in original[0](self, *arguments, **options):
            rows.append(len(batch))
            yield batch

    def group(self, *arguments, **options):
        table = original[1](self, *arguments, **options)
        rows.append(len(table))
        return table

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", batches)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", group)
    assert cli.run(["cluster", "a.parquet", "-k", "3", "--out", "out"]) == 0
    assert 3000 <= sum(rows) <= 4000  # the first thousand also decide about the columns


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
