"""`powerspherical reproduce`: files, output, exit status, continuation and wrong use."""

import io
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical_paper import figure1, running
from powerspherical_paper.autoencoder import datasets
from powerspherical_paper.command import Experiment
from powerspherical_paper.report import page
from powerspherical_paper.report.findings import Finding, Table, Verdict
from powerspherical_paper.report.page import ReportError
from powerspherical_paper.results import Outcome, write_text

NAMES = get_args(Experiment)


@pytest.fixture
def calls(monkeypatch):
    """Replace every experiment by one that records its arguments and writes a file, and the report by an empty file."""
    seen = {}
    monkeypatch.setattr(page, "write_report", lambda folder: write_text(folder / page.NAME, ""))
    monkeypatch.setattr(page, "read", lambda path: SimpleNamespace(finding=finding(path.stem)))
    monkeypatch.setattr(datasets, "load", lambda name, folder: None)

    def run(task, **given):
        seen[task.experiment] = task, {**given, "threads": torch.get_num_threads()}
        return Outcome([task.write(task.experiment, {}, {})])

    for name in NAMES:
        monkeypatch.setattr(running.module(name), "run", run)
    return seen


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def finding(name):
    return Finding(Verdict.SHOWN, f"all about {name}", tables=[Table("A table.", ["[a]"], [["[b]"]])])


def fail(monkeypatch, name, error):
    def run(task, **_):
        raise error

    monkeypatch.setattr(running.module(name), "run", run)


def reproduce(*arguments):
    return cli.run(["reproduce", *map(str, arguments)])


class TestOptions:
    def test_they_reach_the_experiments(self, calls, tmp_path):
        given = ["--quick", "--device", "meta", "--seed", "7", "--threads", "3", "--out", tmp_path]
        special = ["--data", "mnist", "--data-dir", tmp_path, "--seeds", "3", "--jobs", "2"]
        assert reproduce(*given, *special) == 0
        assert tuple(calls) == NAMES == ("figure1", "properties", "stability", "efficiency", "vae")
        for name, (task, arguments) in calls.items():
            assert (task.experiment, task.out) == (name, tmp_path)
            assert (task.seed, task.quick, task.device) == (7, True, "meta")
            assert task.options == ({"data": "mnist", "seeds": 3} if name == "vae" else {})
            only_vae = {"data_dir": tmp_path, "jobs": 2} if name == "vae" else {}
            assert arguments == {**only_vae, "threads": 3}

    @pytest.mark.parametrize(("quick", "data", "seeds"), [([], "mnist", 3), (["--quick"], "digits", 1)])
    def test_defaults(self, quick, data, seeds, calls, tmp_path):
        assert reproduce("vae", *quick, "--out", tmp_path) == 0
        task, arguments = calls["vae"]
        assert task.options == {"data": data, "seeds": seeds}
        assert arguments == {"data_dir": None, "jobs": 1, "threads": 1}

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["figure9"], "figure9"),
            (["--seed", "many"], "--seed"),
            (["--seed", "-1"], "--seed"),
            (["--seed", "9999999999"], "--seed"),
            (["--frobnicate"], "--frobnicate"),
            (["--device", "toaster"], "--device"),
            (["vae", "--data", "imagenet"], "--data"),
            (["vae", "--data-dir", "no/such/folder"], "no/such/folder"),
            (["vae", "--seeds", "0"], "--seeds"),
            (["vae", "--jobs", "0"], "--jobs"),
            (["figure1", "--seeds", "2"], "'--seeds': figure1 does not take this option, only vae does"),
            (["--threads", "0"], "--threads"),
            (["--out", __file__], f"cannot write in the folder {__file__}"),
        ],
    )
    def test_wrong_use(self, arguments, says, calls, monkeypatch, tmp_path, capsys):
        monkeypatch.chdir(tmp_path)
        assert_wrong_use(["reproduce", *arguments], says, capsys)
        assert calls == {}
        assert list(tmp_path.iterdir()) == []

    def test_help_says_how_to_continue(self, capsys):
        assert reproduce("--help") == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "After an interruption or an error, the same command continues" in text


class TestFiles:
    @pytest.mark.parametrize("content", [None, "", "[]", "{}"])
    def test_an_existing_result_is_refused(self, content, calls, tmp_path, capsys):
        """Whoever made it, and whatever it holds. --force replaces it."""
        command = ["reproduce", "figure1", "--out", str(tmp_path)]
        assert cli.run(command) == 0
        if content is not None:
            (tmp_path / "figure1.json").write_text(content)
        calls.clear()
        capsys.readouterr()
        says = f"{tmp_path / 'figure1.json'} exists; pass --force to replace it"
        assert_wrong_use(command, says, capsys)
        assert calls == {}
        assert reproduce("stability", "--out", tmp_path) == 0  # the report is kept up to date
        assert cli.run([*command, "--force"]) == 0
        assert [*calls] == ["stability", "figure1"]

    @pytest.mark.parametrize("name", ["figure1_meta.png", "efficiency_meta.png", "report.html"])
    def test_foreign_files_are_refused(self, name, calls, tmp_path, capsys):
        (tmp_path / name).write_text("mine")
        command = ["reproduce", "all", "--device", "meta", "--out", str(tmp_path)]
        assert_wrong_use(command, f"{tmp_path / name} exists", capsys)
        assert calls == {}
        assert (tmp_path / name).read_text() == "mine"

    def test_missing_images_are_told_at_once(self, tmp_path, capsys):
        """Before the other experiments run for hours."""
        images, out = tmp_path / "images", tmp_path / "out"
        images.mkdir()
        assert reproduce("--data-dir", images, "--out", out) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("powerspherical: neither ")
        assert list(out.iterdir()) == []


