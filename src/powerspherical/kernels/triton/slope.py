"""The slope w = d artanh(t)/dκ = (dt/dκ)/(1-t²) of draws, computed inside the kernels of the backward pass.

The formulas are generated from ``powerspherical.formulas.slopes``. A program computes only those that its rows need.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from powerspherical.formulas import slopes
from powerspherical.kernels.triton.elementary import at_most
from powerspherical.kernels.triton.formulas import (
    gamma_slope_by_expansion,
    gamma_slope_by_quadrature,
    power_spherical_slope_3,
    von_mises_fisher_slope,
    von_mises_fisher_slope_3,
)

_LARGE_SHAPE = tl.constexpr(slopes.LARGE_SHAPE)

#: The dimension and the κ from which on the series of ``von_mises_fisher_slope`` is accurate.
_SERIES_DIM, _SERIES_KAPPA = 32, tl.constexpr(40.0)


def slope_method(family: str, dim: int) -> str:
    """Return the METHOD of ``rapidity_slope`` for a family and the dimension of the law of t."""
    if family == "spherical_cauchy":
        return family
    if dim == 3:
        return f"{family}_3"
    if family == "von_mises_fisher":
        return "series" if dim >= _SERIES_DIM else "series or recurrence"
    return "expansion" if (dim - 1) / 2 >= slopes.LARGE_SHAPE else "expansion or quadrature"


@triton.jit
def _recurrence(minus, plus, kappa, largest, degrees):
    """w of von Mises–Fisher draws for κ up to ``largest`` ≤ 40, by the recurrence in the dimension of c/slopes.h.

    N and X are scaled such that no step has a division, and stay below 1e150:

        N_j = (j+1)(j N_{j+2} + (j+3) κ² N_{j+4}),    X_j = N_j - (j+1) κt N_{j+2} - κ²(1-t²) X_{j+2}.

    In float64, seven operations per step, because in low dimensions rounding errors grow. The largest κ of a program
    determines where it starts.
    """
    dim = tl.cast(degrees, tl.int32) + 1
    above_dim = tl.maximum(2.0 * largest + 9.0 - degrees, largest + 6.0)
    j = dim + 2 * (0.5 * above_dim).to(tl.int32)
    kappa, minus, plus = kappa.to(tl.float64), minus.to(tl.float64), plus.to(tl.float64)
    square = kappa * kappa
    spread = square * minus * plus
    tilt = kappa * (0.5 * (plus - minus))
    n = kappa * 0.0 + 1.0
    x = n
    above = n / ((j + 2) * (j + 3)).to(tl.float64)
    while j >= dim:
        step = (j + 1).to(tl.float64)
        scaled = step * n
        new = j.to(tl.float64) * scaled + (step * (step + 2.0)) * square * above
        x = new - tilt * scaled - spread * x
        above = n
        n = new
        j -= 2
    return (x / (n * tl.cast(degrees, tl.float64))).to(tl.float32)


@triton.jit
def rapidity_slope(METHOD: tl.constexpr, noise_ptr, kappa, degrees, minus, plus, row_mask):
    """Return w for a vector of rows, where ``minus`` and ``plus`` are 1-t and 1+t, and ``degrees`` is d-1.

    ``noise_ptr`` points to the Gamma variables of these rows, which only Power Spherical reads.
    """
    if METHOD == "spherical_cauchy":
        result = 1.0 / (1.0 + kappa)
    elif METHOD == "power_spherical_3":
        result = power_spherical_slope_3(minus, plus, kappa)
    elif METHOD == "von_mises_fisher_3":
        result = von_mises_fisher_slope_3(minus, plus, kappa)
    elif METHOD == "series":
        result = von_mises_fisher_slope(plus, kappa, degrees)
    elif METHOD == "series or recurrence":
        low = row_mask & (kappa < _SERIES_KAPPA)
        high = row_mask & ((kappa < _SERIES_KAPPA) == 0)  # includes NaN
        result = kappa
        if tl.max(high.to(tl.int32), 0) > 0:
            result = von_mises_fisher_slope(plus, kappa, degrees)
        if tl.max(low.to(tl.int32), 0) > 0:
            bounded = tl.where(low, kappa, 0.0)
            result = tl.where(low, _recurrence(minus, plus, bounded, tl.max(bounded, 0), degrees), result)
    else:
        gamma = tl.load(noise_ptr, mask=row_mask, other=1.0)
        shape = kappa + 0.5 * degrees
        result = 0.5 * gamma_slope_by_expansion(shape, gamma)
        if METHOD == "expansion or quadrature":
            small = row_mask & (shape < _LARGE_SHAPE)
            if tl.max(small.to(tl.int32), 0) > 0:
                exact = gamma_slope_by_quadrature(at_most(shape, _LARGE_SHAPE), gamma)
                result = tl.where(small, 0.5 * exact, result)
    return result
