"""The modified Bessel function of the first kind, as the von Mises–Fisher distribution needs it.

With ν = d/2-1 the log-partition relative to the uniform distribution is

    G(κ) = log E_U e^{κt} = log ₀F₁(; d/2; κ²/4) = lnΓ(ν+1) - ν log(κ/2) + log I_ν(κ).

Its derivative is the ratio A(κ) = I_{ν+1}(κ)/I_ν(κ) = E t, and the relative entropy is κA - G. Two expansions cover all
orders and arguments:

- Debye's, at an order N = ν+n high enough for it to be exact to rounding, followed by n steps of the recurrence in the
  order, which is stable downwards.
- Hankel's for large κ at low orders, where the recurrence would cancel.

Private functions take the order ν, a Python number; public ones take the dimension d. In float32 one fused
kernel computes each function together with its derivative: ``_triton_bessel`` on CUDA, ``_native_bessel`` on the CPU.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.constants import untraced
from powerspherical._torch.derivatives import raising, with_derivatives
from powerspherical._torch.elementary import hypot, log1p
from powerspherical.special._debye import debye, hankel
from powerspherical.special._elementary import FusedKernel, kernels, polynomials, runs_fused, with_derivative

# Debye's series is exact to rounding from order _DEBYE_ORDER on, and Hankel's from κ = _HANKEL_START + ν² on.
_DEBYE_ORDER = {torch.float64: 20.0, torch.float32: 10.0}
_HANKEL_START = {torch.float64: 40.0, torch.float32: 12.0}


class Ratio(NamedTuple):
    """r = I_{ν+1}/I_ν and related functions. Parts that were not requested are ``None``.

    Attributes:
        value, complement: r and 1-r.
        slope, curvature: the first two derivatives of r in κ.
        entropy: the relative entropy κr - G.
    """

    value: Tensor
    complement: Tensor | None = None
    slope: Tensor | None = None
    curvature: Tensor | None = None
    entropy: Tensor | None = None


def _asked_for(part: Tensor | None) -> Tensor:
    assert part is not None
    return part


@untraced
def recurrence_steps(order: float, dtype: torch.dtype) -> tuple[int, float]:
    """Return the number of steps from ν up to the order where Debye's expansion is used, and that order."""
    steps = max(0, math.ceil(_DEBYE_ORDER[dtype] - order))
    return steps, order + steps


