"""The slope d artanh(t)/dκ = (dt/dκ)/(1-t²) of draws with Triton, computed inside the kernel of the backward pass.

- Spherical Cauchy: 1/(1+κ).
- Power Spherical: ½ dlog G/dα, where G is the draw's Gamma variable of shape α = κ + (d-1)/2, and the other Gamma
  variable is held fixed (``families.power_spherical``). ``special.gamma_draw`` has the two methods for dlog G/dα.
- von Mises–Fisher: the series and the recurrence of ``exponential_slope``.
- Power Spherical and von Mises–Fisher at d = 3: the closed forms of ``two_sphere``.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from powerspherical.sampling.triton import exponential_slope
from powerspherical.sampling.triton.exponential_slope import EXPONENTIAL, exponential_rapidity_slope
from powerspherical.sampling.triton.two_sphere import power_spherical_slope, von_mises_fisher_slope
from powerspherical.special import gamma_draw
from powerspherical.special.quadrature import legendre

#: Values of METHOD in ``rapidity_slope``. The first serves if all shapes α are large, the second for any shapes.
#: RECIPROCAL is 1/(1+κ). ``exponential_slope`` has further ones, from EXPONENTIAL on.
GAMMA_EXPANSION = tl.constexpr(1)
GAMMA_EXPANSION_OR_QUADRATURE = tl.constexpr(2)
RECIPROCAL = tl.constexpr(3)
POWER_SPHERICAL_3 = tl.constexpr(4)
VON_MISES_FISHER_3 = tl.constexpr(5)

_LARGE_SHAPE = tl.constexpr(gamma_draw.LARGE_SHAPE)
_SMALL_H = tl.constexpr(gamma_draw.SMALL_H)
_NODE_COUNT = tl.constexpr(gamma_draw.NODES)
_NODES, _WEIGHTS = (tl.constexpr(tuple(map(float, numbers))) for numbers in legendre(gamma_draw.NODES))
_LOG_DECAY = tl.constexpr(gamma_draw.LOG_DECAY)
_P0, _P1, _P2, _P3 = (tl.constexpr(c) for c in gamma_draw.P_SERIES)
_A0, _A1, _A2, _A3 = (tl.constexpr(c) for c in gamma_draw.REST)
_B0, _B1, _B2, _B3 = (tl.constexpr(c) for c in gamma_draw.REST_OVER_ALPHA)


@triton.jit
def _expansion(alpha, gamma):
    """dlog G/dα of a Gamma variable G = α(1+h), for a large shape α."""
    inverse = 1.0 / alpha
    h = (gamma - alpha) * inverse
    near = tl.abs(h) < _SMALL_H
    c = tl.where(near, h, 0.0)
    series = ((c * _P3 + _P2) * c + _P1) * c + _P0
    away = tl.where(near, 1.0, h)
    direct = ((away - tl.log(tl.where(near, 1.0, gamma * inverse))) / (away * away) - 0.5) / away
    p = tl.where(near, series, direct)
    c = h * p
    r = 0.5 + c
    rest = ((c * _A3 + _A2) * c + _A1) * c + _A0
    rest += inverse * (((c * _B3 + _B2) * c + _B1) * c + _B0)
    return inverse * (1.0 - h * r + inverse * (r + p + inverse * rest))


@triton.jit
def _digamma(x):
    """ψ(x) for x ≥ ½: Stirling's series at x+4, minus 1/x + … + 1/(x+3) = (2x+3)(2q+2)/(q(q+2)) with q = x(x+3)."""
    q = x * (x + 3.0)
    inverse = 1.0 / (x + 4.0)
    square = inverse * inverse
    tail = inverse * (0.5 + inverse * (1 / 12 - square * (1 / 120 - square * (1 / 252))))
    return tl.log(x + 4.0) - tail - (2.0 * x + 3.0) * (2.0 * q + 2.0) / (q * (q + 2.0))


@triton.jit
def _one_tail(alpha, gamma):
    """dlog G/dα of a Gamma variable G, for a small shape α: the integral of the score over one tail."""
    alpha = tl.where(alpha < _LARGE_SHAPE, alpha, _LARGE_SHAPE)
    gamma = tl.maximum(gamma, 1e-37)
    score = tl.log(gamma) - _digamma(alpha)
    inverse = 1.0 / gamma
    above = tl.log(1.0 + (alpha * tl.log(inverse * _LOG_DECAY + 1.0) + _LOG_DECAY) * inverse)
    window = tl.where(score > 0, above, -(gamma + _LOG_DECAY) / alpha)
    total = 0.0 * score
    for index in tl.static_range(_NODE_COUNT):
        s = window * _NODES[index]
        mass = tl.exp(alpha * s + (gamma - gamma * tl.exp(s)))
        total += _WEIGHTS[index] * mass * (s + score)
    return window * total


@triton.jit
def rapidity_slope(METHOD: tl.constexpr, gamma_ptr, kappa, beta, minus, plus, row_mask):
    """Return (dt/dκ)/(1-t²) for a vector of rows. ``minus`` and ``plus`` are 1-t and 1+t, ``beta`` is (d-1)/2.

    ``gamma_ptr`` points to the Gamma variables of these rows, which only Power Spherical reads.
    """
    if METHOD == RECIPROCAL:
        result = 1.0 / (1.0 + kappa)
    elif METHOD == POWER_SPHERICAL_3:
        result = power_spherical_slope(minus, plus, kappa)
    elif METHOD == VON_MISES_FISHER_3:
        result = von_mises_fisher_slope(minus, plus, kappa)
    elif METHOD >= EXPONENTIAL:
        result = exponential_rapidity_slope(METHOD, minus, plus, kappa, beta, row_mask)
    else:
        gamma = tl.load(gamma_ptr, mask=row_mask, other=1.0)
        alpha = kappa + beta
        result = 0.5 * _expansion(alpha, gamma)
        if METHOD == GAMMA_EXPANSION_OR_QUADRATURE:
            small = row_mask & (alpha < _LARGE_SHAPE)
            if tl.max(small.to(tl.int32), 0) > 0:
                result = tl.where(small, 0.5 * _one_tail(alpha, gamma), result)
    return result


def slope_method(family: str, dim: int) -> int:
    """Return the METHOD for a family, where ``dim`` is the dimension of the law of t."""
    if family == "spherical_cauchy":
        return RECIPROCAL.value
    if family == "von_mises_fisher":
        return VON_MISES_FISHER_3.value if dim == 3 else exponential_slope.slope_method(dim)
    if dim == 3:
        return POWER_SPHERICAL_3.value
    return (
        GAMMA_EXPANSION if (dim - 1) / 2 >= gamma_draw.LARGE_SHAPE else GAMMA_EXPANSION_OR_QUADRATURE
    ).value
