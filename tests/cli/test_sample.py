"""`powerspherical sample`: draws, files, wrong use, and interruption."""

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from helpers.command import assert_wrong_use
from powerspherical import PowerSpherical, cli
from powerspherical.cli import sample
from powerspherical.engines import block_limit

KAPPA = ["--concentration", "5"]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text):
    return np.loadtxt(io.StringIO(text), delimiter=",")


def test_by_default_ten_draws_in_three_dimensions_are_printed(capsys):
    assert cli.run(["sample", *KAPPA]) == 0
    shown = capsys.readouterr()
    lengths = np.linalg.norm(read(shown.out), axis=1, keepdims=True)
    np.testing.assert_allclose(read(shown.out) / lengths, read(shown.out), atol=1e-6)
    assert (read(shown.out).shape, shown.err) == ((10, 3), "")


@pytest.mark.parametrize("family", ["power-spherical", "von-mises-fisher", "spherical-cauchy", "uniform"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_form_holds_the_same_draws(family, dtype, folder, monkeypatch, capsys):
    """Each format, written in several blocks, reads back bit for bit."""
    options = ["--dim", "4", "-n", "30", "--seed", "3", "--dtype", dtype]
    options += [] if family == "uniform" else KAPPA
    with block_limit(28):  # seven rows
        for out in ("-", "a.npy", "a.csv"):
            assert cli.run(["sample", family, *options, "--out", out]) == 0
    array = np.load("a.npy")
    assert array.shape == (30, 4)
    assert array.dtype == dtype
    assert len(np.unique(array, axis=0)) == 30
    text = (folder / "a.csv").read_text()
    np.testing.assert_array_equal(read(text).astype(dtype), array)
    told = "30 draws in 4 dimensions: a.npy\n30 draws in 4 dimensions: a.csv\n"
    assert capsys.readouterr().out == text + told
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "a.npy"]


def test_the_draws_are_the_distributions_own(folder):
    command = ["sample", "--loc", "0,0.6,0.8", *KAPPA, "-n", "20", "--seed", "8", "--dtype", "float64"]
    assert cli.run([*command, "--out", "a.npy"]) == 0
    torch.manual_seed(8)
    loc = torch.tensor([0, 0.6, 0.8], dtype=torch.float64)
    expected = PowerSpherical(loc, 5.0).sample((20,))
    torch.testing.assert_close(torch.from_numpy(np.load("a.npy")), expected, rtol=0, atol=1e-14)


def test_without_a_seed_draws_differ(folder):
    for out in ("a.npy", "new/folder/a.npy"):
        assert cli.run(["sample", *KAPPA, "--out", out]) == 0
    assert not np.array_equal(np.load("a.npy"), np.load("new/folder/a.npy"))


@pytest.mark.parametrize(
    ("text", "expected", "notice"),
    [
        ("0,1", [0, 1], ""),
        ("-3, 4", [-0.6, 0.8], "powerspherical: --loc has length 5; normalised\n"),
        ("0.577,0.577,0.577", [3**-0.5] * 3, ""),
        ("1e300,1e300", [2**-0.5] * 2, "powerspherical: --loc has length 1.41421e+300; normalised\n"),
    ],
)
def test_directions(text, expected, notice, capsys):
    assert sample.direction(text) == pytest.approx(expected, rel=1e-15)
    assert capsys.readouterr().err == notice


def test_a_direction_from_a_file_gives_the_dimension(folder, capsys):
    np.save("loc.npy", np.array([0, 0, 0, 2]))
    assert cli.run(["sample", "--loc", "loc.npy", "--concentration", "1e9", "-n", "2"]) == 0
    shown = capsys.readouterr()
    assert read(shown.out) == pytest.approx(np.array([[0, 0, 0, 1]] * 2), abs=1e-3)
    assert "length 2" in shown.err


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A folder with files that hold no direction, and an empty folder in it."""
    path = tmp_path_factory.mktemp("bad")
    np.save(path / "matrix.npy", np.eye(2))
    np.save(path / "words.npy", np.array(["a", "b"]))
    (path / "broken.npy").write_text("")
    with (path / "archive.npy").open("wb") as file:
        np.savez(file, a=np.eye(2))
    (path / "folder.npy").mkdir()
    (path / "empty").mkdir()
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--concentration"),
        (["--concentration", "-1"], "'--concentration': -1"),
        (["--concentration", "nan"], "'--concentration': nan"),
        (["--concentration", "1e39"], "float32"),
        (["uniform", *KAPPA], "--concentration"),
        (["uniform", "--loc", "1,0"], "--loc"),
        ([*KAPPA, "--dim", "1"], "--dim"),
        ([*KAPPA, "--dim", "4", "--loc", "1,0,0"], "1,0,0 has 3 coordinate(s), but --dim is 4"),
        ([*KAPPA, "--loc", "1"], "two"),
        ([*KAPPA, "--loc", "1,x"], "'1,x' is neither"),
        ([*KAPPA, "--loc", "0,0"], "0,0 has no direction"),
        ([*KAPPA, "--loc", "nan,1"], "nan,1 has no direction"),
        ([*KAPPA, "--loc", "missing.npy"], "missing.npy"),
        ([*KAPPA, "--loc", "../matrix.npy"], "float64 of shape (2, 2)"),
        ([*KAPPA, "--loc", "../words.npy"], "one vector of real numbers"),
        ([*KAPPA, "--loc", "../broken.npy"], "'--loc': cannot read ../broken.npy"),
        ([*KAPPA, "--loc", "../archive.npy"], "'--loc': cannot read ../archive.npy: it is an .npz archive"),
        ([*KAPPA, "-n", "0"], "--number"),
        ([*KAPPA, "--seed", "-1"], "--seed"),
        ([*KAPPA, "--dtype", "float16"], "--dtype"),
        ([*KAPPA, "--device", "toaster"], "--device"),
        ([*KAPPA, "--out", "a.txt"], "a.txt must end in .npy or .csv"),
        ([*KAPPA, "--out", "../folder.npy"], "../folder.npy is a folder"),
        ([*KAPPA, "--out", "../broken.npy/a.csv"], "cannot write in the folder ../broken.npy"),
    ],
)
def test_wrong_use(arguments, says, bad, monkeypatch, capsys):
    monkeypatch.chdir(bad / "empty")
    assert_wrong_use(["sample", *arguments], says, capsys)
    assert list((bad / "empty").iterdir()) == []


@pytest.mark.parametrize("name", ["a.npy", "a.csv"])
def test_an_error_leaves_the_old_file(name, folder, monkeypatch, capsys):
    (folder / name).write_text("old")

    drawn = iter([torch.ones(1, 3)])

    def full(self, shape):
        for block in drawn:
            return block
        raise OSError("No space left on device")

    monkeypatch.setattr(PowerSpherical, "sample", full)
    with block_limit(3):  # one row
        assert cli.run(["sample", *KAPPA, "--out", name, "--force"]) == 1
    assert capsys.readouterr().err == "powerspherical: OSError: No space left on device\n"
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "old"


def test_a_closed_standard_output_needs_a_file(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it after >&-
    assert cli.run(["sample", "uniform"]) == 2
    assert "'--out': the standard output is closed: name a file" in capsys.readouterr().err
    assert cli.run(["sample", "uniform", "--out", "a.npy"]) == 0


@pytest.mark.parametrize("printed", [False, True], ids=["to a file", "on the terminal"])
def test_rows_are_counted_unless_they_are_printed_on_the_terminal(printed, folder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich, a terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.run(["sample", *KAPPA, "-n", "1000", "--out", "-" if printed else "a.npy"]) == 0
    shown = capsys.readouterr()
    assert ("drawing: 1,000 of 1,000 rows" in shown.err) is not printed
    assert len(shown.out.splitlines()) == (1000 if printed else 1)


@contextmanager
def drawing(folder):
    """A process that draws endlessly. Yields when its draft exists."""
    code = f"""
import signal
from powerspherical import cli
for name in ("SIGTERM", "SIGHUP"):  # the parent may have set them to be ignored
    signal.signal(getattr(signal, name), signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main(["sample", "uniform", "-n", str(10**9), "--out", {str(folder / "a.csv")!r}])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while not (folder / ".a.csv.draft").exists() and process.poll() is None:
            time.sleep(0.05)
        yield process


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_leaves_nothing_behind(number, tmp_path):
    with drawing(tmp_path) as process:
        process.send_signal(number)
        error = process.stderr.read()
    assert (process.returncode, error) == (130, "powerspherical: interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_next_run_replaces_the_draft_of_a_killed_one(tmp_path):
    with drawing(tmp_path) as process:
        process.kill()
    assert [path.name for path in tmp_path.iterdir()] == [".a.csv.draft"]
    assert cli.run(["sample", "uniform", "--out", str(tmp_path / "a.csv")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(tmp_path):
    """For example under nohup."""
    code = """
import signal
from powerspherical import cli
signal.signal(signal.SIGHUP, signal.SIG_IGN)
try:
    cli.main(["sample", "uniform", "--out", "a.csv"])
finally:
    print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True"
