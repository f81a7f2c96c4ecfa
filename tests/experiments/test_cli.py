"""The command: what it writes, what it says, and its exit status."""

import importlib
import sys
from typing import get_args

import pytest

from powerspherical import cli
from powerspherical.experiments import efficiency, figure1, properties, stability
from powerspherical.experiments._results import Outcome


@pytest.fixture
def small(monkeypatch):
    """Make the experiments small enough for a test."""
    for module, changes in (
        (figure1, {"samples": 50}),
        (properties, {"dims": [3], "concentrations": [5.0], "samples": 1000}),
        (stability, {"samples": stability.Grid([2, 9], [1, 9]), "forms": stability.Grid([3, 9], [1, 9])}),
        (efficiency, {"concentrations": [1.0, 10.0], "trials": 1, "draws": 1}),
    ):
        full = module.run
        monkeypatch.setattr(
            module, "run", lambda out, full=full, changes=changes, **given: full(out, **given, **changes)
        )


def test_reproduce_all(small, tmp_path, capsys):
    assert cli.run(["reproduce", "--out", str(tmp_path / "new" / "folder"), "--seed", "4"]) == 0
    made = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    figures = [
        f"{name}.{end}" for name in ("efficiency", "figure1", "stability") for end in ("json", "png", "svg")
    ]
    assert made == sorted([*figures, "accuracy.png", "accuracy.svg", "properties.json", "properties.txt"])
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.rstrip().splitlines()[-1].strip() == str(tmp_path / "new" / "folder" / "efficiency.json")
    assert "7 of 7 comparisons agree" in shown.out


def test_reproduce_one(small, tmp_path, capsys):
    assert cli.run(["reproduce", "properties", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["properties.json", "properties.txt"]


def test_a_failed_check_is_the_exit_status(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        properties, "run", lambda out, **_: Outcome([out / "x"], passed=False, summary="0 of 1 agree")
    )
    assert cli.run(["reproduce", "properties", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "powerspherical: a check failed in properties\n"


def test_options_reach_the_experiments(monkeypatch, tmp_path):
    seen = {}
    for name in get_args(cli.Experiment):
        module = importlib.import_module(f"powerspherical.experiments.{name}")

        def run(out, name=name, **given):
            seen[name] = given
            return Outcome([])

        monkeypatch.setattr(module, "run", run)
    assert cli.run(["reproduce", "--quick", "--device", "meta", "--seed", "7", "--out", str(tmp_path)]) == 0
    assert len(seen) == 4
    for given in seen.values():
        assert given.pop("progress")
        assert given == {"seed": 7, "quick": True, "device": "meta"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing command"),
        (["frobnicate"], "frobnicate"),
        (["reproduce", "figure9"], "figure9"),
        (["reproduce", "--seed", "many"], "--seed"),
        (["reproduce", "--seed", "-1"], "--seed"),
        (["reproduce", "--frobnicate"], "--frobnicate"),
        (["reproduce", "--device", "toaster"], "--device"),
    ],
)
def test_wrong_use(arguments, says, capsys):
    assert cli.run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert shown.err.startswith("powerspherical: ")
    assert shown.err.count("\n") == 1


def test_a_folder_that_cannot_be_made(small, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.run(["reproduce", "figure1", "--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "file" in error


def test_help(capsys):
    assert cli.run(["reproduce", "--help"]) == 0
    assert "--seed" in capsys.readouterr().out


def test_main_leaves_with_the_status(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["powerspherical", "nonsense"])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert leaving.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
