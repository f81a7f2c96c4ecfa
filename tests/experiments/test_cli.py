"""The command: what it writes, what it says, and its exit status."""

import sys

import pytest

from powerspherical import cli
from powerspherical.experiments import figure1, properties
from powerspherical.experiments._results import Outcome


@pytest.fixture
def small(monkeypatch):
    """Make the experiments small enough for a test."""
    for module, changes in (
        (figure1, {"samples": 50}),
        (properties, {"dims": [3], "concentrations": [5.0], "samples": 1000}),
    ):
        full = module.run
        monkeypatch.setattr(
            module, "run", lambda out, full=full, changes=changes, **given: full(out, **given, **changes)
        )


def test_reproduce_all(small, tmp_path, capsys):
    assert cli.run(["reproduce", "--out", str(tmp_path / "new" / "folder"), "--seed", "4"]) == 0
    made = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert made == ["figure1.json", "figure1.png", "figure1.svg", "properties.json", "properties.txt"]
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.rstrip().splitlines()[-1].strip() == str(tmp_path / "new" / "folder" / "properties.txt")
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing command"),
        (["frobnicate"], "frobnicate"),
        (["reproduce", "figure9"], "figure9"),
        (["reproduce", "--seed", "many"], "--seed"),
        (["reproduce", "--seed", "-1"], "--seed"),
        (["reproduce", "--frobnicate"], "--frobnicate"),
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
