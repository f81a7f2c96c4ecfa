"""The closed forms of draws and quantiles on the sphere of R³ against mpmath. ``test_tails.py`` has their slopes."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family
from powerspherical.quadrature.cosine import Cosine

KAPPAS = [0.0, 1e-18, 1e-6, 0.01, 0.3, 0.499, 0.501, 1.0, 3.0, 9.99, 10.01, 40.0, 300.0, 1e4, 1e9, 1e18]
TOLERANCE = {torch.float32: 2e-6, torch.float64: 2e-14}

families = pytest.mark.parametrize("family", [POWER_SPHERICAL, VON_MISES_FISHER], ids=lambda f: f.name)
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


def ends(family: Family, squared_length: Tensor, kappa: Tensor) -> Cosine:
    t, noise = family.draw_cosine(squared_length, kappa, 3)
    assert torch.equal(noise, squared_length)
    assert noise.data_ptr() != squared_length.data_ptr()
    return t


def slope(family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    unused = torch.full_like(kappa, math.nan)
    return family.slope(Cosine(one_minus_t, one_plus_t), unused, kappa, 3)


def exact_ends(family: Family, squared_length: float, kappa: float) -> tuple[float, float]:
    """1-t and 1+t with P(T ≤ t) = e^{-S/2}, from the distribution function alone."""
    k, s = mpmath.mpf(kappa), mpmath.mpf(squared_length)
    if family is POWER_SPHERICAL:
        one_plus_t = 2 * mpmath.exp(-s / 2) ** (1 / (k + 1))
    elif k == 0:
        one_plus_t = 2 * mpmath.exp(-s / 2)
    else:
        one_minus_t = -mpmath.log(mpmath.exp(-2 * k) - mpmath.exp(-s / 2) * mpmath.expm1(-2 * k)) / k
        one_plus_t = 2 - one_minus_t
    return float(2 - one_plus_t), float(one_plus_t)


@families
@dtypes
@pytest.mark.parametrize("kappa", KAPPAS)
def test_ends_are_exact(family: Family, dtype: torch.dtype, kappa: float) -> None:
    """At probabilities from 1e-13 to 1 - 1e-9; 1+t only where it is not improbably small."""
    lengths = torch.tensor([1e-9, 1e-4, 0.1, 1.0, 1.4, 3.0, 10.0, 30.0, 60.0], dtype=dtype)
    concentration = torch.full_like(lengths, kappa)
    actual = ends(family, lengths, concentration)
    with mpmath.workdps(50):
        exact = [exact_ends(family, s, concentration[0].item()) for s in lengths.tolist()]
    for found, expected in zip(actual, zip(*exact, strict=True), strict=True):
        error = (found.double() - torch.tensor(expected, dtype=torch.float64)).abs()
        error = error / torch.tensor(expected, dtype=torch.float64)
        if found is actual[1] and family is VON_MISES_FISHER and kappa >= 10:
            error = error[:-2]
        assert error.max() < TOLERANCE[dtype]


@families
@dtypes
def test_extremes(family: Family, dtype: torch.dtype) -> None:
    """NaN gives NaN, in its row alone; the largest κ and draws at the mean direction itself give no other."""
    lengths = torch.tensor([1.0, 1.0, 1.0, 1e-37, 1.0], dtype=dtype)
    largest = torch.finfo(dtype).max
    concentration = torch.tensor([math.nan, 0.0, largest, 1e18, math.inf], dtype=dtype)
    one_minus_t, one_plus_t = ends(family, lengths, concentration)
    relative = slope(family, one_minus_t, one_plus_t, concentration)
    for result in (one_minus_t, one_plus_t, relative):
        assert result.isnan().tolist() == [True, False, False, False, False]
    assert (one_plus_t[2:] == 2).all()
    assert (relative[1:] >= 0).all()
    at_the_poles = slope(
        family,
        torch.tensor([0.0, 2.0], dtype=dtype),
        torch.tensor([2.0, 0.0], dtype=dtype),
        torch.tensor([1.0, 1.0], dtype=dtype),
    )
    assert at_the_poles.isfinite().all()


@families
@pytest.mark.parametrize("kappa", [3.0, 10.0, 30.0, 200.0])
def test_improbable_quantiles_keep_their_digits(family: Family, kappa: float) -> None:
    """1+t at probabilities down to 1e-200, where t is near -1 at large κ."""
    u = torch.tensor([1e-3, 1e-8, 1e-12, 1e-20, 1e-60, 1e-200], dtype=torch.float64)
    _, one_plus_t = family.quantile(u, 1 - u, torch.full_like(u, kappa), 3)
    with mpmath.workdps(250):
        exact = [exact_ends(family, -2 * mpmath.log(p), kappa)[1] for p in u.tolist()]
    torch.testing.assert_close(one_plus_t, torch.tensor(exact, dtype=torch.float64), rtol=1e-12, atol=0)
