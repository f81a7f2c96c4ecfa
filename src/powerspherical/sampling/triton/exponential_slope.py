"""d artanh(t)/dκ of von Mises–Fisher draws with Triton, by the formulas of ``special.exponential_slope``.

The series runs in float32. The recurrence runs in float64, seven operations per step, because in low dimensions it
amplifies rounding errors. A program computes only the formulas that its rows need. Its largest κ determines where the
recurrence starts.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from powerspherical.special import exponential_slope

#: Further values of METHOD in ``slope.rapidity_slope``, from EXPONENTIAL on. BY_CONCENTRATION chooses for each row
#: between the recurrence and three terms of the series. The others use the series with so many terms.
EXPONENTIAL = tl.constexpr(16)
BY_CONCENTRATION = tl.constexpr(16)
THREE_TERMS = tl.constexpr(17)
TWO_TERMS = tl.constexpr(18)

_LOW_KAPPA = tl.constexpr(exponential_slope.LOW_KAPPA)


def slope_method(dim: int) -> int:
    """Return the METHOD for von Mises–Fisher draws with the law of dimension ``dim``."""
    if dim < exponential_slope.LOW_DIM:
        return BY_CONCENTRATION.value
    return THREE_TERMS.value if dim < exponential_slope.TWO_TERMS_DIM else TWO_TERMS.value


@triton.jit
def _series(plus, kappa, delta, TERMS: tl.constexpr):
    """w by two or three terms of the series, with the polynomials P₁, P₂ and P₃ of ``special._slope_series``."""
    bounded = tl.minimum(kappa, 1e18)  # avoids overflow of the square; g is negligible there
    root = tl.sqrt(delta * delta + 4.0 * bounded * bounded)
    g = delta / root
    s = 2.0 / (1.0 + delta / (root + 2.0 * kappa) + 2.0 * (kappa / delta) * plus)
    y = s - g
    h = 1.0 + g
    p2 = y * (h * y * (0.75 * y + 3.5 * g - 2.5) + (2.0 + g * (-5.0 + g * (-2.5 + 6.0 * g))))
    p2 += 0.5 * g * (g - 1.0) * (g * (9.0 * g - 1.0) - 4.0)
    total = p2
    if TERMS > 2:
        p3 = h * h * y * (1.875 * y + 13.75 * g - 8.75) + h * (13.0 + g * (-35.0 + g * (-11.5 + 42.5 * g)))
        p3 = y * p3 + h * (-6.0 + g * (42.0 + g * (-39.75 + g * (-64.5 + 71.25 * g))))
        p3 = y * p3 + g * (-12.0 + g * (28.0 + g * (47.0 + g * (-93.625 + g * (-37.0 + 68.125 * g)))))
        p3 = y * p3 + g * g * (g - 1.0) * (6.0 + g * (4.0 + g * (-34.5 + g * (-6.5 + 35.0 * g))))
        total -= p3 / delta
    leading = s / delta
    return leading * (1.0 + leading * h * (1.0 - g - 0.5 * y + total / delta))


@triton.jit
def _recurrence(minus, plus, kappa, largest, delta):
    """w by the recurrence in float64, for κ up to ``largest`` ≤ 40.

    N and X of ``special.exponential_slope.recurrence`` are scaled such that no step has a division:

        N_j = (j+1)(j N_{j+2} + (j+3) κ² N_{j+4}),    X_j = N_j - (j+1) κt N_{j+2} - κ²(1-t²) X_{j+2}.

    The scaled numbers stay below 1e150.
    """
    dim = delta.to(tl.int32) + 1
    above_dim = tl.maximum(2.0 * largest + 9.0 - delta, largest + 6.0)
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
    return (x / (n * delta.to(tl.float64))).to(tl.float32)


@triton.jit
def exponential_rapidity_slope(METHOD: tl.constexpr, minus, plus, kappa, beta, row_mask):
    """w = (dt/dκ)/(1-t²) for a block of rows, where ``beta`` is (d-1)/2. NaN if κ is NaN."""
    delta = 2.0 * beta
    if METHOD == BY_CONCENTRATION:
        low = row_mask & (kappa < _LOW_KAPPA)
        high = row_mask & ((kappa < _LOW_KAPPA) == 0)  # includes NaN
        result = kappa
        if tl.max(high.to(tl.int32), 0) > 0:
            result = _series(plus, kappa, delta, 3)
        if tl.max(low.to(tl.int32), 0) > 0:
            bounded = tl.where(low, kappa, 0.0)
            largest = tl.max(bounded, 0)
            result = tl.where(low, _recurrence(minus, plus, bounded, largest, delta), result)
    elif METHOD == THREE_TERMS:
        result = _series(plus, kappa, delta, 3)
    else:
        result = _series(plus, kappa, delta, 2)
    return result
