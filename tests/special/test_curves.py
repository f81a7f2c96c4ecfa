"""Functions of κ as tables: what they return at the ends of the axis, and that every engine reads the same table."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.engines import Engine
from helpers.examples import dtypes
from powerspherical.families import POWER_SPHERICAL
from powerspherical.special import (
    bessel_ratio,
    bessel_ratio_complement,
    bessel_ratio_inverse,
    bessel_ratio_slope,
    cauchy_mean_cosine_inverse,
    cauchy_relative_entropy,
    curves,
    digamma_difference,
    mean_log1p,
    tables,
    trigamma_difference,
)

# inf - inf and inf·0, in Triton's interpreter
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero):RuntimeWarning")

#: Per function, at d = 5: its value and slope at κ = 0, and its value at κ = ∞.
ENDS = {
    bessel_ratio: (0.0, 1 / 5, 1.0),
    bessel_ratio_complement: (1.0, -1 / 5, 0.0),
    bessel_ratio_slope: (1 / 5, 0.0, 0.0),
    digamma_difference: (5 / 6, -13 / 36, 0.0),
    trigamma_difference: (13 / 36, -35 / 108, 0.0),
    mean_log1p: (math.log(2) - 5 / 6, 13 / 36, math.log(2)),
    cauchy_relative_entropy: (0.0, 0.0, math.inf),
}
functions = pytest.mark.parametrize("function", ENDS, ids=lambda function: function.__name__)


def value_and_slope(function, kappa: Tensor, dim: float = 5) -> tuple[Tensor, Tensor]:
    leaf = kappa.clone().requires_grad_()
    value = function(leaf, dim)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


@functions
@dtypes
def test_ends_of_the_axis(engine: Engine, function, dtype: torch.dtype) -> None:
    """Zero and subnormal κ give the limit, a negative κ counts as 0 with slope 0, infinity gives its limit, NaN NaN."""
    kappa = torch.tensor([0.0, -0.0, 1e-40, -2.0, math.inf, math.nan], dtype=dtype, device=engine.device)
    at_zero, rise, at_infinity = ENDS[function]
    value, slope = (x.cpu() for x in value_and_slope(function, kappa))
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-12 if dtype == torch.float64 else 1e-7}
    wanted = torch.tensor([at_zero] * 4 + [at_infinity, math.nan], dtype=dtype)
    torch.testing.assert_close(value, wanted, equal_nan=True, **tolerance)
    torch.testing.assert_close(slope[:3], torch.full((3,), rise, dtype=dtype), **tolerance)
    assert slope[3:5].tolist() == [0, 0]
    assert slope[5].isnan()


@functions
@dtypes
def test_beyond_the_table(engine: Engine, function, dtype: torch.dtype) -> None:
    """At 2^64 and beyond, functions continue without a jump, as a power or as a logarithm of κ."""
    powers = torch.tensor([63.9999, 64.0, 64.0001, 90.0, 120.0], dtype=torch.float64)
    kappa = torch.exp2(powers).to(dtype).to(engine.device)
    value = value_and_slope(function, kappa)[0].cpu().double()
    at_infinity = ENDS[function][2]
    if at_infinity == math.inf:
        expected = value[1] + 4 * math.log(2) * (powers - 64)  # (d-1) log κ
    elif at_infinity == 0:
        decay = 2 if function in (bessel_ratio_slope, trigamma_difference) else 1
        expected = value[1] * torch.exp2(decay * (64 - powers))
    else:
        expected = torch.full_like(value, at_infinity)
    torch.testing.assert_close(value, expected, rtol=1e-6 if dtype == torch.float32 else 1e-10, atol=1e-37)


def test_every_engine_reads_the_table(engine: Engine) -> None:
    """Another coefficient in the table changes what torch, C and Triton return, and nothing else has to be changed."""
    dim = 17.25 + len(engine.name) + (engine.device == "cuda") / 8  # no other test has read these tables
    kappa = torch.tensor([1.0, 9.0], device=engine.device)
    exact = curves.value(kappa.double(), "von_mises_fisher", "entropy", dim).float()
    for coefficients in tables.curves("von_mises_fisher", dim)["entropy"].fits.values():
        coefficients[:, 0] += 1.0
    torch.testing.assert_close(curves.value(kappa, "von_mises_fisher", "entropy", dim), exact + 1)


@dtypes
def test_functions_are_monotone_across_cells(dtype: torch.dtype) -> None:
    """At the ends of the cells, neighbouring numbers step back by at most a few roundings."""
    ends = (torch.arange(8, 16, dtype=dtype) * 2.0 ** torch.arange(-12, 40, dtype=dtype)[:, None]).flatten()
    below = torch.nextafter(ends, torch.zeros_like(ends))
    for function in (bessel_ratio, cauchy_relative_entropy, POWER_SPHERICAL.relative_entropy):
        low, high = function(below, 6), function(ends, 6)
        assert ((high - low) >= -4 * torch.finfo(dtype).eps * high).all()
        assert ((high - low) <= 8 * torch.finfo(dtype).eps * high).all()


@pytest.mark.parametrize("dim", [2, 3, 64, 10**6])
def test_inverses(dim: int) -> None:
    """κ → E t → κ over the whole axis, from 1 - E t where that is the accurate number."""
    kappa = torch.logspace(-9, 12, 400, dtype=torch.float64) * dim
    back = bessel_ratio_inverse(bessel_ratio(kappa, dim), dim, bessel_ratio_complement(kappa, dim))
    torch.testing.assert_close(back, kappa, rtol=4e-15, atol=0)
    assert bessel_ratio_inverse(torch.tensor([0.0]), dim).item() == 0
    assert cauchy_mean_cosine_inverse(torch.tensor([0.0]), dim).item() == 0


def test_real_dimensions() -> None:
    """d need not be an integer: I_ν of a real order ν = d/2 - 1 obeys the recurrence A_d = κ/(d + κ A_{d+2})."""
    kappa = torch.logspace(-3, 3, 50, dtype=torch.float64)
    expected = kappa / (4.6 + kappa * bessel_ratio(kappa, 6.6))
    torch.testing.assert_close(bessel_ratio(kappa, 4.6), expected, rtol=2e-15, atol=0)
