"""First and second derivatives of a family's functions at κ = 0, and at equal directions.

Tests of special functions, densities and divergences check derivatives at κ > 0.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.examples import FAMILIES, family_objects
from powerspherical.families import POWER_SPHERICAL, ExponentialFamily, Family, derived
from powerspherical.quadrature.cosine import Cosine

dims = pytest.mark.parametrize("dim", [2, 3, 50])

METHODS = ["relative_entropy", "mean_cosine", "mean_loss", "offset"]
DERIVED = ["log_partition", "mean_score"]
EVERY = [(cls.family, name) for cls in FAMILIES for name in METHODS + DERIVED]
every_function = pytest.mark.parametrize(
    ("family", "name"), EVERY, ids=[f"{family.name} {name}" for family, name in EVERY]
)


def function(family: Family, name: str, dim: int) -> Callable[[Tensor], Tensor]:
    if name in DERIVED:
        return lambda kappa: getattr(derived, name)(family, kappa, dim)
    return lambda kappa: getattr(family, name)(kappa, dim)


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def derivatives(function: Callable[[Tensor], Tensor], kappa: float) -> tuple[float, float, float]:
    """Return the value and the first and second derivatives by autograd."""
    x = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    value = function(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    return value.item(), first.item(), second.item()


@dims
@every_function
def test_derivatives_at_zero(family: Family, name: str, dim: int) -> None:
    """Compare with one-sided differences: f' ≈ (-3f(0) + 4f(h) - f(2h))/2h, and likewise f'' from f'."""
    h = 1e-5
    points = [derivatives(function(family, name, dim), x) for x in (0.0, h, 2 * h)]
    for order in (1, 2):
        here, near, far = (point[order - 1] for point in points)
        expected = (-3 * here + 4 * near - far) / (2 * h)
        assert points[0][order] == pytest.approx(expected, rel=1e-6, abs=1e-8)


@dims
@family_objects
def test_relative_entropy_at_zero(family: Family, dim: int) -> None:
    """KL = κ²/2 · Var s + … with s = ∂ log p/∂κ, which is (d-1)t for the spherical Cauchy. Var_U t = 1/d."""
    zero = torch.zeros((), dtype=torch.float64)
    value, first, second = derivatives(lambda kappa: family.relative_entropy(kappa, dim), 0.0)
    assert (value, first) == (0, 0)
    exponential = isinstance(family, ExponentialFamily)
    variance = derived.information(family, zero, dim).item() if exponential else (dim - 1) ** 2 / dim
    assert second == pytest.approx(variance, rel=1e-14)
    assert family.variance_cosine(zero, dim).item() == pytest.approx(1 / dim, rel=1e-14)


@family_objects
def test_log_density_at_zero(family: Family) -> None:
    """The κ-derivative is the score minus its mean. The density is finite at the antipode, where T may be -inf."""
    t = torch.tensor([-1.0, -0.3, 1.0], dtype=torch.float64)
    kappa = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    value = derived.log_density(family, Cosine(1 - t, 1 + t), kappa, 5)
    assert value.tolist() == [0, 0, 0]
    (slope,) = torch.autograd.grad(value[1:].sum(), kappa)
    score = family.score(Cosine(1 - t, 1 + t), torch.zeros_like(t), 5)
    mean = (
        derived.mean_score(family, torch.zeros_like(t), 5) if isinstance(family, ExponentialFamily) else 0.0
    )
    torch.testing.assert_close(slope[1:], (score - mean)[1:], rtol=1e-15, atol=0)


@dims
@family_objects
def test_misalignment_of_equal_directions(family: Family, dim: int) -> None:
    """The value is 0. The slope in haversine is the limit of difference quotients, κ/(κ+β-1) for powers."""
    kappa = double([2.0, 6.0, 55.0, 1e4])
    chord = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    value = family.misalignment(kappa, Cosine(2 * chord, 2 - 2 * chord), dim)
    assert value.tolist() == [0, 0, 0, 0]
    in_kappa, in_chord = torch.autograd.grad(value.sum(), (kappa, chord))
    assert in_kappa.tolist() == [0, 0, 0, 0]
    step = torch.full_like(chord, 1e-10)
    near = family.misalignment(kappa, Cosine(2 * step, 2 - 2 * step), dim)
    torch.testing.assert_close(in_chord, (near / step).detach(), rtol=1e-6, atol=0)
    if family is POWER_SPHERICAL:
        expected = (kappa / (kappa + (dim - 3) / 2)).detach()
        torch.testing.assert_close(in_chord, expected, rtol=1e-12, atol=0)
