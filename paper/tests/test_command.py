"""`powerspherical reproduce`: files, output, exit status and wrong use."""

import json
import os
import re
import signal
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import get_args

import pytest
import torch

from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical_paper import efficiency, figure1, properties, report, stability
from powerspherical_paper._maps import Grid
from powerspherical_paper.autoencoder.table import POSTERIORS
from powerspherical_paper.command import MODULES, Experiment, Posterior
from powerspherical_paper.report.findings import Finding, Table, Verdict
from powerspherical_paper.results import Outcome, write_text

NAMES = get_args(Experiment)


@pytest.fixture
def small(monkeypatch):
    """Make the experiments small enough for a test; no auto-encoder is trained."""
    for module, changes in (
        (figure1, {"samples": 50}),
        (properties, {"dims": [3], "concentrations": [5.0], "samples": 1000}),
        (stability, {"samples": Grid.of((1, 10), (1, 10))}),
        (efficiency, {"concentrations": [1.0, 10.0], "trials": 1, "draws": 1}),
    ):
        full = module.run
        monkeypatch.setattr(
            module, "run", lambda out, full=full, changes=changes, **given: full(out, **given, **changes)
        )
    replace(monkeypatch, "vae", lambda out, **_: Outcome([]))


@pytest.fixture
def calls(monkeypatch):
    """Replace every experiment by one that only records its arguments, and the report by an empty file."""
    seen = {}
    monkeypatch.setattr(report, "write_report", lambda folder: write_text(folder / "report.html", ""))
    monkeypatch.setattr(report, "read", lambda path: SimpleNamespace(finding=finding(path.stem)))
    for name in NAMES:

        def run(out, *, name=name, **given):
            seen[name] = given | {"threads": torch.get_num_threads()}
            text = json.dumps({"command": f"powerspherical reproduce {name} --seed 0"})
            return Outcome([write_text(out / f"{name}.json", text)])

        def takes_more(
            out, *, data=None, data_dir=None, seeds=None, jobs=1, posterior=None, run=run, **given
        ):
            return run(
                out, data=data, data_dir=data_dir, seeds=seeds, jobs=jobs, posterior=posterior, **given
            )

        replace(monkeypatch, name, takes_more if name == "vae" else run)
    return seen


def finding(name):
    return Finding(Verdict.SHOWN, f"all about {name}", tables=[Table("A table.", ["[a]"], [["[b]"]])])


def replace(monkeypatch, name, run):
    module = ModuleType(name)
    module.run = run
    module.FILES = (f"{name}.json",)
    monkeypatch.setitem(sys.modules, f"powerspherical_paper.{MODULES.get(name, name)}", module)


def raising(error):
    def run(out, **_):
        raise error

    return run


