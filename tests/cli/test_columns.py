"""The choice of coordinate columns: automatic, by the user, and refused when in doubt."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from helpers.clusters import clustered
from powerspherical import cli
from powerspherical.cli.columns import Wanted
from powerspherical.cli.rows import read

FLOATS = [0.1, 0.7, 0.4]


def table(path, **columns) -> None:
    """Write columns as Parquet and as CSV."""
    pq.write_table(pa.table(columns), path / "a.parquet")
    rows = [columns, *zip(*columns.values(), strict=True)]
    (path / "a.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))


@pytest.fixture(params=["a.parquet", "a.csv"])
def file(request, tmp_path):
    """The path of a table that `table` writes."""
    return tmp_path / request.param


@pytest.mark.parametrize(
    ("columns", "used"),
    [
        ({"x": FLOATS, "y": FLOATS}, "x, y (2 of 2)"),
        ({"a": [3, 1, 2], "b": [1, 7, 5]}, "a, b (2 of 2)"),  # all of them integers
        ({"x0": FLOATS, "x1": [0, 1, 0]}, "x0, x1 (2 of 2)"),  # a numbered series with a column of integers
        ({"text": ["a", "b", "c"], "x": FLOATS, "y": FLOATS}, "x, y (2 of 3); left out: text"),
        (dict.fromkeys([f"e{i}" for i in range(9)], FLOATS), "e0, e1, e2, …, e8 (9 of 9)"),
        ({"x": FLOATS, "y": FLOATS, "seen": [True, False, True]}, "x, y (2 of 3); left out: seen"),
    ],
)
def test_the_columns_used_are_told(columns: dict, used: str, file, tmp_path, capsys) -> None:
    table(tmp_path, **columns)
    data = read(file, Wanted())
    assert data.notice == f"columns used as coordinates: {used}"
    np.testing.assert_array_equal(data.rows, np.array([columns[name] for name in data.columns], float).T)
    assert cli.run(["fit", str(file)]) == 0
    assert f"powerspherical: {data.notice}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("columns", "doubtful"),
    [
        ({"id": [3.5, 1.5, 2.5], "x": FLOATS, "y": FLOATS}, "id"),
        ({"x": FLOATS, "y": FLOATS, "Cluster": FLOATS}, "Cluster"),
        ({"x": FLOATS, "y": FLOATS, "user_id": FLOATS}, "user_id"),
        ({"Unnamed: 0": [4, 4, 2], "x": FLOATS, "y": FLOATS}, "Unnamed: 0"),
        ({"n": [3, 1, 2], "x": FLOATS, "y": FLOATS}, "n"),  # integers among floats
        ({"n": [0.5, 1.5, 2.5], "x": FLOATS, "y": FLOATS}, "n"),  # counts the rows
        ({"x0": FLOATS, "x1": FLOATS, "length": FLOATS}, "length"),  # beside a series
    ],
)
def test_what_may_be_no_coordinate_is_refused(columns: dict, doubtful: str, file, tmp_path) -> None:
    table(tmp_path, **columns)
    message = f"{doubtful} may not be a coordinate: .*--drop {shlex.quote(doubtful)}"
    with pytest.raises(typer.BadParameter, match=message):
        read(file, Wanted())
    assert list(read(file, Wanted(drop=[doubtful])).columns) == [name for name in columns if name != doubtful]
    assert list(read(file, Wanted(columns=["*"])).columns) == list(columns)


def test_the_advice_names_every_column(file, tmp_path, monkeypatch, capsys) -> None:
    """Also many of them, and one with a comma or a quote in its name. To follow the advice succeeds."""
    monkeypatch.chdir(tmp_path)
    others = [f"{letter} id" for letter in "abcdefg"] + ["it's id"]
    table(tmp_path, **dict.fromkeys(["x", "y", *others], FLOATS))
    assert cli.run(["fit", file.name]) == 2
    advice = shlex.split(capsys.readouterr().err.partition("for example ")[2].partition(", or use all")[0])
    assert cli.run(["fit", file.name, *advice]) == 0
    assert "columns used as coordinates: x, y (2 of 10); left out: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "columns"),
    [
        (Wanted(columns=["y", "x1"]), ["y", "x1"]),
        (Wanted(columns=["x*", "x0"]), ["x0", "x1", "x[0]"]),
        (Wanted(columns=["x[0]", "y"]), ["x[0]", "y"]),
        (Wanted(columns=["*"], drop=["x?"]), ["x[0]", "y"]),
        (Wanted(fitted=["y", "x0"]), ["y", "x0"]),
        (Wanted(columns=["x0", "x1"], fitted=["y", "x0"]), ["x0", "x1"]),
        (Wanted(drop=["y", "x[0]"], fitted=["y", "x0"]), ["x0", "x1"]),
    ],
)
def test_the_user_chooses(wanted: Wanted, columns: list[str], file, tmp_path) -> None:
    values = {"text": ["a", "b", "c"], "x0": FLOATS, "x1": FLOATS[::-1], "x[0]": [3, 1, 2], "y": FLOATS}
    table(tmp_path, **values)
    data = read(file, wanted)
    assert list(data.columns) == columns
    np.testing.assert_array_equal(data.rows, np.array([values[name] for name in columns], float).T)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted(columns=["z"]), "no column is called 'z'; there are text, x, y"),
        (Wanted(drop=["z*"]), r"no column is called 'z\*'; there are text, x, y"),
        (Wanted(columns=["text", "x"]), "its column 'text' holds string, not numbers"),
        (Wanted(fitted=["x", "z"]), "it has no column z, which the model was fitted with"),
        (Wanted(drop=["x"]), r"its shape is \(3, 1\) \(columns used as coordinates: y "),
    ],
)
def test_a_wrong_choice(wanted: Wanted, says: str, file, tmp_path) -> None:
    table(tmp_path, text=["a", "b", "c"], x=FLOATS, y=FLOATS)
    with pytest.raises(typer.BadParameter, match=says):
        read(file, wanted)


@pytest.mark.parametrize("option", ["--columns", "--drop"])
def test_an_array_has_no_columns(option: str, tmp_path, capsys) -> None:
    np.save(tmp_path / "a.npy", np.eye(3))
    assert cli.run(["fit", str(tmp_path / "a.npy"), option, "x"]) == 2
    assert f"{option} applies only to .csv and .parquet files, not to" in capsys.readouterr().err


def test_lists_come_before_numbers(tmp_path) -> None:
    """A list column of floats takes precedence, unless the user names others. Lists of integers are the last resort."""
    lists = [[1.0, 2.0], [3.0, 5.0]]
    columns = {"id": [1, 2], "e": lists, "x": [0.5, 0.1], "y": [0.1, 0.2], "tokens": [[1], [2, 3]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for wanted in (Wanted(), Wanted(columns=["e"]), Wanted(fitted=["other"])):
        data = read(tmp_path / "a.parquet", wanted)
        assert data.notice == "columns used as coordinates: e (1 of 5); left out: id, x, y, tokens"
        np.testing.assert_array_equal(data.rows, lists)
    with pytest.raises(typer.BadParameter, match="--key already names the column"):
        read(tmp_path / "a.parquet", Wanted(columns=["x", "y"], key="e"))
    for wanted in (Wanted(columns=["x", "y"]), Wanted(drop=["e", "id"]), Wanted(fitted=["x", "y"])):
        np.testing.assert_array_equal(read(tmp_path / "a.parquet", wanted).rows, [[0.5, 0.1], [0.1, 0.2]])
    pq.write_table(pa.table({"text": ["a", "b"], "e": [[1, 2], [3, 5]]}), tmp_path / "b.parquet")
    np.testing.assert_array_equal(read(tmp_path / "b.parquet", Wanted()).rows, lists)


def test_the_index_of_a_data_frame_is_left_out(tmp_path) -> None:
    """pandas writes an index that is not a range as a column, and names it in the metadata."""
    frame = pa.table({"x": FLOATS, "y": FLOATS, "__index_level_0__": [7.0, 8.0, 5.0]})
    metadata = {"index_columns": ["__index_level_0__"], "columns": [], "column_indexes": []}
    pq.write_table(frame.replace_schema_metadata({"pandas": json.dumps(metadata)}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", Wanted()).columns == ["x", "y"]


@pytest.mark.parametrize("first", ["0,1,2", "0,1", "a,0.1,0.2", "0,1,2,text", ",0.1,0.2", "0.1,,0.2"])
def test_a_first_line_that_may_be_names_or_values(first: str, tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{first}\n" + ",".join(["0.5"] * (first.count(",") + 1)))
    message = f"its first line, {first}, may hold names or values: .*--no-header"
    with pytest.raises(typer.BadParameter, match=message):
        read(path, Wanted())
    assert read(path, Wanted(columns=["*"], header=True)).count == 1


def test_a_file_without_a_header(tmp_path, monkeypatch, capsys) -> None:
    """No row is lost. A first column that counts the rows is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("0,1,2\n1,0,5\n")
    np.testing.assert_array_equal(read(Path("a.csv"), Wanted(header=False)).rows, [[0, 1, 2], [1, 0, 5]])
    np.testing.assert_array_equal(read(Path("a.csv"), Wanted(header=True)).rows, [[1, 0, 5]])
    for option, rows in (("--header", 1), ("--no-header", 2)):
        assert cli.run(["fit", "a.csv", option]) == 0
        assert capsys.readouterr().out.startswith(f"{rows} rows in 3 dimensions")
    (tmp_path / "a.csv").write_text("0,0.1,0.2\n1,0.3,0.2\n2,0.3,0.4\n")
    with pytest.raises(typer.BadParameter, match="0 may not be a coordinate"):
        read(Path("a.csv"), Wanted())


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('x,"te,xt",y\n0.1,"a, ""b""\nc",0.2\n', [[0.1, 0.2]]),  # a comma, quotes and a line break in a text
        ("\ufeffx,y\r\n0.1,0.2\r\n", [[0.1, 0.2]]),
        ("\n\nx, y\n\n 0.1, +2e-1\n", [[0.1, 0.2]]),
        ("x,y,\n0.1,0.2,\n", [[0.1, 0.2]]),
        ("x,y\n0.1,0.2\n0.3,\n", [[0.1, 0.2], [0.3, np.nan]]),
        ('"a\nb";c\n0.1;0.2\n', [[0.1, 0.2]]),
        ("0.1;0.2", [[0.1, 0.2]]),
    ],
)
def test_ways_to_write_a_file(text: str, rows, tmp_path) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    np.testing.assert_array_equal(read(tmp_path / "a.csv", Wanted()).rows, rows)


