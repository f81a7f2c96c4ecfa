"""`powerspherical reproduce`: files, output, exit status, continuation and wrong use."""

import io
import json
import os
import signal
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import get_args

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical_paper import efficiency, figure1, properties, report, stability
from powerspherical_paper.autoencoder import vae
from powerspherical_paper.command import MODULES, Advance, Experiment, rounded
from powerspherical_paper.report.findings import Finding, Table, Verdict
from powerspherical_paper.results import Outcome, write_text
from result_folders import write_all

NAMES = get_args(Experiment)


@pytest.fixture
def calls(monkeypatch):
    """Replace every experiment by one that records its arguments and writes a file, and the report by an empty file."""
    seen = {}
    monkeypatch.setattr(report, "write_report", lambda folder: write_text(folder / report.NAME, ""))
    monkeypatch.setattr(report, "read", lambda path: SimpleNamespace(finding=finding(path.stem)))
    for name in NAMES:

        def run(out, *, name=name, **given):
            seen[name] = given | {"threads": torch.get_num_threads()}
            return Outcome([write_text(out / f"{name}.json", "{}")])

        def takes_more(out, *, data=None, data_dir=None, seeds=None, jobs=1, run=run, **given):
            return run(out, data=data, data_dir=data_dir, seeds=seeds, jobs=jobs, **given)

        replace(monkeypatch, name, takes_more if name == "vae" else run)
    return seen


def finding(name):
    return Finding(Verdict.SHOWN, f"all about {name}", tables=[Table("A table.", ["[a]"], [["[b]"]])])


def replace(monkeypatch, name, run):
    module = ModuleType(name)
    module.run = run
    module.FILES = (f"{name}.json", f"{name}.png")
    monkeypatch.setitem(sys.modules, f"powerspherical_paper.{MODULES.get(name, name)}", module)


def raising(error):
    def run(out, **_):
        raise error

    return run


def reproduce(*arguments):
    return cli.run(["reproduce", *map(str, arguments)])


class TestOptions:
    def test_they_reach_the_experiments(self, calls, tmp_path):
        """What is not given is the affair of the experiment. Torch's threads are set for the time of the command."""
        before = torch.get_num_threads()
        given = ["--quick", "--device", "meta", "--seed", "7", "--threads", "3", "--out", tmp_path]
        special = ["--data", "digits", "--data-dir", tmp_path, "--seeds", "3", "--jobs", "2"]
        assert reproduce(*given, *special) == 0
        assert torch.get_num_threads() == before
        assert tuple(calls) == NAMES == ("figure1", "properties", "stability", "efficiency", "vae")
        more = {"data": "digits", "data_dir": tmp_path, "seeds": 3, "jobs": 2}
        for name, options in calls.items():
            assert options.pop("progress")
            common = {"seed": 7, "quick": True, "device": "meta", "threads": 3}
            assert options == (common | more if name == "vae" else common)
        assert reproduce("vae", "--out", tmp_path / "new") == 0
        assert {calls["vae"][name] for name in ("data", "data_dir", "seeds")} == {None}
        assert (calls["vae"]["jobs"], calls["vae"]["threads"]) == (1, 1)

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
        assert "--device" in text
        assert "After an interruption or an error, the same command continues" in text


