"""Ratios of Gamma functions: the area of the sphere, and the Power Spherical distribution relative to the uniform.

With β = (d-1)/2 the log-partition relative to the uniform distribution is

    D(κ) = log E_U (1+t)^κ = lnΓ(β+κ) + lnΓ(β+½) - lnΓ(β+κ/2) - lnΓ(β+½+κ/2).

This follows from De Cao & Aziz (2020), theorem "Power Spherical density", by the duplication formula. The functions
below cancel the large terms of lnΓ on paper. Each first shifts β to b = β+n with the recurrence Γ(z+1) = zΓ(z) and then
uses Stirling's series at b, where it is exact up to rounding.

In low odd dimensions no approximation is needed: β is an integer, and Γ(α+β)/Γ(α), α = β+κ, is the product of the
factors α, α+1, …, α+β-1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical._torch.constants import tensor_constant, untraced
from powerspherical._torch.elementary import log1p
from powerspherical.special._elementary import horner, kernels, log1pmx_near_zero, runs_fused, with_derivative


@untraced
def log_sphere_area(dim: int) -> float:
    """log of the area 2π^{d/2}/Γ(d/2) of the unit sphere in R^d (d = ``dim`` is the ambient dimension).

    >>> round(math.exp(log_sphere_area(3)) / math.pi, 12)  # 4π
    4.0
    """
    return math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)


@untraced
def log_cosine_normalizer(dim: int) -> float:
    """log of the constant c of the density c·(sin φ)^{d-2} of the angle from a pole, for uniform points.

    c = Γ(d/2)/(Γ((d-1)/2)√π), by an asymptotic series in 1/x, x = (d-1)/2, where lnΓ would cancel.
    """
    x = (dim - 1) / 2
    if dim < 60:
        return math.lgamma(x + 0.5) - math.lgamma(x) - 0.5 * math.log(math.pi)
    terms = (-1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304, 39325 / 33554432)
    series = sum(term / x**k for k, term in enumerate(terms, start=1))
    return 0.5 * math.log(x / math.pi) + math.log1p(series)


_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66]  # B_2, B_4, …

# Pairs (start, terms): for z ≥ start this many terms of Stirling's series are exact up to rounding.
_STIRLING = {
    torch.float64: [(16.0, 5)],
    torch.float32: [(3.5, 4), (6.5, 3), (14.0, 2)],
}

_NEAR = 0.4  # for smaller v the terms of -log(1-v) - v cancel


@untraced
def shift(beta: float, dtype: torch.dtype) -> tuple[int, float, int]:
    """Return the number of steps n, b = β+n, and the number of terms of Stirling's series at b."""
    rules = _STIRLING[dtype]
    steps = max(0, math.ceil(rules[0][0] - beta))
    shifted = beta + steps
    return steps, shifted, min(terms for start, terms in rules if start <= shifted)


@tensor_constant
def _ladder(beta: float, steps: int) -> list[float]:
    """The arguments β, β+1, … of the recurrence."""
    return [beta + i for i in range(steps)]


def _factors(kappa: Tensor, beta: float, steps: int) -> Tensor | None:
    """Return α, α+1, …, α+β-1 along a new last axis, in low odd dimensions; otherwise None."""
    if not steps or beta != int(beta):
        return None
    return kappa.unsqueeze(-1) + _ladder(kappa, beta, int(beta))


@tensor_constant
def _ends(first: float, second: float) -> list[float]:
    return [first, second]


def _difference(ends: Tensor) -> Tensor:
    """Return the first minus the second entry of the last axis."""
    first, second = ends.unbind(-1)
    return first - second


