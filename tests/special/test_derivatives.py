"""First and second derivatives of the special functions against finite differences, inside and at κ = 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from powerspherical.special.inverse import concentration_from_relative_entropy
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import mpmath_tables
from powerspherical.special import (
    POWER_TILT,
    Tilt,
    bessel_ratio_complement,
    bessel_ratio_inverse,
    bessel_ratio_slope,
    digamma_difference,
    log_bessel_i,
    log_gamma_ratio,
    log_hyp0f1,
    mean_log1m_cosine,
    mean_log1p,
    mean_log1p_cosine,
    misalignment,
    trigamma_difference,
)

KAPPA = [0.01, 0.7, 6.0, 55.0]  # on both sides of the branches of the functions
HALF_CHORD = [1e-3, 0.2, 0.6, 0.97]

dims = pytest.mark.parametrize("dim", [2, 3, 10, 50])
tilts = pytest.mark.parametrize("tilt", mpmath_tables.TILTS.values(), ids=mpmath_tables.TILTS)

FUNCTIONS = {
    "log_gamma_ratio": log_gamma_ratio,
    "mean_log1p": mean_log1p,
    "digamma_difference": digamma_difference,
    "log_hyp0f1": log_hyp0f1,
    "bessel_ratio_complement": bessel_ratio_complement,
    "log_bessel_i": lambda kappa, dim: log_bessel_i(dim / 2 - 1, kappa),
}
TILT_FUNCTIONS = {
    "relative_entropy": lambda tilt, kappa, dim: tilt.relative_entropy(kappa, dim),
    "log_partition": lambda tilt, kappa, dim: tilt.log_partition(kappa, dim),
    "mean_cosine": lambda tilt, kappa, dim: tilt.mean_cosine(kappa, dim),
    "mean_cosine_complement": lambda tilt, kappa, dim: tilt.mean_cosine_complement(kappa, dim),
    "mean_statistic": lambda tilt, kappa, dim: tilt.mean_statistic(kappa, dim),
    "mean_log1p_cosine": mean_log1p_cosine,
    "mean_log1m_cosine": mean_log1m_cosine,
    "misalignment": lambda tilt, kappa, dim: misalignment(tilt, kappa, torch.full_like(kappa, 0.3), dim),
}


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def check_twice(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """By central differences, whose own error is about 1e-9."""
    assert gradcheck(function, inputs, rtol=1e-6, atol=1e-8)
    assert gradgradcheck(function, inputs, rtol=1e-6, atol=1e-8)


@dims
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_kappa(name: str, dim: int) -> None:
    check_twice(lambda kappa: FUNCTIONS[name](kappa, dim), double(KAPPA))


@dims
@tilts
@pytest.mark.parametrize("name", TILT_FUNCTIONS)
def test_functions_of_a_tilt(name: str, tilt: Tilt, dim: int) -> None:
    check_twice(lambda kappa: TILT_FUNCTIONS[name](tilt, kappa, dim), double(KAPPA))


@dims
@pytest.mark.parametrize("variance", [trigamma_difference, bessel_ratio_slope])
def test_variances_are_differentiable_once(variance: Callable[[Tensor, int], Tensor], dim: int) -> None:
    assert gradcheck(lambda kappa: variance(kappa, dim), double(KAPPA), rtol=1e-6, atol=1e-8)


@dims
@tilts
def test_log_density(tilt: Tilt, dim: int) -> None:
    """In κ and in the place, through the statistic."""

    def log_density(kappa: Tensor, t: Tensor) -> Tensor:
        return tilt.log_density(kappa, tilt.statistic(1 - t, 1 + t), dim)

    check_twice(log_density, double(KAPPA), double([-0.9, 0.0, 0.5, 0.99]))


@dims
@tilts
def test_misalignment(tilt: Tilt, dim: int) -> None:
    check_twice(lambda kappa, chord: misalignment(tilt, kappa, chord, dim), double(KAPPA), double(HALF_CHORD))


@dims
@tilts
def test_concentration_from_relative_entropy(tilt: Tilt, dim: int) -> None:
    check_twice(
        lambda nats: concentration_from_relative_entropy(tilt, nats, dim), double([0.02, 0.8, 1.5, 3.0])
    )


@dims
def test_bessel_ratio_inverse(dim: int) -> None:
    check_twice(lambda ratio: bessel_ratio_inverse(ratio, dim), double([0.01, 0.3, 0.6, 0.9]))


def derivatives(function: Callable[[Tensor], Tensor], kappa: float) -> tuple[float, float, float]:
    """Value, first and second derivative by autograd."""
    x = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    value = function(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    return value.item(), first.item(), second.item()


@dims
@tilts
@pytest.mark.parametrize("name", TILT_FUNCTIONS)
def test_derivatives_at_zero(name: str, tilt: Tilt, dim: int) -> None:
    """Against one-sided differences: f' ≈ (-3f(0) + 4f(h) - f(2h))/2h, and the same of f' for f''."""
    h = 1e-5
    points = [derivatives(lambda kappa: TILT_FUNCTIONS[name](tilt, kappa, dim), x) for x in (0.0, h, 2 * h)]
    for order in (1, 2):
        here, near, far = (point[order - 1] for point in points)
        expected = (-3 * here + 4 * near - far) / (2 * h)
        assert points[0][order] == pytest.approx(expected, rel=1e-6, abs=1e-8)


@dims
@tilts
def test_relative_entropy_at_zero(tilt: Tilt, dim: int) -> None:
    """KL = κ²/2 · Var T + …, where Var_U t = 1/d."""
    value, first, second = derivatives(lambda kappa: tilt.relative_entropy(kappa, dim), 0.0)
    assert (value, first) == (0, 0)
    assert second == pytest.approx(
        tilt.variance_statistic(torch.zeros((), dtype=torch.float64), dim).item(), rel=1e-14
    )
    assert tilt.variance_cosine(torch.zeros((), dtype=torch.float64), dim).item() == pytest.approx(
        1 / dim, rel=1e-14
    )


@tilts
def test_log_density_at_zero(tilt: Tilt) -> None:
    """The uniform, whose κ-derivative is T - E T; finite at the antipode, where T may be -inf."""
    t = torch.tensor([-1.0, -0.3, 1.0], dtype=torch.float64)
    kappa = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    statistic = tilt.statistic(1 - t, 1 + t)
    value = tilt.log_density(kappa, statistic, 5)
    assert value.tolist() == [0, 0, 0]
    (slope,) = torch.autograd.grad(value[1:].sum(), kappa)
    torch.testing.assert_close(
        slope[1:], (statistic - tilt.mean_statistic(kappa, 5)).detach()[1:], rtol=1e-15, atol=0
    )


@dims
@tilts
def test_misalignment_of_equal_directions(tilt: Tilt, dim: int) -> None:
    """Zero, with the slope in half_chord that the limit of differences has; for powers it is κ/(κ+β-1)."""
    kappa = double([2.0, 6.0, 55.0, 1e4])
    chord = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    value = misalignment(tilt, kappa, chord, dim)
    assert value.tolist() == [0, 0, 0, 0]
    in_kappa, in_chord = torch.autograd.grad(value.sum(), (kappa, chord))
    assert in_kappa.tolist() == [0, 0, 0, 0]
    step = torch.full_like(chord, 1e-10)
    torch.testing.assert_close(
        in_chord, (misalignment(tilt, kappa, step, dim) / step).detach(), rtol=1e-6, atol=0
    )
    if tilt is POWER_TILT:
        expected = (kappa / (kappa + (dim - 3) / 2)).detach()
        torch.testing.assert_close(in_chord, expected, rtol=1e-12, atol=0)