@untraced
def hankel_range(order: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return the κ from which Hankel's expansion is used, and the constant in its relative entropy (see ``Hankel``)."""
    start = _HANKEL_START[dtype] + order * order
    return start, math.lgamma(order + 1) + order * (1 + math.log(2)) + 0.5 - 0.5 * math.log(2 * math.pi)


@functools.lru_cache(1024)
def kernel_numbers(order: float) -> tuple[int, tuple[float, float, float, float]]:
    """Return the number of recurrence steps, and the numbers (top, start, half, constant), of the fused kernels."""
    steps, top = recurrence_steps(order, torch.float32)
    start, constant = hankel_range(order, torch.float32)
    return steps, (top, start, order + 0.5, constant)


def _names(derivatives: int, entropy: bool) -> tuple[str, ...]:
    """Return the names of the required polynomials in ``Debye`` and ``Hankel``."""
    return ("ratio", "slope", "curvature")[: 1 + derivatives] + (("entropy",) if entropy else ())


def _debye_ratio(kappa: Tensor, order: float, complement: bool, derivatives: int, entropy: bool) -> Ratio:
    """Compute ``Ratio`` at a high order by Debye's expansion in p = 1/√(1+z²), z = κ/order."""
    z = kappa / order
    s = hypot(z, torch.ones_like(z))
    p = 1 / s
    zp = z * p
    series, names = debye(order, kappa.dtype), _names(derivatives, entropy)
    rows = tuple(getattr(series, name) for name in names)
    terms = dict(zip(names, polynomials(rows, 2 * p - 1), strict=True))
    correction, main = p * terms["ratio"], 1 / (1 + p)
    ratio = Ratio(zp * (main + correction))
    if complement:
        ratio = ratio._replace(complement=(1 + 1 / (s + z)) / (1 + s) - zp * correction)
    if derivatives > 0:
        ratio = ratio._replace(slope=p * p * (main + terms["slope"]) / order)
    if derivatives > 1:
        bend = main * (1 + main) + terms["curvature"]
        ratio = ratio._replace(curvature=-zp * p * p * p * bend / (order * order))
    if entropy:
        q = z * (z / (1 + s))  # s - 1
        logs = order * log1p(q / 2) + 0.5 * (log1p(q) - zp * zp)
        ratio = ratio._replace(entropy=torch.addcmul(logs, q * p, terms["entropy"]))
    return ratio


def _step_down(kappa: Tensor, top: Ratio, order: float, steps: int) -> Ratio:
    """Step from ``top`` at order+steps down to ``order``, by I_{j-1} = I_{j+1} + (2j/κ) I_j (DLMF 10.29.1)."""
    value, complement, slope, curvature, entropy = top
    product = torch.zeros_like(kappa)  # Π (1 + κr_j/2j) - 1 over the orders j passed
    for i in range(steps):
        twice = 2 * (order + steps - i)
        scaled = kappa * value
        denominator = twice + scaled
        if entropy is not None:
            product = torch.addcmul(product, product + 1, scaled, value=1 / twice)
        if slope is not None:
            square = denominator * denominator
            numerator = twice - kappa * (kappa * slope)
            if curvature is not None:
                bend = kappa * (2 * slope + kappa * curvature)
                growth = 2 * numerator * (value + kappa * slope)
                curvature = -(bend + growth / denominator) / square
            slope = numerator / square
        value = kappa / denominator
        if complement is not None:
            rest = twice - kappa * complement
            complement = rest / (rest + kappa)
    if entropy is not None:
        gain = torch.where(
            value < 0.5, value - top.value, _asked_for(top.complement) - _asked_for(complement)
        )
        entropy = entropy + kappa * gain - log1p(product)
    return Ratio(value, complement, slope, curvature, entropy)


def _hankel_ratio(kappa: Tensor, order: float, derivatives: int, entropy: bool) -> Ratio:
    """Compute ``Ratio`` for large κ by Hankel's expansion log I_ν - κ + ½log(2πκ) = Σ_k l_k κ^{-k}."""
    x = 1 / kappa
    half = order + 0.5
    series, names = hankel(order, kappa.dtype), _names(derivatives, entropy)
    values = polynomials(tuple(getattr(series, name) for name in names), x)
    terms = dict(zip(names, values, strict=True))
    complement = x * (half + x * terms["ratio"])
    ratio = Ratio(1 - complement, complement)
    if derivatives > 0:
        ratio = ratio._replace(slope=x * x * (half + x * terms["slope"]))
    if derivatives > 1:
        ratio = ratio._replace(curvature=-x * x * x * (2 * half + x * terms["curvature"]))
    if entropy:
        _, constant = hankel_range(order, kappa.dtype)
        ratio = ratio._replace(entropy=half * torch.log(kappa) - constant + x * terms["entropy"])
    return ratio


def bessel_ratios(
    kappa: Tensor, order: float, *, complement: bool = False, derivatives: int = 0, entropy: bool = False
) -> Ratio:
    """Return the ratio of consecutive Bessel functions and related functions, without autograd.

    Args:
        kappa: κ ≥ 0, any shape, float32 or float64.
        order: ν.
        complement, entropy: whether these parts of ``Ratio`` are needed.
        derivatives: how many derivatives of the ratio are needed, at most two.
    """
    if runs_fused(kappa):
        return _fused_ratios(kappa, order, complement, derivatives, entropy)
    steps, top = recurrence_steps(order, kappa.dtype)
    if not steps:
        return _debye_ratio(kappa, order, complement, derivatives, entropy)
    start, _ = hankel_range(order, kappa.dtype)
    low = kappa.clamp(max=start)
    at_top = _debye_ratio(low, top, complement or entropy, derivatives, entropy)
    moderate = _step_down(low, at_top, order, steps)
    far = _hankel_ratio(kappa.clamp(min=start), order, derivatives, entropy)
    large = kappa >= start
    parts = (
        None if f is None or m is None else torch.where(large, f, m)
        for f, m in zip(far, moderate, strict=True)
    )
    return Ratio(*parts)  # type: ignore[arg-type]


def _fused_ratios(kappa: Tensor, order: float, complement: bool, derivatives: int, entropy: bool) -> Ratio:
    """Compute ``bessel_ratios`` by fused kernels, with one call per part."""
    evaluate = kernels("bessel", kappa).evaluate

    def part(form: str) -> Tensor:
        return evaluate(form, kappa, order, needs_slope=False)[0]

    ratio = Ratio(part("ratio"))
    if complement:
        ratio = ratio._replace(complement=part("complement"))
    if derivatives > 0:
        slope, curvature = evaluate("slope", kappa, order, needs_slope=derivatives > 1)
        ratio = ratio._replace(slope=slope, curvature=curvature if derivatives > 1 else None)
    if entropy:
        ratio = ratio._replace(entropy=part("relative_entropy"))
    return ratio


def _order(dim: float) -> float:
    return dim / 2 - 1


def _fused(form: str) -> FusedKernel:
    """Return the fused kernel for one of ``_debye.FORMS``."""

    def run(kappa: Tensor, dim: float, needs_slope: bool) -> tuple[Tensor, Tensor]:
        return kernels("bessel", kappa).evaluate(form, kappa, _order(dim), needs_slope=needs_slope)

    return run


@raising
def _no_further_derivative(kappa: Tensor, dim: float) -> Tensor:
    raise RuntimeError("the Bessel functions are differentiable up to the third derivative of log I")


@with_derivative(_no_further_derivative)
def bessel_ratio_curvature(kappa: Tensor, dim: float) -> Tensor:
    """A''_d(κ)."""
    return _asked_for(bessel_ratios(kappa, _order(dim), derivatives=2).curvature)


@with_derivative(lambda kappa, dim: bessel_ratio_curvature(kappa, dim), fused=_fused("slope"))
def bessel_ratio_slope(kappa: Tensor, dim: float) -> Tensor:
    """Return A'_d(κ), the variance of t under the von Mises–Fisher distribution.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2; it need not be an integer.

    Relative error about 4e-15 (float64) and 1e-6 (float32) for d from 2 to 1e7 and κ from 0 to 1e9. Differentiable
    once.

    >>> bessel_ratio_slope(torch.tensor([0.0, 1.0]), 3)  # 1/d at κ = 0
    tensor([0.3333, 0.2759])
    """
    return _asked_for(bessel_ratios(kappa, _order(dim), derivatives=1).slope)


@with_derivative(lambda kappa, dim: bessel_ratio_slope(kappa, dim), fused=_fused("ratio"))
def bessel_ratio(kappa: Tensor, dim: float) -> Tensor:
    """A_d(κ) = I_{d/2}(κ)/I_{d/2-1}(κ), the mean of t under the von Mises–Fisher distribution.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64.
        dim: ambient dimension d ≥ 2; it need not be an integer.

    Relative error about 1e-15 (float64) and 3e-7 (float32) for d from 2 to 1e7 and κ from 0 to 1e9.

    >>> bessel_ratio(torch.tensor(1.0, dtype=torch.float64), 3)  # coth 1 - 1
    tensor(0.3130, dtype=torch.float64)
    """
    return bessel_ratios(kappa, _order(dim)).value


@with_derivative(lambda kappa, dim: -bessel_ratio_slope(kappa, dim), fused=_fused("complement"))
def bessel_ratio_complement(kappa: Tensor, dim: float) -> Tensor:
    """Return 1 - A_d(κ), accurate also where A_d is nearly 1.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2; it need not be an integer.

    Relative error about 3e-15 (float64) and 5e-7 (float32) for d from 2 to 1e7 and κ from 0 to 1e9. Differentiable
    twice.

    >>> kappa = torch.tensor(1e9)
    >>> bessel_ratio_complement(kappa, 3), 1 - bessel_ratio(kappa, 3)  # 1/κ; the subtraction loses it
    (tensor(1.0000e-09), tensor(0.))
    """
    return _asked_for(bessel_ratios(kappa, _order(dim), complement=True).complement)


@with_derivative(lambda kappa, dim: kappa * bessel_ratio_slope(kappa, dim), fused=_fused("relative_entropy"))
def exponential_relative_entropy(kappa: Tensor, dim: float) -> Tensor:
    """KL(vMF‖uniform) = κA - G, which is 0 at κ = 0.

    For d from 2 to 1e7 and κ from 0 to 1e9 the relative error is about 1e-15 in float64 and 1e-6 in float32. The
    derivative in float32 has a relative error of 2e-6.
    """
    return _asked_for(bessel_ratios(kappa, _order(dim), entropy=True).entropy)


def relative_entropy_and_mean(kappa: Tensor, dim: float) -> tuple[Tensor, Tensor]:
    """``exponential_relative_entropy`` and A_d(κ) - 1 = E t - 1 in one pass, without derivatives.

    In float32 one fused kernel computes both (see ``runs_fused``).
    """
    if runs_fused(kappa):
        return _fused("entropy_and_mean")(kappa, dim, True)
    ratios = bessel_ratios(kappa, _order(dim), complement=True, entropy=True)
    return _asked_for(ratios.entropy), -_asked_for(ratios.complement)


@with_derivative(lambda kappa, dim: bessel_ratio(kappa, dim), fused=_fused("log_partition"))
def log_hyp0f1(kappa: Tensor, dim: float) -> Tensor:
    """Return G(κ) = log ₀F₁(; d/2; κ²/4) = log E_U e^{κt}, the von Mises–Fisher log-partition relative to the uniform.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2; it need not be an integer.

    Relative error about 1e-15 (float64) and 5e-7 (float32) for d from 2 to 1e7 and κ from 0 to 1e9. Differentiable
    three times.

    >>> log_hyp0f1(torch.tensor(1.0, dtype=torch.float64), 3).exp()  # sinh 1
    tensor(1.1752, dtype=torch.float64)
    """
    ratios = bessel_ratios(kappa, _order(dim), entropy=True)
    return kappa * ratios.value - _asked_for(ratios.entropy)


@with_derivative(
    lambda kappa, dim: -bessel_ratio_complement(kappa, dim), fused=_fused("scaled_log_partition")
)
def log_hyp0f1_scaled(kappa: Tensor, dim: float) -> Tensor:
    """G(κ) - κ = -κ(1-A) - KL. Both terms have the same sign, so nothing cancels at large κ."""
    ratios = bessel_ratios(kappa, _order(dim), complement=True, entropy=True)
    return -kappa * _asked_for(ratios.complement) - _asked_for(ratios.entropy)


def log_bessel_i(order: float, x: Tensor) -> Tensor:
    """log I_ν(x), the modified Bessel function of the first kind, for any real order ν ≥ 0 and x ≥ 0.

    Args:
        order: ν ≥ 0, a Python number (not a tensor).
        x: argument, any shape, float32 or float64; log I_ν(0) is -inf for ν > 0 and 0 for ν = 0.

    The error is a few rounding errors of the largest of ν log(x/2), lnΓ(ν+1) and x. The result does not overflow and is
    differentiable in x.

    >>> log_bessel_i(0.5, torch.tensor(1e4, dtype=torch.float64))  # x - ½ log(2πx)
    tensor(9994.4759, dtype=torch.float64)
    """
    if not order >= 0:
        raise ValueError(f"order must be a number ≥ 0, got {order}")
    growth = log_hyp0f1(x, 2 * order + 2)
    if order == 0:
        return growth
    return torch.xlogy(order, x / 2) + (growth - math.lgamma(order + 1))


@with_derivatives(
    lambda kappa, ratio, complement, dim: 1 / bessel_ratio_slope(kappa, dim), None, from_output=True
)
def _inverse_ratio(ratio: Tensor, complement: Tensor, dim: float) -> Tensor:
    """Invert the ratio by three steps of Halley's method, from Amos' bound (Math. Comp. 28, 1974) solved for κ."""
    a, b = (dim - 1) / 2, (dim + 1) / 2
    rest = complement * (1 + ratio)
    kappa = ratio * (a + torch.sqrt(a * a * ratio * ratio + b * b * rest)) / rest
    for _ in range(3):
        now = bessel_ratios(kappa, _order(dim), complement=True, derivatives=2)
        error = torch.where(ratio < 0.5, now.value - ratio, complement - _asked_for(now.complement))
        slope, curvature = _asked_for(now.slope), _asked_for(now.curvature)
        step = error / slope
        kappa = kappa - step / (1 - 0.5 * step * (curvature / slope))
    return kappa


def bessel_ratio_inverse(ratio: Tensor, dim: float, complement: Tensor | None = None) -> Tensor:
    """Return the κ with A_d(κ) = ratio, for ratio in [0, 1).

    Args:
        ratio: mean resultant length, any shape, float32 or float64.
        dim: ambient dimension d ≥ 2.
        complement: 1 - ratio, if it is known more accurately than by subtraction.

    Exact to a few rounding errors of ``ratio`` and ``complement``. Differentiable in ``ratio``; ``complement`` gets no
    gradient.

    >>> kappa = bessel_ratio_inverse(torch.tensor(0.5, dtype=torch.float64), 768)
    >>> bessel_ratio(kappa, 768)
    tensor(0.5000, dtype=torch.float64)
    """
    return _inverse_ratio(ratio, (1 - ratio if complement is None else complement).detach(), dim)
