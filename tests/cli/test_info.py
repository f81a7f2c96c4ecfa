"""`powerspherical info`: versions, devices and the accuracy check."""

import json
import math
import re
from importlib.metadata import version

import pytest
import torch

from powerspherical import cli
from powerspherical.families import VON_MISES_FISHER


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
    assert shown.out.count("passes") == 8
    assert shown.err == ""


def test_what_a_program_sees(capsys):
    assert cli.run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == ["versions", "hardware", "accuracy"]
    assert facts["versions"]["torch"] == torch.__version__
    assert len(facts["hardware"]["cuda"]) == torch.cuda.device_count()
    assert facts["hardware"]["native_kernel"]
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


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_a_check_that_fails_is_the_exit_status(value, monkeypatch, capsys):
    original = VON_MISES_FISHER.relative_entropy
    monkeypatch.setattr(
        type(VON_MISES_FISHER), "relative_entropy", lambda self, kappa, dim: original(kappa, dim) * value
    )
    assert cli.run(["info"]) == 1
    shown = capsys.readouterr()
    failed = [line.split() for line in shown.out.splitlines() if line.endswith("FAILS")]
    assert [(line[:6], line[6] if value == 0.5 else line[6:8]) for line in failed] == [
        (["von", "mises", "fisher", "kl", "uniform", dtype], "5.0e-01" if value == 0.5 else ["not", "finite"])
        for dtype in ("float32", "float64")
    ]
    message = (
        "powerspherical: not accurate on this machine: von_mises_fisher kl_uniform in float32,"
        " von_mises_fisher kl_uniform in float64\n"
    )
    assert shown.err == message

    assert cli.run(["info", "--json"]) == 1
    shown = capsys.readouterr()
    checks = [check for check in json.loads(shown.out)["accuracy"] if not check["passed"]]
    assert [check["worst"] for check in checks] == (
        pytest.approx([0.5, 0.5]) if value == 0.5 else [None, None]
    )
    assert shown.err == message