class TestContinuation:
    @pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (RuntimeError("no clock"), 1)])
    def test_the_same_command_continues(self, error, status, calls, tmp_path, capsys):
        """It skips what is done, and says so. Other settings are refused."""
        command = ["reproduce", "all", "--seed", "3", "--out", str(tmp_path)]
        with pytest.MonkeyPatch.context() as patch:
            fail(patch, "stability", error)
            assert cli.run(command) == status
        assert [*calls] == ["figure1", "properties"]
        calls.clear()
        capsys.readouterr()
        refused = f"{tmp_path / 'figure1.json'} exists; pass --force"
        for other in (["--quick"], ["--seed", "4"]):
            assert_wrong_use([*command, *other], refused, capsys)
        assert cli.run([*command, "--jobs", "2"]) == 0  # on as many processes as you like
        assert [*calls] == ["stability", "efficiency", "vae"]
        skipped = [f"{name}: skipped, done with the same settings" for name in ("figure1", "properties")]
        assert capsys.readouterr().out.splitlines()[:2] == skipped
        assert_wrong_use([*command, "--seeds", "2"], f"{tmp_path / 'vae.json'} exists", capsys)
        calls.clear()
        assert cli.run(command) == 0
        assert calls == {}
        assert cli.run([*command, "--force"]) == 0
        assert tuple(calls) == NAMES

    @pytest.mark.slow
    def test_a_real_signal(self, tmp_path):
        """Finished results are shown and reported, and one line says how to continue."""
        code = f"""
import signal, time
from powerspherical import cli
from powerspherical_paper import properties

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
properties.run = lambda task: time.sleep(300)
cli.main(["reproduce", "--data", "digits", "--out", {str(tmp_path)!r}])
"""
        lines = []
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while not lines or lines[-1] not in ("properties: started\n", ""):
                lines.append(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            lines += process.stdout.readlines()
            error = process.stderr.read()
        assert process.returncode == 130, error
        assert lines[0] == "figure1: started\n"
        assert "figure1: shown: 1,000 draws from each of 6 distributions.\n" in lines
        assert lines[-1] == f"{tmp_path / 'report.html'}\n"
        says = "interrupted in properties; finished results are kept, and the same command continues"
        assert error == f"powerspherical: {says}\n"


class TestOutput:
    def test_findings_files_and_errors(self, calls, monkeypatch, tmp_path, capsys):
        """Names and tables in brackets are no markup. An error takes one line, and hides nothing found before."""
        out = tmp_path / "new" / "[red]"
        fail(monkeypatch, "efficiency", RuntimeError("no\nclock"))
        assert reproduce("--out", out) == 1
        shown = capsys.readouterr()
        assert "stability: shown: all about stability\n" in shown.out
        assert "[a]" in shown.out
        assert "[b]" in shown.out
        assert f"  {out / 'stability.json'}\n" in shown.out
        assert shown.out.splitlines()[-1] == str(out / "report.html")
        assert shown.err == "powerspherical: efficiency: RuntimeError: no clock\n"

    def test_a_failed_check_is_the_exit_status(self, calls, monkeypatch, tmp_path, capsys):
        monkeypatch.setattr(running.module("stability"), "run", lambda task: Outcome([], passed=False))
        assert reproduce("--out", tmp_path) == 1
        assert "vae" in calls
        assert capsys.readouterr().err == "powerspherical: a check failed in stability\n"

    def test_a_report_that_cannot_be_written_hides_nothing(self, calls, monkeypatch, tmp_path, capsys):
        def damaged(folder):
            raise ReportError("figure1.json is damaged")

        fail(monkeypatch, "vae", RuntimeError("no luck"))
        monkeypatch.setattr(page, "write_report", damaged)
        assert reproduce("--out", tmp_path) == 1
        shown = capsys.readouterr()
        assert "efficiency: shown: all about efficiency" in shown.out
        says = "vae: RuntimeError: no luck; no report: figure1.json is damaged"
        assert shown.err == f"powerspherical: {says}\n"

    @pytest.mark.slow
    def test_a_terminal_that_has_not_all_letters(self, tmp_path):
        """Characters that it cannot encode appear as question marks, and the command succeeds."""
        code = (
            f'from powerspherical import cli; cli.main(["reproduce", "figure1", "--out", {str(tmp_path)!r}])'
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "circle, ? = 4 " in done.stdout
        assert {path.name for path in tmp_path.iterdir()} == {*figure1.FILES, "report.html"}


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal):
    """A log gets a line every minute. On a terminal the bar is enough."""
    clock = 0.0
    console = Console(file=io.StringIO(), get_time=lambda: clock)
    shown = Progress(console=console, disable=not terminal)
    advance = running.Advance(shown, "vae")
    for clock in range(1, 300):
        advance(clock / 300)
    left = [(20, 4), (40, 3), (60, 2), (80, 1)]
    lines = ["vae: started", *(f"vae: {done}%, about {minutes} min 0 s left" for done, minutes in left)]
    assert console.file.getvalue().splitlines() == ([] if terminal else lines)
    assert shown.tasks[0].completed == 299 / 300
