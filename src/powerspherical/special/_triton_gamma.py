"""KL(PS‖uniform) and its derivative or E T as one Triton kernel, in float32. The formulas are those of ``gamma``."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.special._triton_launch import value_and_slope
from powerspherical.special.gamma import shift
from powerspherical.special.triton_elementary import log1p


@triton.jit
def _log1pmx(x):
    """log1p(x) - x for -0.4 ≤ x < 1, by the series of 2 atanh(r), r = x/(2+x)."""
    r = x / (2.0 + x)
    s = r * r
    series = 2 / 11 + s * (2 / 13 + s * (2 / 15 + s * (2 / 17)))
    series = 2 / 3 + s * (2 / 5 + s * (2 / 7 + s * (2 / 9 + s * series)))
    return r * (s * series - x)


@triton.jit
def _stirling_excess(x, inverse, TERMS: tl.constexpr):
    """Q_b(x) of ``gamma._stirling_excess``, with ``inverse`` = 1/b."""
    s = inverse * inverse
    polynomial = 1.0 + x * (2.0 + 3.0 * x)
    total = 1 / 12 - s * polynomial * (1 / 360)
    power = x * x * x
    if TERMS > 2:
        polynomial += power * (4.0 + 5.0 * x)
        total += s * s * polynomial * (1 / 1260)
    if TERMS > 3:
        polynomial += power * x * x * (6.0 + 7.0 * x)
        total -= s * s * s * polynomial * (1 / 1680)
    return total * inverse


@triton.jit
def _trigamma_tail(x, TERMS: tl.constexpr):
    """½x² + Σ B_2k x^{2k+1}, Stirling's series of ψ₁(1/x) without its first term."""
    s = x * x
    series = -1 / 30 + x * 0.0
    if TERMS > 2:
        series += s * (1 / 42)
    if TERMS > 3:
        series -= s * s * (1 / 30)
    return s * (0.5 + x * (1 / 6 + s * series))


@triton.jit
def _digamma_tail(x, TERMS: tl.constexpr):
    """Σ B_2k/(2k) x^{2k}: Stirling's series of log(1/x) - ½x - ψ(1/x)."""
    s = x * x
    series = -1 / 120 + x * 0.0
    if TERMS > 2:
        series += s * (1 / 252)
    if TERMS > 3:
        series -= s * s * (1 / 240)
    return s * (1 / 12 + s * series)


@triton.jit
def power_relative_entropy(kappa, beta, b, STEPS: tl.constexpr, TERMS: tl.constexpr):
    """KL(PS‖uniform), where ``beta`` = (d-1)/2 and the other constants are those of ``gamma.shift``."""
    z, y = kappa + b, kappa + 2.0 * b
    v, w = kappa / z, kappa / y
    leading = log1p(kappa * (v / (4.0 * b)))
    value = beta * leading + 0.5 * _log1pmx(w) + w * w / (1.0 + w)
    value += v * v * _stirling_excess(b / z, 1.0 / b, TERMS)
    value -= w * w * _stirling_excess(2.0 * b / y, 0.5 / b, TERMS)
    for step in tl.static_range(STEPS):
        a = beta + step
        first, second = 1.0 / (kappa + 2.0 * a), 1.0 / (kappa + (2.0 * a + 1.0))
        excess = (kappa * first) * ((1.0 - kappa) * second)
        close = leading + _log1pmx(tl.maximum(excess, -0.4))
        scale = (2.0 * a + 1.0) / (2.0 * b)
        product = (y * first) * ((kappa + a) * second) * ((y / z) * scale)
        square = (kappa * first) * (kappa * second) * ((a + 1.0) / (kappa + a))
        value += tl.where(excess > -0.4, close, tl.log(product) - excess) + square
    return value


@triton.jit
def power_relative_entropy_slope(kappa, beta, b, STEPS: tl.constexpr, TERMS: tl.constexpr):
    """The derivative of ``power_relative_entropy`` in κ."""
    x, y = 1.0 / (kappa + b), 1.0 / (kappa + (b + beta))
    total = x * y
    for step in tl.static_range(STEPS):
        p, q = 1.0 / (kappa + (beta + step)), 1.0 / (kappa + (2.0 * beta + step))
        total += (p + q) * (p * q)
    return kappa * (beta * total + (_trigamma_tail(x, TERMS) - _trigamma_tail(y, TERMS)))


@triton.jit
def _mean_statistic(kappa, beta, b, STEPS: tl.constexpr, TERMS: tl.constexpr):
    """E T = ψ(β+κ) - ψ(2β+κ)."""
    x, y = 1.0 / (kappa + b), 1.0 / (kappa + (b + beta))
    total = log1p(beta * x) + 0.5 * beta * x * y + (_digamma_tail(x, TERMS) - _digamma_tail(y, TERMS))
    for step in tl.static_range(STEPS):
        p = kappa + (beta + step)
        total += beta / (p * (p + beta))
    return -total


@triton.jit(do_not_specialize=["count"])
def _relative_entropy(
    value_ptr,
    slope_ptr,
    kappa_ptr,
    count: tl.int64,
    beta: tl.float32,
    b: tl.float32,
    STEPS: tl.constexpr,
    TERMS: tl.constexpr,
    MEAN: tl.constexpr,
    NEEDS_SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = index < count
    kappa = tl.load(kappa_ptr + index, mask=there, other=1.0)
    tl.store(value_ptr + index, power_relative_entropy(kappa, beta, b, STEPS, TERMS), mask=there)
    if MEAN:
        tl.store(slope_ptr + index, _mean_statistic(kappa, beta, b, STEPS, TERMS), mask=there)
    elif NEEDS_SLOPE:
        tl.store(slope_ptr + index, power_relative_entropy_slope(kappa, beta, b, STEPS, TERMS), mask=there)


def gamma_constants(dim: int) -> tuple[int, int, float, float]:
    """Return STEPS, TERMS, ``beta`` and ``b`` of ``power_relative_entropy``."""
    beta = (dim - 1) / 2
    steps, b, terms = shift(beta, torch.float32)
    return steps, terms, beta, b


def relative_entropy(
    kappa: Tensor, beta: float, steps: int, b: float, terms: int, *, needs_slope: bool, mean: bool = False
) -> tuple[Tensor, Tensor]:
    """Return KL(PS‖uniform) and its derivative in κ.

    Args:
        kappa: κ ≥ 0, any shape, float32.
        beta: (d-1)/2.
        steps, b, terms: see ``gamma.shift``.
        needs_slope: if False, the derivative is an empty tensor.
        mean: whether to return E T in place of the derivative.
    """
    return value_and_slope(
        _relative_entropy,
        kappa,
        numbers=(beta, b),
        constants=(steps, terms, mean),
        needs_slope=needs_slope or mean,
    )
