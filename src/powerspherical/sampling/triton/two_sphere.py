"""Draws on S², the sphere of R³, in closed form with Triton, in float32. The formulas are in ``families.two_sphere``.

Clamps use ``tl.where``, which keeps NaN. ``tl.maximum`` would replace it.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from powerspherical.families import two_sphere
from powerspherical.special.triton_elementary import expm1, log1p

_LEAST_KAPPA = tl.constexpr(two_sphere.LEAST_KAPPA)
_LARGE_KAPPA = tl.constexpr(two_sphere.LARGE_KAPPA)
_SMALL_KAPPA = tl.constexpr(two_sphere.SMALL_KAPPA)
_LEAST_END = tl.constexpr(two_sphere.LEAST_END)


@triton.jit
def power_spherical_ends(squared_length, kappa):
    """1-t and 1+t of a draw, given S = ``squared_length``."""
    log_half = -0.5 * squared_length / (kappa + 1.0)
    return -2.0 * expm1(log_half), 2.0 * tl.exp(log_half)


@triton.jit
def power_spherical_slope(one_minus_t, one_plus_t, kappa):
    """d artanh(t)/dκ."""
    near = one_minus_t < one_plus_t
    minus = tl.where(one_minus_t < _LEAST_END, _LEAST_END, one_minus_t)
    plus = tl.where(one_plus_t < _LEAST_END, _LEAST_END, one_plus_t)
    log_half = tl.where(near, log1p(tl.where(near, -0.5 * minus, 0.0)), tl.log(0.5 * plus))
    return -log_half / minus / (kappa + 1.0)


@triton.jit
def von_mises_fisher_ends(squared_length, kappa):
    """1-t and 1+t of a draw, given S = ``squared_length``."""
    kappa = tl.where(kappa < _LEAST_KAPPA, _LEAST_KAPPA, kappa)
    log_u = -0.5 * squared_length
    u, rest = tl.exp(log_u), -expm1(log_u)
    complement = -expm1(-2.0 * kappa) * rest
    near = complement < 0.5
    q = u + rest * tl.exp(-2.0 * kappa)
    log_q = tl.where(near, log1p(-tl.where(near, complement, 0.0)), tl.log(q))
    one_minus_t = -log_q / kappa
    small = tl.where(kappa < _LARGE_KAPPA, kappa, _LARGE_KAPPA)
    close = log1p(u * expm1(2.0 * small)) / small
    return one_minus_t, tl.where(kappa < _LARGE_KAPPA, close, 2.0 - one_minus_t)


@triton.jit
def von_mises_fisher_slope(one_minus_t, one_plus_t, kappa):
    """d artanh(t)/dκ."""
    large = tl.where(kappa < _SMALL_KAPPA, _SMALL_KAPPA, kappa)
    a = large * tl.where(one_plus_t < _LEAST_END, _LEAST_END, one_plus_t)
    b = large * tl.where(one_minus_t < _LEAST_END, _LEAST_END, one_minus_t)
    far = (expm1(-a) / a - tl.exp(-a) * (expm1(-b) / b)) / expm1(-2.0 * large)
    small = tl.where(kappa < _SMALL_KAPPA, kappa, _SMALL_KAPPA)
    tilt = 0.5 * small * (one_plus_t - one_minus_t)
    x, y = small * small, tilt * tilt
    # Four terms of ``families.two_sphere._series_slope``, from the last to the first.
    partial = 1 / 40320 - tilt * (1 / 362880)
    total = partial
    partial = 1 / 720 - tilt * (1 / 5040) + x * partial
    total = partial + y * total
    partial = 1 / 24 - tilt * (1 / 120) + x * partial
    total = partial + y * total
    partial = 0.5 - tilt * (1 / 6) + x * partial
    total = partial + y * total
    sinhc = 1.0 + x * (1 / 6 + x * (1 / 120 + x * (1 / 5040 + x * (1 / 362880))))
    return tl.where(kappa < _SMALL_KAPPA, total / sinhc, far)
