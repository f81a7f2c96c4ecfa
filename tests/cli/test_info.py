"""`powerspherical info`: versions, devices and the accuracy check."""

import json
import math
import re
from importlib.metadata import version

import pytest
import torch

from powerspherical import cli
from powerspherical.families import POWER_SPHERICAL


def test_what_a_person_sees(capsys):
    assert cli.run(["info"]) == 0
    shown = capsys.readouterr()
    names = "powerspherical", "torch threads", "native kernel", "fused kernels", "von mises fisher"
    assert all(text in shown.out for text in (*names, torch.__version__, version("numpy")))
    assert shown.out.count("passes") == 8
    assert shown.err == ""


def test_what_a_program_sees(capsys):
    """The keys of the JSON are an interface: the help names those that are printed."""
    assert cli.run(["info", "--help"]) == 0
    documented = set(re.findall(r'"(\w+)"', capsys.readouterr().out))
    assert cli.run(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    first, *others = facts["accuracy"]
    assert list(facts) == ["versions", "hardware", "accuracy"]
    assert documented == {*facts, "python", *facts["hardware"], *first}
    assert "python" in facts["versions"]
    assert facts["versions"]["torch"] == torch.__version__
    assert len(facts["hardware"]["cuda"]) == torch.cuda.device_count()
    assert facts["hardware"]["native_kernel"]
    assert facts["hardware"]["fused_kernels"]
    assert len(others) == 7
    for check in facts["accuracy"]:
        assert check.keys() == first.keys()
        assert check["worst"] <= check["tolerance"]
        assert check["passed"] is True


@pytest.mark.parametrize(
    ("value", "shown", "worst"), [(0.5, "5.0e-01", pytest.approx(0.5)), (math.nan, "not finite", None)]
)
def test_a_check_that_fails_is_the_exit_status(value, shown, worst, monkeypatch, capsys):
    original = POWER_SPHERICAL.relative_entropy

    def relative_entropy(self, kappa, dim):
        return original(kappa, dim) * value

    monkeypatch.setattr(type(POWER_SPHERICAL), "relative_entropy", relative_entropy)
    message = (
        "powerspherical: not accurate on this machine: power_spherical kl_uniform in float32,"
        " power_spherical kl_uniform in float64\n"
    )
    assert cli.run(["info"]) == 1
    out, err = capsys.readouterr()
    failed = [" ".join(line.split()) for line in out.splitlines() if line.endswith("FAILS")]
    for line, dtype in zip(failed, ("float32", "float64"), strict=True):
        assert line.startswith(f"power spherical kl uniform {dtype} {shown} ")
    assert err == message

    assert cli.run(["info", "--json"]) == 1
    out, err = capsys.readouterr()
    checks = [check for check in json.loads(out)["accuracy"] if not check["passed"]]
    assert [check["worst"] for check in checks] == [worst, worst]
    assert err == message
