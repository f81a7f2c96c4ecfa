"""Reading rows: every file format gives the same rows, and errors say what is wrong."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from helpers.clusters import clustered
from powerspherical.cli import rows as module
from powerspherical.cli.common import Failure
from powerspherical.cli.rows import check, read

X = clustered(40, dim=3)[0]


def whole(data) -> np.ndarray:
    return np.concatenate([block for _, block in data.blocks()])


def columns(x: np.ndarray) -> pa.Table:
    return pa.table({"text": ["a"] * len(x)} | {f"x{i}": column for i, column in enumerate(x.T)})


def lists(x: np.ndarray, size: int = -1) -> pa.Table:
    kind = pa.list_(pa.from_numpy_dtype(x.dtype), size)
    return pa.table({"text": ["a"] * len(x), "embedding": pa.array(list(x), kind)})


@pytest.fixture
def files(tmp_path):
    """A folder with the same rows in every format."""
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "a.npz", rows=X, labels=np.arange(len(X)))
    np.savetxt(tmp_path / "a.csv", X, delimiter=",", fmt="%.17g")
    np.savetxt(tmp_path / "header.csv", X, delimiter=",", fmt="%.17g", header="x,y,z", comments="")
    np.savetxt(tmp_path / "COMMENT.CSV", X, delimiter=",", fmt="%.17g", header="made by a test\nx,y,z")
    np.savetxt(tmp_path / "a.tsv", X, delimiter="\t", fmt="%.17g")
    np.savetxt(tmp_path / "quotes.csv", X, delimiter=";", fmt='"%.17g"', header='"x";"y;z";"w"', comments="")
    indexed = np.column_stack([np.arange(len(X)), X])
    for name, header in (("pandas", ",0,1,2"), ("named", ",x,y,z")):
        np.savetxt(tmp_path / f"{name}.csv", indexed, delimiter=",", fmt="%.17g", header=header, comments="")
    for name in ("a.npy", "a.csv"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    pq.write_table(columns(X), tmp_path / "columns.parquet", row_group_size=15)
    pq.write_table(lists(X), tmp_path / "lists.parquet", row_group_size=15)
    pq.write_table(lists(X, 3), tmp_path / "fixed.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    for part, start in enumerate((0, 10, 10)):
        pq.write_table(lists(X[start : (10, 10, 40)[part]]), folder / f"{part}.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "a.npy",
        "a.npz",
        "a.csv",
        "header.csv",
        "COMMENT.CSV",
        "a.tsv",
        "quotes.csv",
        "pandas.csv",
        "named.csv",
        "a.npy.gz",
        "a.csv.gz",
        "columns.parquet",
        "lists.parquet",
        "fixed.parquet",
        "folder",
    ],
)
def test_every_form_holds_the_same_rows(name: str, files, monkeypatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 3 * 7)
    data = read(files / name, None)
    assert (data.count, data.dim) == X.shape
    np.testing.assert_array_equal(whole(data), X)
    blocks = list(data.blocks())
    assert max(len(block) for _, block in blocks) == 7
    assert [start for start, _ in blocks] == np.cumsum([0, *(len(b) for _, b in blocks[:-1])]).tolist()
    np.testing.assert_array_equal(np.asarray(data.rows), X)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("float16", "float32"),
        ("float32", "float32"),
        (">f4", "float32"),
        ("int8", "float64"),
        ("float64", "float64"),
    ],
)
def test_numbers_of_any_kind(kind: str, expected: str, tmp_path) -> None:
    x = (np.eye(4) * 3).astype(kind)
    np.save(tmp_path / "a.npy", x)
    found = whole(read(tmp_path / "a.npy", None))
    assert found.dtype == expected
    np.testing.assert_array_equal(found, x)


def test_an_array_of_numpy_stays_on_the_disk(files) -> None:
    assert isinstance(read(files / "a.npy", None).rows, np.memmap)


def test_half_precision_in_parquet(tmp_path) -> None:
    pq.write_table(lists(X.astype(np.float16)), tmp_path / "a.parquet")
    found = whole(read(tmp_path / "a.parquet", None))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, X.astype(np.float16))


def test_a_key_chooses(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", a=X, b=2 * X)
    pq.write_table(pa.table({"a": list(X), "b": list(2 * X)}), tmp_path / "a.parquet")
    for name in ("a.npz", "a.parquet"):
        np.testing.assert_array_equal(whole(read(tmp_path / name, "b")), 2 * X)


def bad_files(folder) -> None:
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
    (folder / "words.csv").write_text("1,2\n3,x\n5,4\n")
    (folder / "commas.csv").write_text("x;y\n0,1;0,2\n0,3;0,4\n")
    (folder / "header.csv").write_text("x,y\n")
    (folder / "spaces.csv").write_text("0.1 0.2\n0.3 0.4\n")
    (folder / "twins.csv").write_text("x,x,y\n1.5,2.5,3.5\n")
    (folder / "packed.csv.gz").write_text("1,2\n")
    (folder / "packed.npy.gz").write_bytes(gzip.compress((folder / "flat.npy").read_bytes())[:-20])
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
    (folder / "mixed").mkdir()
    pq.write_table(table[:1], folder / "mixed" / "0.parquet")
    pq.write_table(pa.table({"f": [[1.0, 2.0]]}), folder / "mixed" / "1.parquet")


@pytest.mark.parametrize(
    ("name", "key", "says"),
    [
        ("missing.npy", None, "cannot read .*missing.npy: No such file"),
        ("missing.csv", None, "No such file"),
        ("missing.npz", None, "No such file"),
        ("missing.parquet", None, "missing.parquet"),
        (
            "a.txt",
            None,
            r"must end in .npy, .npz, .csv, .tsv, .parquet, .npy.gz, .csv.gz, .tsv.gz, or be a folder",
        ),
        ("flat.npy", None, r"its shape is \(40,\)"),
        ("empty.npy", None, r"its shape is \(0, 3\)"),
        ("thin.npy", None, r"at least two numbers, but its shape is \(40, 1\)"),
        ("words.npy", None, "not real numbers"),
        ("objects.npy", None, "objects.npy"),
        ("broken.npy", None, "broken.npy"),
        ("archive.npy", None, "is an .npz archive"),
        ("array.npz", None, "not a zip file"),
        ("two.npz", None, r"has 2 \(a, b\): choose with --key"),
        ("packed.csv.gz", None, "Not a gzipped file"),
        ("packed.npy.gz", None, "ended before"),
        ("archive.npy.gz", None, "is an .npz archive"),
        ("packed.npz.gz", None, "unpack it with gunzip first"),
        ("two.npz", "c", "it has no array 'c', only a, b"),
        ("none.npz", None, r"has 0 \(none\)"),
        ("flat.npy", "c", r"--key applies only to \.npz and \.parquet files, not to"),
        ("ragged.csv", None, "columns"),
        ("words.csv", None, r"its column '1' has 'x' in row 1 \(counted from 0\)"),
        ("commas.csv", None, "its column 'x' has '0,1' in row 0 .* not a number with a decimal point"),
        ("empty.csv", None, "no rows"),
        ("header.csv", None, r"its shape is \(0, 2\)"),
        ("spaces.csv", None, "numbers need a decimal point, and commas, semicolons or tabs"),
        ("latin.csv", None, "decode .*; save it as UTF-8"),
        ("twins.csv", None, "2 of its columns are called 'x'"),
        ("nothing", None, "no .parquet files"),
        ("broken.parquet", None, "broken.parquet"),
        ("empty.parquet", None, "no rows"),
        ("text.parquet", None, r"its shape is \(1, 0\)"),
        ("text.parquet", "text", "'text' holds string, not lists"),
        ("two.parquet", None, r"2 of its columns hold lists of numbers \(a, b\): choose with --key"),
        ("two.parquet", "c", "it has no column 'c', only a, b"),
        ("ragged.parquet", None, "row 3 has a list of length 3, but the first row has 2 numbers"),
        ("null.parquet", None, "row 1 has no list"),
        ("fixed.parquet", None, "row 1 has no list"),
        ("nothing_first.parquet", None, "the first row of its column 'e' holds no numbers"),
        ("mixed", None, "1.parquet has no column e, which the first file has"),
    ],
)
def test_bad_files(name: str, key: str | None, says: str, tmp_path) -> None:
    bad_files(tmp_path)
    with pytest.raises(typer.BadParameter, match=says):
        whole(read(tmp_path / name, key))


def test_parquet_asks_for_its_extra(files, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(
        Failure, match=r"lists\.parquet needs dask; run: pip install 'powerspherical\[cli\]'"
    ) as failure:
        read(files / "lists.parquet", None)
    assert failure.value.status == 2


def checked(x: np.ndarray, *, strict: bool = False) -> list[str]:
    shown: list[str] = []
    check(module.Data("a.npy", x), strict=strict, show=shown.append)
    return shown


def test_unit_vectors_are_no_news(monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, "BLOCK", 3 * 16)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert checked(unit, strict=True) == [f"reading a.npy: {count} rows" for count in (16, 32, 40)]
    checked(unit.astype(np.float16).astype(np.float32), strict=True)
    assert capsys.readouterr() == ("", "")


def test_other_rows_are_announced_or_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, "BLOCK", 3 * 2)
    x = np.eye(3)[[0, 1, 2, 0, 1]]
    x[[1, 4]] *= [[2.0], [0.5]]
    checked(x)
    assert capsys.readouterr().err == (
        "powerspherical: 2 of 5 rows are not unit vectors (lengths from 0.5 to 2); normalised\n"
    )
    with pytest.raises(
        typer.BadParameter, match=r"2 of 5 rows are not unit vectors, the first is row 1 of a\.npy"
    ):
        checked(x, strict=True)


def test_an_archive_may_hold_texts_beside_the_rows(tmp_path) -> None:
    names = np.array([f"row {i}" for i in range(len(X))], dtype=object)
    np.savez(tmp_path / "a.npz", labels=names, texts=names.astype(str).reshape(-1, 1), rows=X)
    np.testing.assert_array_equal(read(tmp_path / "a.npz", None).rows, X)
    with pytest.raises(typer.BadParameter, match=r"a\.npz: Object arrays cannot be loaded"):
        read(tmp_path / "a.npz", "labels")


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (np.nan, float, "NaN or infinite"),
        (np.inf, float, "NaN or infinite"),
        (1e300, float, "NaN or infinite"),  # the norm overflows
        (0.0, float, "only zeros"),
        (1e-42, np.float32, "only zeros"),  # subnormal: too few digits for a direction
    ],
)
def test_a_row_without_a_direction_is_named(value: float, dtype: type, says: str, monkeypatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 3 * 2)
    x = X.astype(dtype)
    x[7] = value
    with pytest.raises(typer.BadParameter, match=f"a.npy has {says}.* in row 7 "):
        checked(x)