@pytest.mark.slow
def test_long_lines(tmp_path) -> None:
    """Lines longer than the default field limit of Python's csv module."""
    x = np.random.default_rng(0).normal(size=(2, 6000))
    np.savetxt(tmp_path / "a.csv", x, delimiter=",")
    np.testing.assert_allclose(read(tmp_path / "a.csv", Wanted()).rows, x, rtol=1e-15)


def test_predict_uses_the_columns_of_the_fit(tmp_path, monkeypatch, capsys) -> None:
    """Also from a file with additional columns in another order."""
    monkeypatch.chdir(tmp_path)
    x, _ = clustered(200, dim=4)
    indexed = np.column_stack([np.arange(len(x)), x])
    np.savetxt("fit.csv", indexed, delimiter=",", header=",a,b,c,d", comments="")
    assert cli.run(["cluster", "fit.csv", "-k", "3", "--out", "out"]) == 0
    found = np.load("out/labels.npy")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["columns"] == ["a", "b", "c", "d"]
    new = {"weight": np.ones(len(x))} | {name: x[:, "abcd".index(name)] for name in "dbca"}
    table(tmp_path, **new)
    np.savetxt("plain.csv", x, delimiter=",")
    np.save("a.npy", x)
    for data in ("a.parquet", "a.csv", "plain.csv", "a.npy"):
        assert cli.run(["predict", "out/model.safetensors", data, "--out", f"{data}.labels.npy"]) == 0
        np.testing.assert_array_equal(np.load(f"{data}.labels.npy"), found)
    capsys.readouterr()
    assert cli.run(["predict", "out/model.safetensors", "a.csv", "--columns", "a,b"]) == 2
    assert capsys.readouterr().err == (
        "powerspherical: Invalid value for 'DATA': a.csv has rows of 2 numbers (columns used as coordinates: a, b "
        "(2 of 5); left out: weight, d, c), but out/model.safetensors expects 4 (see powerspherical predict --help)\n"
    )
    table(tmp_path, a=FLOATS, b=FLOATS, c=FLOATS, e=FLOATS)
    assert cli.run(["predict", "out/model.safetensors", "a.csv"]) == 2
    assert "it has no column d, which the model was fitted with" in capsys.readouterr().err