@pytest.mark.slow
def test_reproduce_all(small, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert cli.run(["reproduce", "--out", str(out), "--seed", "4"]) == 0
    figures = [
        f"{name}.{end}" for name in ("efficiency", "figure1", "stability") for end in ("json", "png", "svg")
    ]
    others = ["accuracy.png", "accuracy.svg", "properties.json", "properties.txt", "report.html"]
    assert sorted(path.name for path in out.iterdir()) == sorted(figures + others)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[-1] == str(out / "report.html")
    assert "7 of 7 comparisons agree" in shown.out


def test_reproduce_one(small, tmp_path):
    assert cli.run(["reproduce", "properties", "--out", str(tmp_path)]) == 0
    made = ["properties.json", "properties.txt", "report.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == made


def test_options_reach_the_experiments(calls, tmp_path):
    given = ["--quick", "--device", "meta", "--seed", "7", "--out", str(tmp_path)]
    special = ["--data", "digits", "--data-dir", str(tmp_path), "--seeds", "3", "--jobs", "2"]
    special += ["--posterior", "spherical-cauchy"]
    assert cli.run(["reproduce", *given, *special]) == 0
    assert tuple(calls) == NAMES == ("figure1", "properties", "stability", "efficiency", "vae")
    for name, options in calls.items():
        assert options.pop("progress")
        assert options.pop("threads") == 1
        common = {"seed": 7, "quick": True, "device": "meta"}
        more = {
            "data": "digits",
            "data_dir": tmp_path,
            "seeds": 3,
            "jobs": 2,
            "posterior": "spherical_cauchy",
        }
        assert options == (common | more if name == "vae" else common)


def test_every_posterior_of_the_table_can_be_chosen():
    assert [name.replace("-", "_") for name in get_args(Posterior)] == list(POSTERIORS)


def test_an_option_that_is_not_given_is_the_experiments_own_affair(calls, tmp_path):
    assert cli.run(["reproduce", "vae", "--out", str(tmp_path)]) == 0
    assert (calls["vae"]["data"], calls["vae"]["seeds"], calls["vae"]["jobs"]) == (None, None, 1)


@pytest.mark.parametrize(("given", "threads"), [([], 1), (["--threads", "3"], 3)])
def test_one_thread_unless_asked(given, threads, calls, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert cli.run(["reproduce", *given, "--out", str(tmp_path)]) == 0
        assert {options["threads"] for options in calls.values()} == {threads}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_option_that_no_experiment_takes(calls, tmp_path, capsys):
    assert cli.run(["reproduce", "figure1", "--data-dir", str(tmp_path), "--out", str(tmp_path / "new")]) == 2
    assert "'--data-dir': figure1 does not take this option" in capsys.readouterr().err
    assert calls == {}
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_is_the_exit_status(calls, monkeypatch, tmp_path, capsys):
    replace(monkeypatch, "stability", lambda out, **_: Outcome([], passed=False))
    assert cli.run(["reproduce", "--out", str(tmp_path)]) == 1
    assert "vae" in calls
    shown = capsys.readouterr()
    assert shown.err == "powerspherical: a check failed in stability\n"


def test_an_error_keeps_what_was_found_before(calls, monkeypatch, tmp_path, capsys):
    replace(monkeypatch, "efficiency", raising(RuntimeError("no\nclock")))
    assert cli.run(["reproduce", "--out", str(tmp_path)]) == 1
    assert list(calls) == ["figure1", "properties", "stability"]
    shown = capsys.readouterr()
    assert "stability: shown: all about stability\n" in shown.out
    assert "[a]" in shown.out  # a table, whose brackets are no markup
    assert "[b]" in shown.out
    assert f"  {tmp_path / 'stability.json'}\n" in shown.out
    assert shown.out.splitlines()[-1] == str(tmp_path / "report.html")
    assert shown.err == "powerspherical: efficiency: RuntimeError: no clock\n"


def test_an_error_of_ours_needs_no_type(calls, monkeypatch, tmp_path, capsys):
    replace(monkeypatch, "figure1", raising(report.ReportError("say no more")))
    assert cli.run(["reproduce", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("figure1: started\n", "powerspherical: figure1: say no more\n")


def test_a_report_that_cannot_be_written_hides_nothing(calls, monkeypatch, tmp_path, capsys):
    replace(monkeypatch, "vae", raising(RuntimeError("no luck")))
    monkeypatch.setattr(report, "write_report", raising(report.ReportError("figure1.json is damaged")))
    assert cli.run(["reproduce", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "efficiency: shown: all about efficiency" in shown.out
    assert shown.err == "powerspherical: vae: RuntimeError: no luck; no report: figure1.json is damaged\n"


def test_images_that_are_missing_are_missed_at_once(tmp_path, capsys):
    """Before the other experiments run for hours."""
    images, out = tmp_path / "images", tmp_path / "out"
    images.mkdir()
    assert cli.run(["reproduce", "--data-dir", str(images), "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(
        r"powerspherical: mnist: neither .* contains train-images.* --data digits\n", shown.err
    )
    assert list(out.iterdir()) == []


def test_a_folder_with_brackets_is_shown_as_it_is(calls, tmp_path, capsys):
    """Names in brackets are not parsed as rich markup."""
    out = tmp_path / "[red]"
    assert cli.run(["reproduce", "figure1", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "report.html")


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_found_before(tmp_path):
    """After a real signal, finished results are shown and reported, and one line says how to resume."""
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
    assert (tmp_path / "report.html").exists()
    assert error == (
        "powerspherical: interrupted in properties; finished results are kept, and the same command resumes trainings\n"
    )


@pytest.mark.slow
def test_a_terminal_that_has_not_all_letters(tmp_path):
    """Characters that it cannot encode appear as question marks, and the command succeeds."""
    code = f"""
from powerspherical import cli

cli.main(["reproduce", "figure1", "--out", {str(tmp_path)!r}])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "circle, ? = 4 " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reproduce", "figure9"], "figure9"),
        (["reproduce", "--seed", "many"], "--seed"),
        (["reproduce", "--seed", "-1"], "--seed"),
        (["reproduce", "--seed", "9999999999"], "--seed"),
        (["reproduce", "--frobnicate"], "--frobnicate"),
        (["reproduce", "--device", "toaster"], "--device"),
        (["reproduce", "vae", "--data", "imagenet"], "--data"),
        (["reproduce", "vae", "--data-dir", "no/such/folder"], "no/such/folder"),
        (["reproduce", "vae", "--seeds", "0"], "--seeds"),
        (["reproduce", "vae", "--jobs", "0"], "--jobs"),
        (["reproduce", "vae", "--posterior", "cauchy"], "--posterior"),
        (["reproduce", "figure1", "--posterior", "gaussian"], "only vae does"),
        (["reproduce", "--threads", "0"], "--threads"),
    ],
)
def test_wrong_use(arguments, says, calls, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert_wrong_use(arguments, says, capsys)
    assert calls == {}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(calls, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.run(["reproduce", "figure1", "--out", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"cannot write in the folder {tmp_path / 'file'}" in error
    assert calls == {}


def test_help(capsys):
    assert cli.run(["reproduce", "--help"]) == 0
    assert "--device" in capsys.readouterr().out
