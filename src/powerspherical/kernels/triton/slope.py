"""The slope w = d artanh(t)/dκ = (dt/dκ)/(1-t²) of draws, computed inside the kernels of the backward pass.

The formulas are generated from ``powerspherical.formulas.slopes``. A program computes only those that its rows need.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from powerspherical.formulas import slopes
from powerspherical.kernels.triton import formulas
from powerspherical.kernels.triton.elementary import at_most

_LARGE_SHAPE = tl.constexpr(slopes.LARGE_SHAPE)
_SERIES_DIM, _SERIES_KAPPA = tl.constexpr(slopes.SERIES_DIM), tl.constexpr(slopes.SERIES_KAPPA)


@triton.jit
def _recurrence(minus, plus, kappa, largest, DIM: tl.constexpr):
    """w of von Mises–Fisher draws for κ up to ``largest`` ≤ 40, by the recurrence in the dimension of c/slopes.h.

    N and X are scaled such that no step has a division, and stay below 1e160:

        N_j = (j+1)(j N_{j+2} + (j+3) κ² N_{j+4}),    X_j = N_j - (j+1) κt N_{j+2} - κ²(1-t²) X_{j+2}.

    In float64, seven operations per step, because in low dimensions rounding errors grow. The largest κ of a program
    determines the dimension where it starts, about max(2κ+12, d+κ+8) as in C.
    """
    above_dim = tl.maximum(2.0 * largest + (12.0 - DIM), largest + 8.0)
    j = DIM + 2 * (0.5 * above_dim).to(tl.int32)
    kappa, minus, plus = kappa.to(tl.float64), minus.to(tl.float64), plus.to(tl.float64)
    square = kappa * kappa
    spread = square * minus * plus
    tilt = kappa * (0.5 * (plus - minus))
    n = kappa * 0.0 + 1.0
    x = n
    above = n / ((j + 2) * (j + 3)).to(tl.float64)
    while j >= DIM:
        step = (j + 1).to(tl.float64)
        scaled = step * n
        new = j.to(tl.float64) * scaled + (step * (step + 2.0)) * square * above
        x = new - tilt * scaled - spread * x
        above = n
        n = new
        j -= 2
    return (x / (n * (DIM - 1.0))).to(tl.float32)


@triton.jit
def rapidity_slope(noise_ptr, kappa, minus, plus, row_mask, FAMILY: tl.constexpr, DIM: tl.constexpr):
    """Return w for a vector of rows, where ``minus`` and ``plus`` are 1-t and 1+t. The law of t is that of DIM.

    ``noise_ptr`` points to the Gamma variables of these rows, which only Power Spherical reads.
    """
    DEGREES: tl.constexpr = DIM - 1.0
    if FAMILY == "spherical_cauchy":
        result = 1.0 / (1.0 + kappa)
    elif FAMILY == "von_mises_fisher":
        if DIM == 3:
            result = formulas.von_mises_fisher_slope_3(minus, plus, kappa)
        elif DIM >= _SERIES_DIM:
            result = formulas.von_mises_fisher_slope(plus, kappa, DEGREES)
        else:
            low = row_mask & (kappa < _SERIES_KAPPA)
            high = row_mask & ((kappa < _SERIES_KAPPA) == 0)  # includes NaN
            result = kappa
            if tl.max(high.to(tl.int32), 0) > 0:
                result = formulas.von_mises_fisher_slope(plus, kappa, DEGREES)
            if tl.max(low.to(tl.int32), 0) > 0:
                bounded = tl.where(low, kappa, 0.0)
                result = tl.where(low, _recurrence(minus, plus, bounded, tl.max(bounded, 0), DIM), result)
    elif DIM == 3:
        result = formulas.power_spherical_slope_3(minus, plus, kappa)
    else:
        gamma = tl.load(noise_ptr, mask=row_mask, other=1.0)
        shape = kappa + 0.5 * DEGREES
        result = 0.5 * formulas.gamma_slope_by_expansion(shape, gamma)
        if 0.5 * DEGREES < _LARGE_SHAPE:
            small = row_mask & (shape < _LARGE_SHAPE)
            if tl.max(small.to(tl.int32), 0) > 0:
                exact = formulas.gamma_slope_by_quadrature(at_most(shape, _LARGE_SHAPE), gamma)
                result = tl.where(small, 0.5 * exact, result)
    return result
