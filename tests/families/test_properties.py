"""Inequalities that hold for the functions of a family at every dimension and concentration."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.examples import dtypes, exponential_families, family_objects
from powerspherical.families import ExponentialFamily, Family, derived
from powerspherical.quadrature.cosine import Cosine

ROUNDING = 1e-14

property_test = settings(derandomize=True, deadline=None, max_examples=40, database=None)
dims = st.one_of(st.integers(2, 60), st.sampled_from([100, 768, 10**4, 10**6]))
kappas = st.floats(-6, 9).map(lambda exponent: 10**exponent)
factors = st.floats(1e-6, 3)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@family_objects
@property_test
@given(dim=dims, kappa=kappas, factor=factors)
def test_divergence_and_moments_increase(family: Family, dim: int, kappa: float, factor: float) -> None:
    pair = double(kappa, kappa * (1 + factor))
    for function in (family.relative_entropy, family.mean_cosine):
        low, high = function(pair, dim).tolist()
        assert high - low >= -ROUNDING * abs(high)


@exponential_families
@property_test
@given(dim=dims, kappa=kappas, factor=factors)
def test_mean_statistic_increases_and_its_variance_falls(
    family: ExponentialFamily, dim: int, kappa: float, factor: float
) -> None:
    pair = double(kappa, kappa * (1 + factor))
    low, high = derived.mean_score(family, pair, dim).tolist()
    assert high - low >= -ROUNDING * abs(high)
    low, high = derived.information(family, pair, dim).tolist()
    assert 0 < high <= low * (1 + ROUNDING)


@family_objects
@property_test
@given(dim=dims, kappa=kappas)
def test_mean_cosine_lies_in_the_unit_interval(family: Family, dim: int, kappa: float) -> None:
    mean, rest = (f(double(kappa), dim).item() for f in (family.mean_cosine, family.mean_loss))
    assert 0 < mean < 1 or (
        mean == 1 and rest < 1e-16
    )  # the spherical Cauchy has 1 - E t of the order of κ⁻²
    assert 0 < rest < 1
    assert mean + rest == pytest.approx(1, rel=1e-15)
    # E t² ≤ 1, and E t² ≥ (E t)²
    assert 0 < family.variance_cosine(double(kappa), dim).item() <= rest * (1 + mean) * (1 + ROUNDING)


@dtypes
@family_objects
def test_mean_cosine_is_one_minus_its_loss(family: Family, dtype: torch.dtype) -> None:
    """To a few roundings, and never above 1."""
    kappa = torch.logspace(0, 19, 3000, dtype=dtype)
    for dim in (2, 3, 64, 1000, 10**6):
        mean, rest = family.mean_cosine(kappa, dim), family.mean_loss(kappa, dim)
        assert (mean <= 1).all()
        assert ((mean - (1 - rest)).abs() <= 4 * torch.finfo(dtype).eps).all()


@family_objects
@property_test
@given(dim=dims, kappa=kappas, chord=st.floats(1e-9, 1), factor=factors)
def test_misalignment_grows_with_the_angle(
    family: Family, dim: int, kappa: float, chord: float, factor: float
) -> None:
    chords = double(chord, min(1.0, chord * (1 + factor)))
    low, high = family.misalignment(double(kappa, kappa), Cosine(2 * chords, 2 - 2 * chords), dim).tolist()
    assert 0 < low <= high * (1 + 1e-12)


@family_objects
@pytest.mark.parametrize("dim", [2, 3, 10, 1000, 10**6])
def test_concentration_gives_every_divergence(family: Family, dim: int) -> None:
    """From almost uniform distributions to the largest KL that a finite concentration reaches."""
    nats = torch.logspace(-12, 4, 2000, dtype=torch.float64)
    kappa = derived.from_relative_entropy(family, nats, dim)
    reached = kappa < 1e100
    assert reached[nats < 100].all()
    assert derived.from_relative_entropy(family, double(0.0), dim) == 0
    torch.testing.assert_close(
        family.relative_entropy(kappa, dim)[reached], nats[reached], rtol=1e-13, atol=0
    )


@exponential_families
@pytest.mark.parametrize("dim", [2, 3, 10, 384, 100_000])
class TestMeanStatistic:
    def test_inverse(self, family: ExponentialFamily, dim: int) -> None:
        """The error is a few times that caused by rounding the mean."""
        kappa = torch.cat([torch.zeros(1), torch.logspace(-4, 11, 200)]).double()
        mean = derived.mean_score(family, kappa, dim)
        found = derived.from_mean_score(family, mean, dim)
        roundings = mean.abs() / derived.information(family, kappa, dim) + kappa
        assert ((found - kappa).abs() <= 4 * torch.finfo(torch.float64).eps * roundings).all()

    def test_below_the_uniform_it_is_zero(self, family: ExponentialFamily, dim: int) -> None:
        uniform = derived.mean_score(family, torch.zeros(1, dtype=torch.float64), dim)
        assert derived.from_mean_score(family, 1.5 * uniform, dim) == 0