def _third_cumulant(kappa: Tensor, dim: float) -> Tensor:
    """Return D'''(κ) = ψ₂(α) - ψ₂(α+β), with α = β+κ."""
    beta = (dim - 1) / 2
    steps, b, terms = shift(beta, kappa.dtype)
    if (factors := _factors(kappa, beta, steps)) is not None:
        return -2 * (1 / factors).pow(3).sum(-1)
    ends = 1 / (kappa.unsqueeze(-1) + _ends(kappa, b, b + beta))
    square = ends.square()
    tail = horner([-(2 * k + 3) * c for k, c in enumerate(_BERNOULLI[:terms])], square)
    x, y = ends.unbind(-1)
    total = _difference((tail * square - ends) * square) - beta * x * y * (x + y)
    if steps:
        z = kappa.unsqueeze(-1) + _ladder(kappa, beta, steps)
        x, y = 1 / z, 1 / (z + beta)
        total = total - 2 * beta * (x * y * (x * x + x * y + y * y)).sum(-1)
    return total


@with_derivative(lambda kappa, dim: _third_cumulant(kappa, dim))
def trigamma_difference(kappa: Tensor, dim: float) -> Tensor:
    """Return ψ₁(α) - ψ₁(α+β) = D''(κ), the variance of log(1+t) under the Power Spherical distribution.

    Here α = β+κ and β = (dim-1)/2.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 5e-7 (float32) for d from 2 to 1e7 and κ from 0 to 1e9. Differentiable.

    >>> trigamma_difference(torch.tensor(1.0, dtype=torch.float64), 3)  # ψ₁(2) - ψ₁(3) = 1/4
    tensor(0.2500, dtype=torch.float64)
    """
    beta = (dim - 1) / 2
    steps, b, terms = shift(beta, kappa.dtype)
    if (factors := _factors(kappa, beta, steps)) is not None:
        return factors.reciprocal().square().sum(-1)
    # ψ₁(z) ~ 1/z + 1/2z² + Σ B_2k/z^{2k+1}. Only the first terms cancel, so we subtract them on paper.
    ends = 1 / (kappa.unsqueeze(-1) + _ends(kappa, b, b + beta))
    square = ends.square()
    total = ends.prod(-1)
    if steps:
        z = kappa.unsqueeze(-1) + _ladder(kappa, beta, steps)
        x, y = 1 / z, 1 / (z + beta)
        total = total + ((x + y) * (x * y)).sum(-1)
    tail = (ends * horner(_BERNOULLI[:terms], square)).add_(0.5)
    return beta * total + _difference(square * tail)


def _stirling_slope(ends: Tensor, terms: int) -> Tensor:
    """Return Σ_k B_2k/(2k) (x^{2k} - y^{2k}) for ends (x, y). It is so small that cancellation does no harm."""
    square = ends.square()
    return _difference(square * horner([c / (2 * k + 2) for k, c in enumerate(_BERNOULLI[:terms])], square))


@with_derivative(lambda kappa, dim: -trigamma_difference(kappa, dim))
def digamma_difference(kappa: Tensor, dim: float) -> Tensor:
    r"""Return ψ(α+β) - ψ(α), with α = β+κ and β = (dim-1)/2.

    It is -E log((1+t)/2) under the Power Spherical distribution on the unit sphere of R^dim.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64.
        dim: the ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 3e-7 (float32) for every d and κ. Differentiable twice.

    >>> digamma_difference(torch.tensor(1.0, dtype=torch.float64), 3)  # ψ(3) - ψ(2) = 1/2
    tensor(0.5000, dtype=torch.float64)
    """
    beta = (dim - 1) / 2
    steps, b, terms = shift(beta, kappa.dtype)
    if (factors := _factors(kappa, beta, steps)) is not None:
        return factors.reciprocal().sum(-1)
    ends = 1 / (kappa.unsqueeze(-1) + _ends(kappa, b, b + beta))
    total = log1p(beta * ends[..., 0]) + (0.5 * beta) * ends.prod(-1) + _stirling_slope(ends, terms)
    if steps:
        z = kappa.unsqueeze(-1) + _ladder(kappa, beta, steps)
        total = total + beta * (1 / (z * (z + beta))).sum(-1)
    return total