class TestFiles:
    def test_existing_results_are_refused(self, calls, tmp_path, capsys):
        """Whoever made them. --force replaces them, and the report is kept up to date without it."""
        command = ["reproduce", "figure1", "--out", str(tmp_path)]
        assert cli.run(command) == 0
        calls.clear()
        capsys.readouterr()
        assert_wrong_use(command, f"{tmp_path / 'figure1.json'} exists", capsys)
        assert calls == {}
        assert reproduce("stability", "--out", tmp_path) == 0
        assert cli.run([*command, "--force"]) == 0
        assert [*calls] == ["stability", "figure1"]

    @pytest.mark.parametrize("name", ["figure1.png", "efficiency_meta.png", "report.html"])
    def test_foreign_files_are_refused(self, name, calls, tmp_path, capsys):
        (tmp_path / name).write_text("mine")
        command = ["reproduce", "all", "--device", "meta", "--out", str(tmp_path)]
        assert_wrong_use(command, f"{tmp_path / name} exists", capsys)
        assert calls == {}
        assert (tmp_path / name).read_text() == "mine"

    @pytest.mark.slow
    def test_each_experiment_lists_its_files(self, tmp_path):
        with pytest.MonkeyPatch.context() as patch:
            write_all(tmp_path, patch)
        (tmp_path / "vae_images.png").write_text("")
        listed = {name for one in (figure1, properties, stability, efficiency, vae) for name in one.FILES}
        assert {path.name for path in tmp_path.iterdir()} == listed

    def test_missing_images_are_told_at_once(self, tmp_path, capsys):
        """Before the other experiments run for hours."""
        images, out = tmp_path / "images", tmp_path / "out"
        images.mkdir()
        assert reproduce("--data-dir", images, "--out", out) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("powerspherical: mnist: neither ")
        assert list(out.iterdir()) == []


