"""`powerspherical info`: versions, devices and the accuracy check."""

import json
import math
import re
from importlib.metadata import version

import pytest
import torch

from powerspherical import cli
from powerspherical._native.library import description as native_kernel
from powerspherical._selfcheck import accuracy


def test_what_a_person_sees(capsys):
    assert cli.run(["info"]) == 0
    shown = capsys.readouterr()
    for text in (
        "powerspherical",
        torch.__version__,
        version("numpy"),
        "torch threads",
        "native kernel",
        "von mises fisher",
    ):
        assert text in shown.out
    assert shown.out.count("passes") == len(accuracy.check())
    assert shown.err == ""


def test_what_a_program_sees(capsys):
    assert cli.run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == ["versions", "hardware", "accuracy"]
    assert facts["versions"]["torch"] == torch.__version__
    assert len(facts["hardware"]["cuda"]) == torch.cuda.device_count()
    assert facts["hardware"]["native_kernel"] == native_kernel()
    assert [check["worst"] <= check["tolerance"] for check in facts["accuracy"]] == [True] * 8
    assert all(check["passed"] for check in facts["accuracy"])


def test_the_help_names_every_key(capsys):
    """The keys of the JSON are an interface: those documented are those printed."""
    assert cli.run(["info", "--help"]) == 0
    documented = set(re.findall(r'"(\w+)"', capsys.readouterr().out))
    assert cli.run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert documented == {*facts, "python", *facts["hardware"], *facts["accuracy"][0]}
    assert "python" in facts["versions"]
    assert all(set(check) == set(facts["accuracy"][0]) for check in facts["accuracy"])


@pytest.mark.parametrize(
    ("worst", "shown_as", "in_json"), [(0.5, "5.0e-01", 0.5), (math.inf, "not finite", None)]
)
def test_a_check_that_fails_is_the_exit_status(worst, shown_as, in_json, monkeypatch, capsys):
    checks = [
        accuracy.Check("power_spherical", "kl_uniform", "float32", 1e-7, 2e-6),
        accuracy.Check("power_spherical", "log_density", "float64", worst, 1e-12),
    ]
    monkeypatch.setattr(accuracy, "check", lambda device: checks)
    assert cli.run(["info"]) == 1
    shown = capsys.readouterr()
    assert shown_as in shown.out
    assert "FAILS" in shown.out
    message = "powerspherical: not accurate on this machine: power_spherical log_density in float64\n"
    assert shown.err == message

    assert cli.run(["info", "--json"]) == 1
    shown = capsys.readouterr()
    assert [check["passed"] for check in json.loads(shown.out)["accuracy"]] == [True, False]
    assert json.loads(shown.out)["accuracy"][1]["worst"] == in_json
    assert shown.err == message
