"""`fit`, `cluster` and `predict`: files, output, wrong use, and interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import adjusted_rand_score

from helpers.clusters import clustered
from helpers.command import assert_wrong_use
from helpers.own_family import registered
from powerspherical import SphericalCauchy, VonMisesFisher, cli
from powerspherical.cli import cluster as cluster_module
from powerspherical.distributions import distribution_named
from powerspherical.engines import block_limit
from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalCauchyMixture,
    VonMisesFisherMixture,
    load,
)
from powerspherical.nn import save_checkpoint

X, LABELS = clustered(300, dim=5)
UNIT = X / np.linalg.norm(X, axis=1, keepdims=True)
FILES = ["clusters.png", "labels.npy", "model.safetensors", "summary.json"]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A current folder with the same data in two formats."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", UNIT)
    pq.write_table(pa.table({"e": list(UNIT)}), "a.parquet", row_group_size=128)
    return tmp_path


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_cluster(folder, capsys) -> None:
    assert cli.run(["cluster", "a.parquet", "-k", "3", "--out", "new/out", "--seed", "1"]) == 0
    out = folder / "new" / "out"
    assert names(out) == FILES
    twin = PowerSphericalMixture(3, random_state=1).fit(UNIT)
    labels = np.load(out / "labels.npy")
    np.testing.assert_array_equal(labels, twin.predict(UNIT))
    assert adjusted_rand_score(LABELS, labels) > 0.9
    told = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (told["data"], told["rows"], told["dim"], told["seed"]) == ("a.parquet", 300, 5, 1)
    assert (told["model"], told["concentration"], told["converged"]) == ("power-spherical", "tied", True)
    assert told["log_likelihood"] == pytest.approx(twin.lower_bound_, rel=1e-9)
    for cluster in told["clusters"]:
        index = cluster["cluster"]
        assert cluster["size"] == (labels == index).sum()
        assert cluster["concentration"] == pytest.approx(twin.concentrations_[index], rel=1e-9)
        cosines = np.where(labels == index, UNIT @ twin.mean_directions_[index], -2)
        best = np.argsort(-cosines)[:5]
        assert [central["row"] for central in cluster["central_rows"]] == best.tolist()
        assert [central["cosine"] for central in cluster["central_rows"]] == pytest.approx(cosines[best])
    shown = capsys.readouterr()
    assert shown.err == ""
    written = [line.removeprefix("written: new/out/") for line in shown.out.splitlines()[-4:]]
    assert written == ["labels.npy", "model.safetensors", "clusters.png", "summary.json"]


def test_cluster_with_every_option(folder, capsys) -> None:
    options = ["--model", "von-mises-fisher", "--concentration", "free", "--starts", "2", "--seed", "3"]
    assert cli.run(["cluster", "a.npy", "-k", "3", *options, "--strict", "--out", "out"]) == 0
    twin = VonMisesFisherMixture(3, concentration_type="free", n_init=2, random_state=3).fit(UNIT)
    model = load(folder / "out" / "model.safetensors")
    assert isinstance(model, VonMisesFisherMixture)
    assert model.get_params()["concentration_type"] == "free"
    for name in ("weights_", "mean_directions_", "concentrations_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(twin, name))
    assert (model.converged_, model.n_iter_, model.lower_bound_) == (True, twin.n_iter_, twin.lower_bound_)
    np.testing.assert_allclose(model.predict_proba(X), twin.predict_proba(X), rtol=1e-10)
    assert model.bic(X) == pytest.approx(twin.bic(X), rel=1e-12)


def test_blocks_and_a_sample_change_nothing_but_the_picture(folder, monkeypatch) -> None:
    assert cli.run(["cluster", "a.npy", "-k", "3", "--out", "one"]) == 0
    monkeypatch.setattr(cluster_module, "SHOWN", 50)
    with block_limit(5 * 17):
        assert cli.run(["cluster", "a.npy", "-k", "3", "--out", "two"]) == 0
    np.testing.assert_array_equal(np.load("one/labels.npy"), np.load("two/labels.npy"))
    one, two = (load(folder / name / "model.safetensors") for name in ("one", "two"))
    np.testing.assert_allclose(one.mean_directions_, two.mean_directions_, rtol=0, atol=1e-14)
    one, two = (
        json.loads((folder / name / "summary.json").read_text())["clusters"] for name in ("one", "two")
    )
    for cluster, same in zip(one, two, strict=True):
        central, others = cluster.pop("central_rows"), same.pop("central_rows")
        assert [row["row"] for row in central] == [row["row"] for row in others]
        assert cluster == pytest.approx(same, rel=1e-12)


@pytest.mark.parametrize(
    ("rows", "count"), [(UNIT[:1], 1), (UNIT[:2], 2), (np.tile(UNIT[:1], (9, 1)), 3), (UNIT[:, :2] * 3, 2)]
)
def test_small_and_odd_data(rows: np.ndarray, count: int, folder) -> None:
    np.save("odd.npy", rows)
    assert cli.run(["cluster", "odd.npy", "-k", str(count), "--out", "out"]) == 0
    assert names(folder / "out") == FILES
    assert np.load("out/labels.npy").max() < count


def test_an_unfinished_fit_is_told(folder, capsys) -> None:
    assert cli.run(["cluster", "a.npy", "-k", "9", "--max-iter", "1", "--out", "out"]) == 0
    message = "powerspherical: the fit did not converge in 1 step(s): try --max-iter 5\n"
    assert capsys.readouterr().err == message
    assert json.loads((folder / "out" / "summary.json").read_text())["converged"] is False


def test_predict(folder, capsys) -> None:
    assert cli.run(["cluster", "a.npy", "-k", "3", "--out", "out"]) == 0
    capsys.readouterr()
    for data, out in (("a.npy", "-"), ("a.npy", "b.csv"), ("a.parquet", "b.npy")):
        assert cli.run(["predict", "out/model.safetensors", data, "--out", out]) == 0
    labels, found = np.load("out/labels.npy"), np.load("b.npy")
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, labels)
    text = (folder / "b.csv").read_text()
    assert text.split() == [str(label) for label in labels]
    assert capsys.readouterr() == (f"{text}300 labels: b.csv\n300 labels: b.npy\n", "")


def test_fit(folder, capsys) -> None:
    assert cli.run(["fit", "a.npy"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[0] == "300 rows in 5 dimensions: a.npy"
    assert all(text in shown.out for text in ("50 % within", "log-likelihood", "per row"))
    table = [line.replace("│", " ").split() for line in shown.out.splitlines() if "│" in line]
    lines = {cells[0]: cells for cells in table}
    rows = torch.from_numpy(UNIT)
    for name in ("power-spherical", "von-mises-fisher", "spherical-cauchy"):
        twin = distribution_named(name.replace("-", "_")).fit(rows)
        kappa, length, angle, likelihood = lines[name][1:]
        assert float(kappa) == pytest.approx(float(twin.concentration), rel=1e-4)
        assert float(length) == pytest.approx(float(twin.mean.norm()), abs=1e-4)
        assert float(angle.rstrip("°")) == pytest.approx(float(twin.cap_angle(0.5).rad2deg()), abs=0.02)
        assert float(likelihood) == pytest.approx(float(twin.log_prob(rows).mean()), abs=1e-4)
    assert float(lines["uniform"][-1]) == pytest.approx(-3.2704, abs=1e-4)  # -log(8π²/3)
    best, _, numbers = shown.out.splitlines()[-1].removeprefix("mean direction of ").partition(": ")
    assert lines[best][-1] == max((lines[name][-1] for name in lines if name.count("-") == 1), key=float)
    loc = distribution_named(best.replace("-", "_")).fit(rows).loc
    assert [float(number) for number in numbers.split(", ")] == pytest.approx(loc.tolist(), abs=1e-3)


def test_a_long_mean_direction_is_shortened(folder, capsys) -> None:
    np.save("b.npy", np.eye(1, 20).repeat(3, 0) + 0.01 * np.eye(3, 20, 1))
    assert cli.run(["fit", "b.npy"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(": 1.0000, 0.0033, 0.0033, 0.0033, 0.0000, 0.0000, …, 0.0000\n")


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        (VonMisesFisher, [], VonMisesFisherMixture),
        (SphericalCauchy, [], SphericalCauchyMixture),
        (VonMisesFisher, ["--model", "power-spherical"], PowerSphericalMixture),
    ],
    ids=["light tails", "heavy tails", "as told"],
)
def test_fit_writes_the_likeliest(family: type, options: list[str], expected: type, folder, capsys) -> None:
    np.save("b.npy", family(torch.tensor([0.0, 0.6, 0.8], dtype=torch.float64), 9.0).sample((40_000,)))
    assert cli.run(["fit", "b.npy", *options, "--out", "sub/b.safetensors"]) == 0
    found = load(folder / "sub" / "b.safetensors")
    assert isinstance(found, expected)
    if expected.distribution is family:
        assert found.concentrations_[0] == pytest.approx(9.0, rel=0.1)
    assert capsys.readouterr().out.splitlines()[-1] == "written: sub/b.safetensors"


def test_families_of_ones_own_are_taken_everywhere(folder, monkeypatch, capsys) -> None:
    registered(monkeypatch)
    assert cli.run(["sample", "squared-chord", "--concentration", "9", "-n", "50", "--out", "b.npy"]) == 0
    assert cli.run(["fit", "b.npy"]) == 0
    assert "squared-chord" in capsys.readouterr().out
    assert cli.run(["cluster", "a.npy", "-k", "3", "--model", "squared-chord", "--out", "out"]) == 0
    assert cli.run(["predict", "out/model.safetensors", "a.npy", "--out", "labels.npy"]) == 0
    np.testing.assert_array_equal(np.load("labels.npy"), np.load("out/labels.npy"))
    for command in ("sample", "fit", "cluster"):
        assert cli.run([command, "--help"]) == 0
        assert "squared-chord" in "".join(capsys.readouterr().out.split())  # regardless of line breaks


def test_a_fit_that_cannot_be_written_is_shown(folder, monkeypatch, capsys) -> None:
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert cli.run(["fit", "a.npy", "--out", "a.safetensors"]) == 1
    shown = capsys.readouterr()
    assert "von-mises-fisher" in shown.out
    assert shown.err == "powerspherical: OSError: No space left on device\n"
    assert names(folder) == ["a.npy", "a.parquet"]


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A folder with files that commands refuse, and an empty folder in it."""
    path = tmp_path_factory.mktemp("bad")
    np.save(path / "a.npy", UNIT)
    np.save(path / "long.npy", 2 * UNIT)
    np.save(path / "nan.npy", np.where(np.arange(300)[:, None] == 7, np.nan, UNIT))
    save_checkpoint(path / "other.safetensors", {"epoch": 3})
    for dim in (3, 5):
        PowerSphericalMixture().fit(np.eye(dim)).save(path / f"{dim}d.safetensors")
    (path / "empty").mkdir()
    return path


