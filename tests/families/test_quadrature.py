"""The quadrature defaults of ``Family`` against the closed forms of our families."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.examples import FAMILIES, IDS
from powerspherical.families import (
    POWER_SPHERICAL,
    SPHERICAL_CAUCHY,
    VON_MISES_FISHER,
    ExponentialFamily,
    Family,
)

DOUBLE = torch.float64
KAPPAS = {
    2: [0.5, 10.0, 1e4],
    3: [0.5, 10.0, 1e4],
    10: [1.0, 50.0, 1e4],
    100: [5.0, 100.0, 1e5],
    1000: [10.0, 1000.0, 1e5],
}
#: (1-μᵀν)/2 for the directions μ and ν of two distributions.
HALF_CHORDS = [0.0, 0.01, 0.5, 1.0]
TOLERANCE = 1e-8


class Plain(Family):
    """A family that defines nothing but its density, so that every method is the default."""

    name = title = "plain"

    def __init__(self, known: Family) -> None:
        self.known = known

    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return self.known.log_kernel(one_minus_t, one_plus_t, kappa, dim)


families = pytest.mark.parametrize("known", [cls.family for cls in FAMILIES], ids=IDS)
dims = pytest.mark.parametrize("dim", KAPPAS)


def concentrations(dim: int) -> Tensor:
    return torch.tensor(KAPPAS[dim], dtype=DOUBLE)


def assert_close(value: Tensor, expected: Tensor, floor: float = 0.0) -> None:
    """Compare relative errors. Values below ``floor`` are compared by their absolute error over ``floor``."""
    error = (value - expected).abs() / expected.abs().clamp(min=floor)
    assert error.max() <= TOLERANCE, f"{value.tolist()}, expected {expected.tolist()}"


@families
@dims
@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("log_partition", 1.0),
        ("relative_entropy", 0.0),
        ("mean_cosine", 0.0),
        ("mean_cosine_complement", 0.0),
        ("variance_cosine", 0.0),
        ("mean_log1p_cosine", 1.0),
        ("mean_log1m_cosine", 1.0),
        ("mean_log_loss", 0.0),
        ("divergence_from_uniform", 0.0),
    ],
)
def test_functions_of_the_concentration(known: Family, dim: int, name: str, floor: float) -> None:
    kappa = concentrations(dim)
    assert_close(getattr(Plain(known), name)(kappa, dim), getattr(known, name)(kappa, dim), floor)


@families
@dims
def test_small_concentrations_lose_no_digits(known: Family, dim: int) -> None:
    kappa = torch.tensor([1e-6, 1e-3, 0.03], dtype=DOUBLE)
    assert_close(Plain(known).relative_entropy(kappa, dim), known.relative_entropy(kappa, dim))


@families
@dims
def test_tails_and_quantiles(known: Family, dim: int) -> None:
    kappa = concentrations(dim).unsqueeze(-1).expand(-1, 4).contiguous()
    u = torch.tensor([1e-6, 0.3, 0.9, 1 - 1e-6], dtype=DOUBLE).expand_as(kappa)
    ends = known.quantile(u, 1 - u, kappa, dim)
    plain = Plain(known)
    for value, expected in zip(plain.quantile(u, 1 - u, kappa, dim), ends, strict=True):
        assert_close(value, expected)
    for value, expected in zip(
        plain.log_tails(*ends, kappa, dim), known.log_tails(*ends, kappa, dim), strict=True
    ):
        assert_close(value, expected)
    slopes = known.implicit_slope(*ends, kappa, dim)
    assert_close(plain.implicit_slope(*ends, kappa, dim), slopes.expand_as(u))


@families
@dims
def test_slopes_of_tails_and_quantiles(known: Family, dim: int) -> None:
    kappa = concentrations(dim).requires_grad_()
    u = torch.full_like(kappa, 0.2).requires_grad_()
    results = []
    for family in (Plain(known), known):
        minus, _ = family.quantile(u, 1 - u, kappa, dim)
        log_cdf, _ = family.log_tails(1.1 * minus.detach(), 2 - 1.1 * minus.detach(), kappa, dim)
        results.append(
            [*torch.autograd.grad(minus.sum(), (u, kappa)), *torch.autograd.grad(log_cdf.sum(), kappa)]
        )
    for value, expected in zip(*results, strict=True):
        assert_close(value, expected)


@families
@dims
def test_inverses(known: Family, dim: int) -> None:
    kappa, plain = concentrations(dim), Plain(known)
    length, complement = known.mean_cosine(kappa, dim), known.mean_cosine_complement(kappa, dim)
    assert_close(plain.concentration_from_mean_cosine(length, complement, dim), kappa)
    assert_close(plain.concentration_from_relative_entropy(known.relative_entropy(kappa, dim), dim), kappa)


@families
@dims
def test_inverses_from_far_away(known: Family, dim: int) -> None:
    """The search starts far from the solution."""
    kappa, plain = torch.tensor([1e-3, 0.1, 1e3], dtype=DOUBLE), Plain(known)
    nats = plain.relative_entropy(kappa, dim)
    assert_close(plain.concentration_from_relative_entropy(nats, dim), kappa)
    length, complement = plain.mean_cosine(kappa, dim), plain.mean_cosine_complement(kappa, dim)
    assert_close(plain.concentration_from_mean_cosine(length, complement, dim), kappa)


def test_inverses_of_zero_and_of_unreachable_values() -> None:
    plain = Plain(FAMILIES[1].family)
    kappa = plain.concentration_from_relative_entropy(torch.tensor([0.0, 1e9, -1.0], dtype=DOUBLE), 3)
    torch.testing.assert_close(
        kappa, torch.tensor([0.0, torch.inf, torch.nan], dtype=DOUBLE), rtol=0, atol=0, equal_nan=True
    )


@families
@dims
@pytest.mark.parametrize("haversine", HALF_CHORDS)
def test_other_directions(known: Family, dim: int, haversine: float) -> None:
    """Check the misalignment, which vanishes for equal directions, and the divergence from another member."""
    kappa, plain = concentrations(dim), Plain(known)
    chord = torch.full_like(kappa, haversine)
    floor = 0.0 if haversine else 1.0
    assert_close(plain.misalignment(kappa, chord, dim), known.misalignment(kappa, chord, dim), floor)
    other = 1.3 * kappa.flip(0)
    expected = known.divergence_from(known, kappa, other, chord, dim)
    assert_close(plain.divergence_from(plain, kappa, other, chord, dim), expected)


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_divergence_from_a_heavy_tail(dim: int) -> None:
    kappa = torch.tensor([100.0, 1e3, 1e4], dtype=DOUBLE)
    arguments = kappa, 1e4 * torch.ones_like(kappa), torch.zeros_like(kappa), dim
    found = Plain(VON_MISES_FISHER).divergence_from(SPHERICAL_CAUCHY, *arguments)
    expected = VON_MISES_FISHER.divergence_from(SPHERICAL_CAUCHY, *arguments)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


@families
@pytest.mark.parametrize("haversine", HALF_CHORDS)
def test_derivatives_of_a_divergence(known: Family, haversine: float) -> None:
    """Differentiate in both concentrations and in the direction, also at equal and at opposite directions."""
    leaves = [torch.tensor(x, dtype=DOUBLE).requires_grad_() for x in ([2.0], [5.0], [haversine])]
    plain = Plain(known)
    found = torch.autograd.grad(plain.divergence_from(plain, *leaves, 5).sum(), leaves)
    expected = torch.autograd.grad(known.divergence_from(known, *leaves, 5).sum(), leaves)
    for value, right in zip(found, expected, strict=True):
        # At the ends the derivative of sin θ in the chord is infinite and amplifies rounding errors.
        torch.testing.assert_close(value, right, rtol=1e-3 if haversine in (0.0, 1.0) else 1e-9, atol=1e-9)


class PlainExponential(ExponentialFamily):
    """An exponential family that defines nothing but its statistic."""

    name = title = "plain exponential"

    def __init__(self, known: ExponentialFamily) -> None:
        self.known = known

    def statistic(self, one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        return self.known.statistic(one_minus_t, one_plus_t)


@pytest.mark.parametrize("known", [POWER_SPHERICAL, VON_MISES_FISHER], ids=str)
@pytest.mark.parametrize("dim", [2, 3, 10, 100])
def test_moments_of_the_statistic(known: ExponentialFamily, dim: int) -> None:
    """The defaults hold at κ = 0 too, where the fit of a concentration starts."""
    kappa, plain = torch.tensor([0.0, 1e-3, 0.5, 10.0], dtype=DOUBLE), PlainExponential(known)
    mean = known.mean_statistic(kappa, dim)
    assert_close(plain.mean_statistic(kappa, dim), mean)
    assert_close(plain.variance_statistic(kappa, dim), known.variance_statistic(kappa, dim))
    assert_close(plain.concentration_from_mean_statistic(mean, dim)[1:], kappa[1:])
