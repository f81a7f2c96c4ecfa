"""Differences of the von Mises–Fisher log-partition, exact also when the two arguments nearly agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerspherical.special._debye import debye
from powerspherical.special._elementary import horner
from powerspherical.special.bessel import bessel_ratio, bessel_ratio_slope, recurrence_steps


def _gains(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """G(κb) - G(κl) and its κ-derivative b·A(κb) - l·A(κl), with l = lower and b = lower + gap.

    As in ``bessel``: Debye's expansion at a high order N, every difference taken on paper, then down by
    u_{j-1} = x²/(2j + u_j) for u_j = x·I_{j+1}(x)/I_j(x), on both u and their difference.
    """
    order = dim / 2 - 1
    steps, top = recurrence_steps(order, kappa.dtype)
    series = debye(top, kappa.dtype)
    high, low, change = kappa * (lower + gap), kappa * lower, kappa * gap
    z1, z2 = high / top, low / top
    one = torch.ones_like(z1)
    s1, s2 = torch.hypot(z1, one), torch.hypot(z2, one)
    p1, p2 = 1 / s1, 1 / s2
    q1, q2 = z1 * (z1 / (1 + s1)), z2 * (z2 / (1 + s2))
    q_gain = (change / top) * ((z1 + z2) / (s1 + s2))
    logs = top * (q_gain - torch.log1p(q_gain / (2 + q2))) - 0.5 * torch.log1p(q_gain / (1 + q2))
    gain = logs + (
        q1 * p1 * horner(series.log_sum, 2 * p1 - 1) - q2 * p2 * horner(series.log_sum, 2 * p2 - 1)
    )
    rest1 = (z1 * p1).square() * horner(series.ratio, 2 * p1 - 1)
    rest2 = (z2 * p2).square() * horner(series.ratio, 2 * p2 - 1)
    u1, u2 = top * (q1 + rest1), top * (q2 + rest2)
    u_gain = top * (q_gain + (rest1 - rest2))
    squares_gain = change * (high + low)
    for i in range(steps):
        j = order + steps - i
        d1, d2 = 2 * j + u1, 2 * j + u2
        gain = gain + torch.log1p(u_gain / d2)
        u_gain = (squares_gain - (low * u_gain) * (low / d2)) / d1
        u1, u2 = high * (high / d1), low * (low / d2)
    return gain, torch.where(kappa > 0, u_gain / torch.where(kappa > 0, kappa, 1.0), 0.0)


def _sum_to(value: Tensor, like: Tensor) -> Tensor:
    return value.sum_to_size(like.shape)


class _GainSlope(torch.autograd.Function):
    """b·A(κb) - l·A(κl)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        return _gains(kappa, lower, gap, dim)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        *tensors, ctx.dim = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kappa, lower, gap = ctx.saved_tensors
        upper = lower + gap
        slope, low_slope = (bessel_ratio_slope(kappa * end, ctx.dim) for end in (upper, lower))
        in_kappa = upper * upper * slope - lower * lower * low_slope
        in_gap = bessel_ratio(kappa * upper, ctx.dim) + kappa * upper * slope
        in_lower = None
        if ctx.needs_input_grad[1]:
            at_lower = bessel_ratio(kappa * lower, ctx.dim) + kappa * lower * low_slope
            in_lower = _sum_to(grad * (in_gap - at_lower), lower)
        return _sum_to(grad * in_kappa, kappa), in_lower, _sum_to(grad * in_gap, gap), None


class _Gain(torch.autograd.Function):
    """G(κ(l+g)) - G(κl)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        return _gains(kappa, lower, gap, dim)[0]

    setup_context = _GainSlope.setup_context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kappa, lower, gap = ctx.saved_tensors
        in_kappa = _GainSlope.apply(kappa, lower, gap, ctx.dim)
        in_gap = kappa * bessel_ratio(kappa * (lower + gap), ctx.dim)
        in_lower = None
        if ctx.needs_input_grad[1]:
            in_lower = _sum_to(grad * (in_gap - kappa * bessel_ratio(kappa * lower, ctx.dim)), lower)
        return _sum_to(grad * in_kappa, kappa), in_lower, _sum_to(grad * in_gap, gap), None


def log_hyp0f1_gain(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    """G(κ(l+g)) - G(κl) ≥ 0 with G = ``log_hyp0f1``; differentiable twice."""
    return _Gain.apply(kappa, lower, gap, dim)