K = ["-k", "3"]
OUT = ["--out", "out"]
FAMILIES = "'cauchy' is not one of power-spherical, von-mises-fisher, spherical-cauchy"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cluster", "../a.npy", *K], "--out"),
        (["cluster", "../a.npy", *OUT], "--clusters"),
        (["cluster", "../a.npy", "-k", "0", *OUT], "--clusters"),
        (["cluster", "../a.npy", "-k", "301", *OUT], "'-k': ../a.npy has 300 row(s), fewer than 301 cl"),
        (["cluster", "../a.npy", *K, *OUT, "--model", "cauchy"], FAMILIES),
        (["fit", "../a.npy", "--model", "cauchy"], FAMILIES),
        (["sample", "cauchy"], FAMILIES),
        (["cluster", "../a.npy", *K, *OUT, "--concentration", "loose"], "--concentration"),
        (["cluster", "../a.npy", *K, "--out", "../a.npy"], "cannot write in the folder ../a.npy"),
        (["cluster", "missing.npy", *K, *OUT], "cannot read missing.npy: No such file or directory"),
        (["cluster", "../nan.npy", *K, *OUT], "row 7 of ../nan.npy has NaN or infinite values"),
        (["cluster", "../long.npy", *K, *OUT, "--strict"], "300 of 300 rows are not unit vectors, the first"),
        (["fit", "../a.npy", "--out", "fit.npy"], "fit.npy must end in .safetensors"),
        (["predict", "missing.safetensors", "../a.npy"], "there is no checkpoint missing.safetensors"),
        (
            ["predict", "../a.npy", "../a.npy"],
            "a.npy is not a model file of powerspherical.mixture, or it is",
        ),
        (
            ["predict", "../other.safetensors", "../a.npy"],
            "other.safetensors is a checkpoint, but not a model",
        ),
        (["predict", "../3d.safetensors", "../a.npy"], "rows of 5 numbers, but ../3d.safetensors expects 3"),
        (["predict", "../3d.safetensors", "../a.npy", "--out", "a.txt"], "a.txt must end in .npy or .csv"),
        (["predict", "../5d.safetensors", "../nan.npy"], "row 7 of ../nan.npy has NaN or infinite values"),
    ],
)
def test_wrong_use(arguments: list[str], says: str, bad, monkeypatch, capsys) -> None:
    monkeypatch.chdir(bad / "empty")
    assert_wrong_use(arguments, says, capsys)
    assert list((bad / "empty").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status"), [(OSError("No space left on device"), 1), (KeyboardInterrupt(), 130)]
)
def test_what_goes_wrong_while_writing_leaves_the_old_files(error, status: int, folder, monkeypatch) -> None:
    assert cli.run(["cluster", "a.npy", "-k", "3", "--out", "out"]) == 0
    before = {name: (folder / "out" / name).read_bytes() for name in FILES}

    def savefig(*_, **__):
        raise error

    monkeypatch.setattr(Figure, "savefig", savefig)
    assert cli.run(["cluster", "a.npy", "-k", "4", "--out", "out", "--force"]) == status
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(folder) -> None:
    code = """
import signal
from powerspherical import cli
from powerspherical.mixture import PowerSphericalMixture
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
fit = PowerSphericalMixture.fit
def told(self, rows):
    print("fitting", flush=True)
    while True:
        fit(self, rows)
PowerSphericalMixture.fit = told
cli.main(["cluster", "a.npy", "-k", "3", "--out", "out"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout.readline() == "fitting\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert (process.returncode, error) == (130, "powerspherical: interrupted\n")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("name", ["run[v2]", "run[", "run[/v2]", "run[bold]x[b]", "[red]"])
def test_names_of_files_are_no_markup(name: str, folder, capsys) -> None:
    Path(name).mkdir(parents=True)
    os.rename("a.npy", f"{name}/x.npy")
    assert_wrong_use(["fit", f"{name}/missing.npy"], f"cannot read {name}/missing.npy", capsys)
    assert cli.run(["fit", f"{name}/x.npy", "--out", f"{name}/x.safetensors"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"300 rows in 5 dimensions: {name}/x.npy"
    assert shown[-1] == f"written: {name}/x.safetensors"
    assert cli.run(["cluster", f"{name}/x.npy", "-k", "2", "--out", f"{name}/out"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("300 rows in 5 dimensions, log-likelihood per row ")
    assert f": {name}/x.npy\n" in shown
    assert f"written: {name}/out/labels.npy\n" in shown


def test_names_do_not_reach_the_terminal_as_commands(folder, capsys) -> None:
    """Names of files and columns: neither colours, nor titles of the window, nor line breaks."""
    evil = "\x1b[31mx\x1b]0;title\x07y\x9b2J\r\nz"
    Path(f"{evil}.csv").write_bytes(f"{evil},b,{evil}id\n0.1,0.2,0.3\n".replace("\r\n", "").encode())
    assert cli.run(["fit", f"{evil}.csv", "--drop", evil]) == 2
    assert cli.run(["fit", f"{evil}.csv", "--columns", "*"]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "xy" in text
        assert all(character.isprintable() for character in text.replace("\n", ""))


#: Neither markup for rich nor colours for the terminal.
QUESTIONS = [f"[/bold] \x1b[31mquestion\t{i}" for i in range(300)]


def text_files() -> None:
    """Write the rows with their texts in every format."""
    Path("questions.txt").write_text("\n".join(QUESTIONS) + "\n", encoding="utf-8")
    columns = {"question": QUESTIONS} | {f"x{i}": column for i, column in enumerate(UNIT.T)}
    pq.write_table(pa.table(columns), "texts.parquet", row_group_size=128)
    lines = [",".join(map(str, row)) for row in (columns, *zip(*columns.values(), strict=True))]
    Path("texts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("data", "text"), [("a.npy", "questions.txt"), ("texts.csv", "question"), ("texts.parquet", "question")]
)
def test_cluster_shows_texts(data: str, text: str, folder, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text_files()
    assert cli.run(["cluster", data, "-k", "3", "--out", "out", "--text", text]) == 0
    told = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))
    central = [row for cluster in told["clusters"] for row in cluster["central_rows"]]
    assert len(central) == 15
    shown = capsys.readouterr().out
    assert "\x1b[31m" not in shown
    for row in central:
        assert row["text"] == QUESTIONS[row["row"]]
        assert f"{row['row']}: [/bold] question {row['row']} " in shown


@pytest.mark.parametrize(
    ("data", "text", "says"),
    [
        ("a.npy", "short.txt", "short.txt has 299 line(s), but a.npy has 300 row(s): write one line per row"),
        ("a.npy", "nothing.txt", "there is no file nothing.txt, and no column 'nothing.txt' in a.npy"),
        ("texts.csv", "nothing", "in texts.csv: its columns are question, x0, x1, x2, x3, x4"),
        ("texts.csv", "x0", "x0 is ambiguous: texts.csv has 1 column(s) of that name, and there is a file"),
        ("twins.csv", "t", "t is ambiguous: twins.csv has 2 column(s) of that name, and there is no file t"),
        ("a.npy", "latin.txt", "cannot read latin.txt: 'utf-8' codec can't decode"),
    ],
)
def test_wrong_texts(data: str, text: str, says: str, folder, capsys) -> None:
    text_files()
    (folder / "short.txt").write_text("a\n" * 299)
    (folder / "x0").write_text("a\n" * 300)
    (folder / "latin.txt").write_bytes(b"\xe9\n" * 300)
    (folder / "twins.csv").write_text("t,t,x,y\n" + "a,b,0.6,0.8\n" * 3)
    assert cli.run(["cluster", data, "-k", "3", "--out", "out", "--text", text]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("powerspherical: Invalid value for '--text': ")
    assert says in shown.err
    assert not (folder / "out").exists()