class TestContinuation:
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no clock")])
    def test_the_same_command_continues(self, error, calls, monkeypatch, tmp_path, capsys):
        """It skips what is done, although it exists. When all is done, it is refused like any other command."""
        module = sys.modules["powerspherical_paper.stability"]
        works, module.run = module.run, raising(error)
        command = ["reproduce", "all", "--seed", "3", "--out", str(tmp_path)]
        status = cli.run(command)
        assert status == (130 if isinstance(error, KeyboardInterrupt) else 1)
        assert [*calls] == ["figure1", "properties"]
        capsys.readouterr()
        for other in (["--quick"], ["--seeds", "2"]):  # another command does not continue it
            assert_wrong_use([*command, *other], f"{tmp_path / 'figure1.json'} exists", capsys)
        calls.clear()
        module.run = works
        assert cli.run([*command, "--jobs", "2"]) == 0  # on as many processes as you like
        assert [*calls] == ["stability", "efficiency", "vae"]
        assert not (tmp_path / "unfinished.json").exists()
        capsys.readouterr()
        assert_wrong_use(command, f"{tmp_path / 'figure1.json'} exists", capsys)

    def test_force_begins_anew(self, calls, monkeypatch, tmp_path):
        module = sys.modules["powerspherical_paper.stability"]
        works, module.run = module.run, raising(RuntimeError("no clock"))
        assert reproduce("--out", tmp_path) == 1
        module.run = works
        calls.clear()
        assert reproduce("--out", tmp_path, "--force") == 0
        assert tuple(calls) == NAMES

    def test_a_damaged_record_continues_nothing(self, calls, tmp_path):
        (tmp_path / "unfinished.json").write_text('{"settings"')
        assert reproduce("figure1", "--out", tmp_path) == 0
        assert not (tmp_path / "unfinished.json").exists()

    @pytest.mark.slow
    def test_a_real_signal(self, tmp_path):
        """Finished results are shown and reported, and one line says how to continue."""
        code = f"""
import signal, time
from powerspherical import cli
from powerspherical_paper import properties

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore SIGINT
properties.run = lambda out, **_: time.sleep(300)
cli.main(["reproduce", "--data", "digits", "--out", {str(tmp_path)!r}])
"""
        lines = []
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        ) as process:
            while not lines or lines[-1] not in ("properties: started\n", ""):
                lines.append(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            lines += process.stdout.readlines()
            error = process.stderr.read()
        assert process.returncode == 130, error
        finished = [line for line in lines if "%" not in line]  # a slow machine has time for progress
        assert finished[0] == "figure1: started\n"
        assert "figure1: shown: 1,000 draws from each of 6 distributions.\n" in finished
        assert lines[-1] == f"{tmp_path / 'report.html'}\n"
        says = "interrupted in properties; finished results are kept, and the same command continues"
        assert error == f"powerspherical: {says}\n"
        assert json.loads((tmp_path / "unfinished.json").read_text())["done"] == ["figure1"]


class TestOutput:
    def test_findings_files_and_errors(self, calls, monkeypatch, tmp_path, capsys):
        """Names and tables in brackets are no markup. An error takes one line, and hides nothing found before."""
        out = tmp_path / "new" / "[red]"
        replace(monkeypatch, "efficiency", raising(RuntimeError("no\nclock")))
        assert reproduce("--out", out) == 1
        shown = capsys.readouterr()
        assert "stability: shown: all about stability\n" in shown.out
        assert "[a]" in shown.out
        assert "[b]" in shown.out
        assert f"  {out / 'stability.json'}\n" in shown.out
        assert shown.out.splitlines()[-1] == str(out / "report.html")
        assert shown.err == "powerspherical: efficiency: RuntimeError: no clock\n"

    def test_a_failed_check_is_the_exit_status(self, calls, monkeypatch, tmp_path, capsys):
        replace(monkeypatch, "stability", lambda out, **_: Outcome([], passed=False))
        assert reproduce("--out", tmp_path) == 1
        assert "vae" in calls
        assert capsys.readouterr().err == "powerspherical: a check failed in stability\n"
        assert not (tmp_path / "unfinished.json").exists()

    def test_an_error_of_ours_needs_no_type(self, calls, monkeypatch, tmp_path, capsys):
        replace(monkeypatch, "figure1", raising(report.ReportError("say no more")))
        assert reproduce("--out", tmp_path) == 1
        assert capsys.readouterr() == ("figure1: started\n", "powerspherical: figure1: say no more\n")

    def test_a_report_that_cannot_be_written_hides_nothing(self, calls, monkeypatch, tmp_path, capsys):
        replace(monkeypatch, "vae", raising(RuntimeError("no luck")))
        monkeypatch.setattr(report, "write_report", raising(report.ReportError("figure1.json is damaged")))
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
        environment = os.environ | {"PYTHONIOENCODING": "ascii"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "circle, ? = 4 " in done.stdout
        assert {path.name for path in tmp_path.iterdir()} == {*figure1.FILES, "report.html"}


class TestProgress:
    """With a clock that the tests control."""

    clock = 0.0

    @pytest.fixture
    def shown(self):
        return Progress(console=Console(file=io.StringIO(), get_time=lambda: self.clock), disable=True)

    def test_a_log_gets_a_line_now_and_then(self, shown):
        """The first line comes at the start, later ones predict the remaining time, and there are few of them."""
        advance = Advance(shown, "vae")
        while self.clock < 300:
            self.clock += 1.0
            advance(self.clock / 300)
        lines = shown.console.file.getvalue().splitlines()
        assert lines[:3] == ["vae: started", "vae: 1%, about 5 min left", "vae: 4%, about 5 min left"]
        assert lines[-1] == "vae: 91%, about 30 s left"
        assert len(lines) < 30
        advance.end()
        assert shown.tasks == []

    def test_no_prediction_from_a_single_step(self, shown):
        advance = Advance(shown, "vae")
        self.clock = 30.0
        advance(0.25)
        assert shown.console.file.getvalue() == "vae: started\nvae: 25%\n"

    def test_on_a_terminal_the_bars_are_enough(self, shown):
        shown.disable = False
        advance = Advance(shown, "vae")
        self.clock = 30.0
        advance(0.5)
        assert shown.console.file.getvalue() == ""
        assert shown.tasks[0].completed == 0.5

    @pytest.mark.parametrize(
        ("seconds", "told"),
        [(3, "10 s"), (38, "40 s"), (57, "1 min"), (230, "4 min"), (5000, "83 min"), (9000, "2 h")],
    )
    def test_rounded(self, seconds, told):
        assert rounded(seconds) == told