@with_derivative(lambda kappa, dim: trigamma_difference(kappa, dim))
def mean_log1p(kappa: Tensor, dim: float) -> Tensor:
    """Return D'(κ) = E log(1+t) = log 2 - ψ(α+β) + ψ(α) under the Power Spherical distribution.

    Here α = β+κ and β = (dim-1)/2.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 3e-7 (float32) for d from 2 to 1e7 and κ from 0 to 1e9. It is accurate also
    for large d and small κ, where the value is about (κ-½)/d and log 2 would cancel. Near its zero the error is
    relative to 1/d. Differentiable twice.

    >>> mean_log1p(torch.tensor(1.0, dtype=torch.float64), 3)  # log 2 - 1/2
    tensor(0.1931, dtype=torch.float64)
    """
    beta = (dim - 1) / 2
    steps, b, terms = shift(beta, kappa.dtype)
    ends = 1 / (kappa.unsqueeze(-1) + _ends(kappa, b, 2 * b))
    direct = log1p(kappa * ends[..., 1]) - (0.5 * b) * ends.prod(-1) - _stirling_slope(ends, terms)
    if steps:
        a, k = _ladder(kappa, beta, steps), kappa.unsqueeze(-1)
        double = 2 * a + k
        direct = direct + ((k * double - a) / (double * (double + 1) * (a + k))).sum(-1)
    return torch.where(kappa < beta, direct, math.log(2) - digamma_difference(kappa, dim))


def _stirling_excess(b: float, terms: int) -> list[float]:
    """Return the coefficients of Q_b in S(b) - S(z) + κS'(z) = v² Q_b(b/z).

    S is Stirling's series, z = b+κ and v = κ/z.
    """
    coefficients = [0.0] * (2 * terms - 1)
    for k, bernoulli in enumerate(_BERNOULLI[:terms], start=1):
        power = 2 * k - 1
        for j in range(power):
            coefficients[j] += (j + 1) * bernoulli / (2 * k * power) * b**-power
    return coefficients


@tensor_constant
def stirling_excess_pairs(b: float, terms: int) -> list[tuple[float, float]]:
    """The coefficients of Q_b and Q_2b, one pair per power. Call it as ``stirling_excess_pairs(like, b, terms)``."""
    return list(zip(_stirling_excess(b, terms), _stirling_excess(2 * b, terms), strict=True))


def _stirling_excesses(ends: Tensor, squares: Tensor, b: float, terms: int) -> Tensor:
    """Return v² Q_b(x) - w² Q_{2b}(y) for ends (x, y) and squares (v², w²)."""
    *rest, value = stirling_excess_pairs(ends, b, terms).unbind()
    for coefficients in reversed(rest):
        value = torch.addcmul(coefficients, value, ends)
    return _difference(value * squares)


@tensor_constant
def _recurrence(beta: float, steps: int) -> list[list[float]]:
    """2a, 2a+1, a, a+1 and (2a+1)/2b for a = β, …, b-1, where b = β+steps."""
    a = [beta + i for i in range(steps)]
    double = [2 * x for x in a]
    odd = [2 * x + 1 for x in a]
    return [double, odd, a, [x + 1 for x in a], [x / (2 * (beta + steps)) for x in odd]]


def _fused_relative_entropy(
    kappa: Tensor, dim: float, needs_slope: bool, mean: bool = False
) -> tuple[Tensor, Tensor]:
    beta = (dim - 1) / 2
    constants = shift(beta, kappa.dtype)
    return kernels("gamma", kappa).relative_entropy(
        kappa, beta, *constants, needs_slope=needs_slope, mean=mean
    )


