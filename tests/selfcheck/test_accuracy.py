import json
import math
from importlib import resources
from pathlib import Path

import mpmath
import pytest
import torch

from helpers import mpmath_tables
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical._selfcheck import accuracy
from powerspherical.families import POWER_SPHERICAL

FAMILIES = {"power_spherical": PowerSpherical, "von_mises_fisher": VonMisesFisher}
float64 = torch.float64


def test_our_functions_keep_to_the_table():
    checks = accuracy.check()
    assert {(check.family, check.quantity, check.dtype) for check in checks} == {
        (family, quantity, dtype)
        for family in FAMILIES
        for quantity in ("kl_uniform", "log_density")
        for dtype in ("float32", "float64")
    }
    for check in checks:
        assert check.passed, check
        assert 0 < check.worst <= check.tolerance == {"float32": 2e-6, "float64": 1e-12}[check.dtype]


@pytest.mark.parametrize("spoil", [lambda kl: kl * (1 + 1e-5), lambda kl: kl * math.nan, torch.zeros_like])
def test_a_wrong_function_is_found(monkeypatch, spoil):
    right, both = POWER_SPHERICAL.relative_entropy, POWER_SPHERICAL.entropy_and_mean_statistic

    def spoilt(kappa, dim):
        entropy, mean = both(kappa, dim)
        return spoil(entropy), mean

    monkeypatch.setattr(POWER_SPHERICAL, "relative_entropy", lambda kappa, dim: spoil(right(kappa, dim)))
    monkeypatch.setattr(POWER_SPHERICAL, "entropy_and_mean_statistic", spoilt)
    for check in accuracy.check():
        assert check.passed == (check.family == "von_mises_fisher"), check


def test_a_wrong_small_value_is_found(monkeypatch):
    """Errors of the KL divergence are relative even if it is far below 1."""
    right = POWER_SPHERICAL.relative_entropy

    def wrong(kappa, dim):
        kl = right(kappa, dim)
        return torch.where(kl < 1e-6, 0, kl)

    monkeypatch.setattr(POWER_SPHERICAL, "relative_entropy", wrong)
    failed = [check for check in accuracy.check() if not check.passed]
    assert [(check.family, check.quantity) for check in failed] == [("power_spherical", "kl_uniform")] * 2
    assert [check.worst for check in failed] == [1, 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_agrees_with_the_one_of_the_tests(family):
    """The other table shares some cells, and was verified by a second method when it was made."""
    common = 0
    for dim, kappa, one_minus_t, exact in accuracy.cells(family):
        if dim not in mpmath_tables.dims("functions.json", family):
            continue
        other = mpmath_tables.columns("functions.json", family, dim)
        both = [(i, j) for i, k in enumerate(kappa) for j, same in enumerate(other["kappa"]) if k == same]
        ours, theirs = map(list, zip(*both, strict=True))
        kl, c = other["kl_uniform"][theirs], other["mean_complement"][theirs]
        torch.testing.assert_close(exact.kl_uniform[ours], kl, rtol=1e-15, atol=0)
        torch.testing.assert_close(one_minus_t[ours], c, rtol=1e-7, atol=0)
        common += len(both)
    assert common == 9 * 8  # d = 2, 3 and powers of ten; κ = 1 to 10^6 and 10^9, powers of ten


def test_the_densities_in_three_dimensions():
    """log of (κ+1)/4π ((1+t)/2)^κ and of κ/(4π sinh κ) exp(κt), with enough digits."""
    with mpmath.workdps(40):
        for family in FAMILIES:
            _, kappas, points, exact = next(cells for cells in accuracy.cells(family) if cells.dim == 3)
            for k, c, log_density in zip(kappas, points, exact.log_density, strict=True):
                kappa, z = mpmath.mpf(k.item()), 1 - mpmath.mpf(c.item()) / 2
                if family == "power_spherical":
                    expected = mpmath.log((kappa + 1) / (4 * mpmath.pi)) + kappa * mpmath.log(z)
                else:
                    scale = kappa / (2 * mpmath.pi * -mpmath.expm1(-2 * kappa))
                    expected = mpmath.log(scale) + 2 * kappa * (z - 1)
                assert log_density.item() == pytest.approx(float(expected), rel=1e-15)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_inputs_are_the_same_in_both_types(family):
    for _, kappa, one_minus_t, _ in accuracy.cells(family):
        for exact in (kappa, one_minus_t):
            assert exact.dtype == float64
            assert torch.equal(exact.float().double(), exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_checked_is_what_the_distributions_return(family):
    dim, kappa, one_minus_t, _ = accuracy.cells(family)[1]
    values = accuracy.evaluate(accuracy.FAMILIES[family], dim, kappa, one_minus_t)
    loc, across = torch.eye(dim, dtype=float64)[:2]
    q = FAMILIES[family](loc, kappa)
    c = one_minus_t.unsqueeze(-1)
    kl = torch.distributions.kl_divergence(q, HypersphericalUniform(dim))
    torch.testing.assert_close(values.kl_uniform, kl, rtol=1e-14, atol=0)
    x = (1 - c) * loc + torch.sqrt(c * (2 - c)) * across
    torch.testing.assert_close(values.log_density, q.log_prob(x), rtol=1e-12, atol=1e-12)


def test_errors():
    exact = torch.tensor([4.0, 0.5, 0.5], dtype=float64)
    value = torch.tensor([2.0, 0.25, math.nan])
    assert accuracy.error(value, exact, floor=1).tolist() == [0.5, 0.25, math.inf]
    assert accuracy.error(value, exact, floor=0).tolist() == [0.5, 0.5, math.inf]
    assert accuracy.error(torch.tensor([math.inf]), exact[:1], floor=0).item() == math.inf


def test_the_table_is_small_and_says_how_it_was_made():
    path = resources.files("powerspherical._selfcheck").joinpath("accuracy.json")
    text = path.read_text(encoding="utf-8")
    assert len(text) < 60_000
    script = Path(__file__).parents[1] / "reference" / accuracy.recipe().partition(",")[0]
    assert script.is_file()
    for family in FAMILIES:
        rows = json.loads(text)[family]
        assert len(rows) == 285
        assert rows == sorted(rows)  # the maps are in this order
