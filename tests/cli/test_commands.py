"""The command as a whole: help, wrong use, commands of other packages."""

import runpy
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from helpers.command import assert_wrong_use
from powerspherical import __version__, cli


@pytest.mark.parametrize(
    ("arguments", "says"), [(["frobnicate"], "frobnicate"), (["info", "--device", "toaster"], "--device")]
)
def test_wrong_use(arguments, says, capsys):
    assert_wrong_use(arguments, says, capsys)


@pytest.mark.parametrize("command", ["sample", "info", "fit", "cluster", "predict"])
def test_help(command, capsys):
    assert cli.run([command, "--help"]) == 0
    full = capsys.readouterr().out
    assert ("--device" if command in ("sample", "info") else "--columns") in full
    assert cli.run([command, "-h"]) == 0
    assert capsys.readouterr().out == full


def test_the_command_alone(capsys):
    """Without arguments it shows its help, as an error."""
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr() == (f"powerspherical {__version__}\n", "")
    assert cli.run(["--help"]) == 0
    full = capsys.readouterr().out
    assert cli.run([]) == 2
    assert capsys.readouterr() == ("", full)


def test_the_package_can_be_run_by_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["powerspherical", "nonsense"])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_module("powerspherical", run_name="__main__")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("powerspherical: No such command 'nonsense'")
    assert "Traceback" not in shown.err


@pytest.fixture
def points(monkeypatch):
    """The entry points of other packages: a list that a test can fill."""
    found = []
    monkeypatch.setattr(metadata, "entry_points", lambda *, group, name=None: found)
    return found


def test_other_packages_add_commands(points, capsys):
    def add_to(app):
        @app.command()
        def greet(whom: str) -> None:
            print("hello", whom)

    points.append(SimpleNamespace(name="greet", load=lambda: add_to))
    assert cli.run(["greet", "world"]) == 0
    assert capsys.readouterr() == ("hello world\n", "")


def test_a_command_that_cannot_be_loaded_stops_no_other(points, capsys):
    def load():
        raise ImportError("no module named hello")

    points.append(SimpleNamespace(name="greet", load=load))
    assert cli.run(["sample", "uniform", "-n", "1"]) == 0
    assert capsys.readouterr().err == (
        "powerspherical: the command greet cannot be loaded: ImportError: no module named hello\n"
    )


def test_reproduce_says_where_it_comes_from(points, capsys):
    assert_wrong_use(["reproduce", "all", "--quick"], "pip install ./paper", capsys)