@with_derivative(lambda kappa, dim: kappa * trigamma_difference(kappa, dim), fused=_fused_relative_entropy)
def power_relative_entropy(kappa: Tensor, dim: float) -> Tensor:
    """Return KL(p‖U) = κD'(κ) - D(κ) of the Power Spherical distribution p from the uniform.

    Relative error about 1e-15 (float64) and 7e-7 (float32), for d from 2 to 1e7 and κ from 0 to 1e9. In float32
    one fused kernel computes the value and its derivative (see ``runs_fused``).
    """
    beta = (dim - 1) / 2
    steps, b, terms = shift(beta, kappa.dtype)
    if (factors := _factors(kappa, beta, steps)) is not None:
        return _product_entropy(kappa, factors, beta)
    k, starts = kappa.unsqueeze(-1), _ends(kappa, b, 2 * b)
    sums = k + starts
    parts = k / sums
    z, y = sums.unbind(-1)
    v, w = parts.unbind(-1)
    leading = log1p(kappa * v / (4 * b))  # log of y²/(4bz)
    squares = parts.square()
    total = beta * leading + 0.5 * log1pmx_near_zero(w) + squares[..., 1] / (1 + w)
    total = total + _stirling_excesses(starts / sums, squares, b, terms)
    if not steps:
        return total
    # For each a = β+i the recurrence adds κ²(a+1)/((2a+κ)(2a+1+κ)(a+κ)) + log(1+e) - e + leading, with
    # e = κ(1-κ)/((2a+κ)(2a+1+κ)). As κ → 0 all terms are of second order. For large κ the two logs cancel, so we take
    # the log of their product, which is of order one.
    double, odd, a, next_a, scale = _recurrence(kappa, beta, steps).unbind()
    first, second = 1 / (k + double), 1 / (k + odd)  # each is multiplied by a large factor below: no overflow
    k_first, k_second, k_plus_a = k * first, k * second, k + a
    excess = k_first * ((1 - k) * second)
    near = excess > -0.4
    close = leading.unsqueeze(-1) + log1pmx_near_zero(excess.clamp(min=-0.4))
    product = (y.unsqueeze(-1) * first) * (k_plus_a * second) * ((y / z).unsqueeze(-1) * scale)
    square = k_first * k_second * (next_a / k_plus_a)
    return total + (torch.where(near, close, torch.log(product) - excess) + square).sum(-1)


def _product_entropy(kappa: Tensor, factors: Tensor, beta: float) -> Tensor:
    """Return KL(p‖U) in low odd dimensions, where D = κ log 2 - Σ log(1 + κ/a) for a = β, …, 2β-1.

    The terms are log(1 + κ/a) - v = -log(1-v) - v with v = κ/(a+κ), which is of second order.
    """
    k = kappa.unsqueeze(-1)
    v = k / factors
    near = -log1pmx_near_zero(-v.clamp(max=_NEAR))
    far = log1p(k / _ladder(kappa, beta, int(beta))) - v
    return torch.where(v < _NEAR, near, far).sum(-1)


def relative_entropy_and_mean(kappa: Tensor, dim: float) -> tuple[Tensor, Tensor]:
    """Return ``power_relative_entropy`` and E log((1+t)/2) = -``digamma_difference``, without derivatives.

    In float32 one fused kernel computes both (see ``runs_fused``).
    """
    if runs_fused(kappa):
        return _fused_relative_entropy(kappa, dim, needs_slope=False, mean=True)
    return power_relative_entropy(kappa, dim), -digamma_difference(kappa, dim)


@with_derivative(lambda kappa, dim: mean_log1p(kappa, dim))
def log_gamma_ratio(kappa: Tensor, dim: float) -> Tensor:
    """Return D(κ) = log E_U (1+t)^κ = κD' - KL, the Power Spherical log-partition relative to the uniform.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 2e-6 (float32). Near the zeros D(0) = D(1) = 0 this is the absolute error.
    Differentiable three times.

    >>> log_gamma_ratio(torch.tensor([0.0, 2.0], dtype=torch.float64), 3).exp()  # E(1+t)² = 1 + 1/3
    tensor([1.0000, 1.3333], dtype=torch.float64)
    """
    return kappa * mean_log1p(kappa, dim) - power_relative_entropy(kappa, dim)
