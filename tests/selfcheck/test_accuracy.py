"""The accuracy check of `powerspherical info`: its table is right, and wrong functions do not pass."""

import json
import math
from importlib.resources import files
from itertools import groupby
from pathlib import Path

import pytest
import torch

from helpers import mpmath_tables
from powerspherical import cli
from powerspherical.families import POWER_SPHERICAL

FAMILIES = ("power_spherical", "von_mises_fisher")
TABLE = json.loads(files("powerspherical").joinpath("_selfcheck", "accuracy.json").read_bytes())
families = pytest.mark.parametrize("family", FAMILIES)


def cells(family):
    """For each dimension κ, 1-t, the KL divergence to the uniform and the log-density there."""
    for dim, rows in groupby(TABLE[family], key=lambda row: row[0]):
        yield int(dim), *torch.tensor(list(rows), dtype=torch.float64).unbind(1)[1:]


@pytest.fixture
def check(capsys):
    """Run the command, and return its exit status and its checks by family, quantity and dtype."""

    def run():
        status = cli.run(["info", "--json"])
        found = json.loads(capsys.readouterr().out)["accuracy"]
        return status, {(one["family"], one["quantity"], one["dtype"]): one for one in found}

    return run


def test_our_functions_keep_to_the_table(check):
    status, checks = check()
    assert status == 0
    assert set(checks) == {
        (family, quantity, dtype)
        for family in FAMILIES
        for quantity in ("kl_uniform", "log_density")
        for dtype in ("float32", "float64")
    }
    for (*_, dtype), one in checks.items():
        assert one["passed"], one
        assert 0 < one["worst"] <= one["tolerance"] == {"float32": 2e-6, "float64": 1e-12}[dtype]


@pytest.mark.parametrize("spoil", [lambda kl: kl * (1 + 1e-5), lambda kl: kl * math.nan, torch.zeros_like])
def test_a_wrong_function_is_found(monkeypatch, check, spoil):
    right, offset = POWER_SPHERICAL.relative_entropy, POWER_SPHERICAL.offset
    monkeypatch.setattr(POWER_SPHERICAL, "relative_entropy", lambda kappa, dim: spoil(right(kappa, dim)))
    monkeypatch.setattr(POWER_SPHERICAL, "offset", lambda kappa, dim: spoil(offset(kappa, dim)))
    status, checks = check()
    assert status == 1
    for (family, *_), one in checks.items():
        assert one["passed"] == (family == "von_mises_fisher"), one


def test_a_wrong_small_value_is_found(monkeypatch, check):
    """Errors of the KL divergence are relative even if it is far below 1."""
    right = POWER_SPHERICAL.relative_entropy

    def wrong(kappa, dim):
        kl = right(kappa, dim)
        return torch.where(kl < 1e-6, 0, kl)

    monkeypatch.setattr(POWER_SPHERICAL, "relative_entropy", wrong)
    _, checks = check()
    failed = {key: one["worst"] for key, one in checks.items() if not one["passed"]}
    assert failed == {("power_spherical", "kl_uniform", dtype): 1 for dtype in ("float32", "float64")}


@families
def test_the_table_agrees_with_the_one_of_the_tests(family):
    """The other table shares some cells, and was verified by a second method when it was made."""
    common = set(mpmath_tables.dims("functions.json", family))
    for dim, kappa, one_minus_t, kl, _ in cells(family):
        if dim in common:
            other = mpmath_tables.columns("functions.json", family, dim)
            ours, theirs = torch.nonzero(kappa.unsqueeze(1) == other["kappa"]).T
            assert len(ours)
            torch.testing.assert_close(kl[ours], other["kl_uniform"][theirs], rtol=1e-15, atol=0)
            torch.testing.assert_close(one_minus_t[ours], other["mean_complement"][theirs], rtol=1e-7, atol=0)


@families
def test_inputs_are_the_same_in_both_dtypes_and_sorted(family):
    for _, kappa, one_minus_t, *_ in cells(family):
        for exact in (kappa, one_minus_t):
            assert torch.equal(exact.float().double(), exact)
    assert TABLE[family] == sorted(TABLE[family])  # rows of one dimension follow each other


def test_the_table_names_its_script():
    assert (Path(__file__).parents[1] / "reference" / TABLE["recipe"].partition(",")[0]).is_file()
