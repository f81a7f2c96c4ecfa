"""No function jumps, wherever it switches from one formula to another: in κ, in d, in the angle and in t.

The tests know no switch points. They evaluate a function on a grid so fine that it is smooth at its scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.examples import DOUBLE, FAMILIES, FLOAT, IDS, family_objects
from powerspherical import special
from powerspherical.families import Family, derived
from powerspherical.quadrature.cosine import Cosine

Function = Callable[[Tensor, float], Tensor]

DIMS = [2, 3, 5, 10, 20, 41, 1001]

#: Functions of κ and d.
FUNCTIONS: dict[str, Function] = {
    "bessel_ratio": special.bessel_ratio,
    "bessel_ratio_complement": special.bessel_ratio_complement,
    "bessel_ratio_slope": special.bessel_ratio_slope,
    "log_hyp0f1": special.log_hyp0f1,
    "digamma_difference": special.digamma_difference,
    "trigamma_difference": special.trigamma_difference,
    "mean_log1p": special.mean_log1p,
    "mean_log_boost": special.mean_log_boost,
    "log_gamma_ratio": special.log_gamma_ratio,
}
METHODS = ["relative_entropy", "offset", "mean_cosine", "mean_loss", "variance_cosine"]
FUNCTIONS |= {
    f"{name} {method}": getattr(cls.family, method)
    for name, cls in zip(IDS, FAMILIES, strict=True)
    for method in METHODS
}
names = pytest.mark.parametrize("name", FUNCTIONS)


def scale_of(name: str, dim: int) -> float:
    """Return the size below which errors are absolute ones, near a zero of the function."""
    return 0.3 if "log" in name else 1e-2 / dim


def largest_jump(values: Tensor, floor: float = 0.0) -> float:
    """Estimate the largest relative jump. A jump s adds 10 s to sixth differences, otherwise rounding errors."""
    differences = values = values.detach()
    for _ in range(6):
        differences = differences.diff()
    return (differences / values[3:-3].abs().clamp(min=floor + 1e-300)).abs().max().item() / 10


# In κ and in d


@names
def test_in_the_concentration(name: str) -> None:
    """In float64. In float32 the function is near the float64 one at every point of the grid."""
    kappa = torch.logspace(-3, 8, 10_000)
    exact = torch.logspace(-3, 8, 10_000, dtype=DOUBLE)
    for dim in DIMS:
        function, floor = FUNCTIONS[name], scale_of(name, dim)
        assert largest_jump(function(exact, dim), floor) <= 5e-14, dim
        single, double = function(kappa, dim).double(), function(kappa.double(), dim)
        assert ((single - double) / double.abs().clamp(min=floor)).abs().max() <= 5e-6, dim


@pytest.mark.parametrize("dim", [*range(3, 45), 64, 65, 1001])
def test_in_the_dimension(dim: int) -> None:
    """Compare with the floats before and after d. Functions of one family share the tables of a dimension."""
    kappa = torch.tensor([1e-3, 0.4, 3.0, 30.0, 500.0, 1e6], dtype=DOUBLE)
    for name, function in FUNCTIONS.items():
        for dtype, floor, tolerance in ((DOUBLE, 1e-2 / dim, 3e-14), (FLOAT, scale_of(name, dim), 1e-6)):
            here, *beside = (
                function(kappa.to(dtype), d).double()
                for d in (dim, math.nextafter(dim, 0), math.nextafter(dim, 2 * dim))
            )
            for there in beside:
                error = ((here - there) / here.abs().clamp(min=floor)).abs().max()
                assert error <= tolerance, (name, dtype)


@family_objects
def test_inverses(family: Family) -> None:
    """In the rate, and in the mean cosine."""
    nats = torch.logspace(-3, 1, 10_000, dtype=DOUBLE)
    logit = torch.linspace(-7, 4, 10_000, dtype=DOUBLE)
    for dim in (2, 3, 10, 64):
        assert largest_jump(derived.from_relative_entropy(family, nats, dim).log(), 1.0) <= 1e-12, dim
        kappa = family.from_mean_cosine(torch.sigmoid(logit), torch.sigmoid(-logit), dim)
        assert largest_jump(kappa.log(), 1.0) <= 1e-12, dim


# In the angle and in t


@family_objects
@pytest.mark.parametrize("dim", [2, 3, 10, 1001])
def test_other_directions(family: Family, dim: int) -> None:
    """KL to another direction, in κ and in the angle. Its quadratures have errors of a few 1e-13."""
    kappa = torch.logspace(-2, 6, 5000, dtype=DOUBLE)
    for minus in (0.1, 0.8, 1.8):
        angle = Cosine(torch.full_like(kappa, minus), torch.full_like(kappa, 2 - minus))
        values = family.misalignment(kappa, angle, dim)
        assert largest_jump(values, 1e-2 / dim) <= 1e-11
    logit = torch.linspace(-12, 12, 5000, dtype=DOUBLE)
    angle = Cosine(2 * torch.sigmoid(logit), 2 * torch.sigmoid(-logit))
    for concentration in (0.5, 20.0, 1e4):
        values = family.misalignment(torch.full_like(logit, concentration), angle, dim)
        assert largest_jump(values, 1e-2 / dim) <= 1e-11


@family_objects
@pytest.mark.parametrize("dim", [2, 3, 5, 9, 10, 64, 1000])
def test_in_the_cosine(family: Family, dim: int) -> None:
    """The density, both tails and dt/dκ, across the mean, the mode, the median and the equator."""
    half = torch.tensor(0.5, dtype=DOUBLE)
    for kappa in (0.1, 1.0, 10.0, 1e3, 1e5):
        median = derived.quantile(family, half, half, torch.tensor(kappa, dtype=DOUBLE), dim).rapidity
        t = Cosine.of_rapidity(median + torch.linspace(-6, 6, 3001, dtype=DOUBLE) / math.sqrt(dim - 1))
        kappas = torch.full_like(t.minus, kappa)
        log_cdf, log_sf = derived.log_tails(family, t, kappas, dim)
        flow = family.slope(t, None, kappas, dim) * t.minus * t.plus
        assert log_cdf[0] < -5
        assert log_sf[-1] < -5
        for values in (log_cdf, log_sf, torch.log(flow), derived.log_density(family, t, kappas, dim)):
            assert largest_jump(values, 1.0) <= 2e-11, kappa
