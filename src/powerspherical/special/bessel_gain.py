"""Differences of the von Mises–Fisher log-partition, accurate also for nearly equal arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import hypot, log1p
from powerspherical.special._debye import debye
from powerspherical.special._elementary import polynomials
from powerspherical.special.bessel import bessel_ratio, bessel_ratio_slope, recurrence_steps


def _gains(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return G(κb) - G(κl) and its κ-derivative b·A(κb) - l·A(κl), with l = ``lower`` and b = ``lower`` + ``gap``.

    As in ``bessel``, we start with Debye's expansion at a high order. The recurrence u_{j-1} = x²/(2j + u_j) for
    u_j = x·I_{j+1}(x)/I_j(x) leads down from there. To avoid cancellation, the difference of u at the two ends has its
    own recurrence.
    """
    order = dim / 2 - 1
    steps, top = recurrence_steps(order, kappa.dtype)
    series = debye(top, kappa.dtype)
    high, low, change = kappa * (lower + gap), kappa * lower, kappa * gap
    z1, z2 = high / top, low / top
    one = torch.ones_like(z1)
    s1, s2 = hypot(z1, one), hypot(z2, one)
    p1, p2 = 1 / s1, 1 / s2
    q1, q2 = z1 * (z1 / (1 + s1)), z2 * (z2 / (1 + s2))
    q_gain = (change / top) * ((z1 + z2) / (s1 + s2))
    logs = top * (q_gain - log1p(q_gain / (2 + q2))) - 0.5 * log1p(q_gain / (1 + q2))
    log_sum1, ratio1 = polynomials((series.log_sum, series.ratio), 2 * p1 - 1)
    log_sum2, ratio2 = polynomials((series.log_sum, series.ratio), 2 * p2 - 1)
    gain = logs + (q1 * p1 * log_sum1 - q2 * p2 * log_sum2)
    rest1, rest2 = (z1 * p1).square() * ratio1, (z2 * p2).square() * ratio2
    u1, u2 = top * (q1 + rest1), top * (q2 + rest2)
    u_gain = top * (q_gain + (rest1 - rest2))
    squares_gain = change * (high + low)
    for i in range(steps):
        j = order + steps - i
        d1, d2 = 2 * j + u1, 2 * j + u2
        gain = gain + log1p(u_gain / d2)
        u_gain = (squares_gain - (low * u_gain) * (low / d2)) / d1
        u1, u2 = high * (high / d1), low * (low / d2)
    return gain, torch.where(kappa > 0, u_gain / torch.where(kappa > 0, kappa, 1.0), 0.0)


def _slope_in_lower(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    at_lower = bessel_ratio(kappa * lower, dim) + kappa * lower * bessel_ratio_slope(kappa * lower, dim)
    return _slope_in_gap(kappa, lower, gap, dim) - at_lower


def _slope_in_gap(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    end = kappa * (lower + gap)
    return bessel_ratio(end, dim) + end * bessel_ratio_slope(end, dim)


def _slope_in_kappa(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    upper = lower + gap
    slope, low_slope = (bessel_ratio_slope(kappa * end, dim) for end in (upper, lower))
    return upper * upper * slope - lower * lower * low_slope


@with_derivatives(_slope_in_kappa, _slope_in_lower, _slope_in_gap)
def _gain_slope(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    """b·A(κb) - l·A(κl)."""
    return _gains(kappa, lower, gap, dim)[1]


def _in_lower(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    return kappa * (bessel_ratio(kappa * (lower + gap), dim) - bessel_ratio(kappa * lower, dim))


@with_derivatives(
    _gain_slope,
    _in_lower,
    lambda kappa, lower, gap, dim: kappa * bessel_ratio(kappa * (lower + gap), dim),
)
def log_hyp0f1_gain(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    """G(κ(l+g)) - G(κl) ≥ 0 with G = ``log_hyp0f1``. Differentiable twice.

    Args:
        kappa: concentration κ ≥ 0, float32 or float64.
        lower, gap: l ≥ 0 and g ≥ 0, tensors that broadcast with ``kappa``.
        dim: ambient dimension d ≥ 2.
    """
    return _gains(kappa, lower, gap, dim)[0]
