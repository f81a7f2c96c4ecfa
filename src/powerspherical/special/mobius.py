"""Averages over the sphere for the spherical Cauchy distribution (Kato & McCullagh 2020).

The distribution is the image of the uniform one under a Möbius map of the sphere: a boost by the rapidity τ ≥ 0, which
takes a cosine t to t' = (t + tanh τ)/(1 + t tanh τ). Relative to the uniform, its density is
(cosh τ - t sinh τ)^{-(d-1)}. Its moments and divergences are averages over the cosine t of a uniform point:

    KL = (d-1) E log(cosh τ - t sinh τ),    E t',    Var t'.

We average over t and -t first. This leaves positive terms in s = 1-t², with S = sinh τ and D = 1 + sS²:

    KL = (d-1)/2 E log D,    1 - E t' = E A,  A = (1 - sSe^{-τ})/D,    E t' = E sS cosh τ/D,
    Var t' = E (A - E A)² + E (1-s)/D².

In the rapidity y = artanh t the uniform law has the density ∝ sech^{d-1} y. All integrands are analytic in the strip
|Im y| < π/2 for every τ, so the trapezoidal rule converges geometrically (Trefethen & Weideman 2014). For large d it
has a dozen nodes. On the circle there are closed forms. Functions of κ are read from ``tables``, which are
built from these averages. ``mean_log_boost`` computes its average at every call.

Functions take the concentration κ = e^τ - 1 ≥ 0. The radius of the Möbius map is ρ = tanh(τ/2) = κ/(κ+2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import expm1, hypot, log1p
from powerspherical.special.curves import inverse, value

#: Integrands are followed until they have fallen by e^-exponent. The aliasing error is below that, too.
_EXPONENT = {torch.float64: 37.0, torch.float32: 17.0}

_NEWTON_STEPS = 5


def _step(dim: int, exponent: float) -> float:
    """Return the step h of a trapezoidal rule for integrands like sech^m y, m = d+3, with error e^-exponent.

    The error is the Fourier transform at 2π/h relative to that at 0, |Γ(a+ib)/Γ(a)|² with a = m/2 and b = π/h. By
    Stirling's formula its log is about (a-½) log(1 + b²/a²) - 2b atan(b/a), which decreases in b.
    """
    a, low, high = (dim + 3) / 2, 0.0, 10.0 * (exponent + dim)
    for _ in range(60):
        b = (low + high) / 2
        log_error = (a - 0.5) * math.log1p((b / a) ** 2) - 2 * b * math.atan(b / a)
        low, high = (b, high) if log_error > -exponent else (low, b)
    return math.pi / high


@tensor_constant
def _rule(dim: int, decay: int, reach: float, exponent: float) -> Numbers:
    """s = sech² y, 1-s and weights of the trapezoidal rule for y ≥ 0, until sech^decay y has fallen by e^-reach."""
    end = reach / decay + math.log(2) if reach > 30 * decay else math.acosh(math.exp(reach / decay))
    step = _step(dim, exponent)
    nodes = [step * j for j in range(math.ceil(end / step) + 1)]
    logs = [math.log1p(2 * math.sinh(y / 2) ** 2) for y in nodes]  # log cosh y, accurate for small y
    weights = [math.exp(-(dim - 1) * log) * (1.0 if j else 0.5) for j, log in enumerate(logs)]
    total = math.fsum(weights)
    return [
        [math.exp(-2 * log) for log in logs],
        [math.tanh(y) ** 2 for y in nodes],
        [weight / total for weight in weights],
    ]


def log_rule(like: Tensor, dim: int) -> Tensor:
    """Return the rule of ``uniform_cosine_rule`` as one tensor with three rows."""
    exponent = _EXPONENT[like.dtype]
    return _rule(like, dim, dim - 1, exponent, exponent)


def uniform_cosine_rule(like: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return s = 1-t², t² and weights for the cosine t ≥ 0 of a uniform point of the unit sphere in R^dim.

    The rule is accurate for averages of even functions of t that grow at most like a logarithm in y.
    """
    s, complement, weights = log_rule(like, dim).unbind()
    return s, complement, weights


def sinh_rapidity(kappa: Tensor) -> Tensor:
    """Return sinh τ for e^τ = 1+κ, without cancellation."""
    return 0.5 * kappa * ((kappa + 2) / (kappa + 1))


def _mean_log_boost_slope(q: Tensor, dim: int) -> Tensor:
    """Return the derivative E 2s(1+2q)/(1+4q(1+q)s) of ``mean_log_boost`` in q = sinh²(τ/2), without overflow."""
    if dim == 2:
        return 1 / (1 + q)
    s, _, weights = uniform_cosine_rule(q, dim)
    ratio = ((1 + 2 * q) / (1 + q)).unsqueeze(-1)
    return 2 * (weights * s * (ratio / (1 / (1 + q).unsqueeze(-1) + 4 * s * q.unsqueeze(-1)))).sum(-1)


@with_derivatives(_mean_log_boost_slope)
def mean_log_boost(half_sinh_square: Tensor, dim: int) -> Tensor:
    """Return E_U log(cosh τ - t sinh τ) ≥ 0, given q = sinh²(τ/2) ≥ 0.

    If two points of the ball have the hyperbolic distance τ, (d-1) times the result is the KL divergence between their
    spherical Cauchy distributions.

    Args:
        half_sinh_square: q, of any shape, float32 or float64.
        dim: the ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 3e-7 (float32) for d from 2 to 1e7 and any q; differentiable.

    >>> mean_log_boost(torch.tensor(1.0, dtype=torch.float64), 2)  # log(1+q) on the circle
    tensor(0.6931, dtype=torch.float64)
    """
    q = half_sinh_square
    if dim == 2:
        return log1p(q)
    # E log1p(4q(1+q)s). For q ≥ 1e8 the product might overflow, so we sum the logs of its factors.
    s, _, weights = uniform_cosine_rule(q, dim)
    small = q < 1e8
    near, far = torch.where(small, q, 1.0), torch.where(small, 1.0, q)
    average = (weights * log1p((4 * near * (1 + near)).unsqueeze(-1) * s)).sum(-1)
    logs = 2 * torch.log(2 * far) + log1p(1 / far)
    rest = (weights * torch.log(s + (0.25 / far / (1 + far)).unsqueeze(-1))).sum(-1)
    return 0.5 * torch.where(small, average, logs + rest)


@with_derivatives(lambda q, mean, dim: 1 / _mean_log_boost_slope(q, dim), from_output=True)
def _inverse_log_boost(mean: Tensor, dim: int) -> Tensor:
    """Invert ``mean_log_boost`` by Newton's method: log(e^{2·mean} - 1) is nearly linear in log sinh² τ."""
    zero = mean == 0
    wanted = torch.where(zero, 1.0, mean)
    s, _, weights = uniform_cosine_rule(mean, dim)
    square = expm1(2 * wanted) * (dim / (dim - 1))  # sinh² τ, if s were constant at its mean (d-1)/d
    for _ in range(_NEWTON_STEPS):
        product = square.unsqueeze(-1) * s
        reached = 0.5 * (weights * log1p(product)).sum(-1)
        slope = (weights * (product / (1 + product))).sum(-1)
        height = torch.log(expm1(2 * wanted) / expm1(2 * reached))
        square = square * torch.exp(height * (-expm1(-2 * reached) / slope))
    root = torch.sqrt(square)
    return torch.where(zero, 0.0, 0.5 * root * (root / (1 + hypot(root, torch.ones_like(root)))))


def mean_log_boost_inverse(mean: Tensor, dim: int) -> Tensor:
    """Return the q ≥ 0 with ``mean_log_boost(q, dim)`` = mean.

    Args:
        mean: numbers from 0 to 350 of any shape, float32 or float64. The result has their shape and dtype.
        dim: the ambient dimension d ≥ 2.

    ``mean_log_boost`` of the result agrees with ``mean`` to about 1e-15 (float64) or 4e-7 (float32). Differentiable.

    >>> mean_log_boost_inverse(torch.tensor([0.0, 1.0]), 2)  # e^mean - 1 on the circle
    tensor([0.0000, 1.7183])
    """
    # In float64, because e^{2·mean} overflows in float32 where q does not.
    return expm1(mean) if dim == 2 else _inverse_log_boost(mean.double(), dim).to(mean.dtype)


_FAMILY = "spherical_cauchy"


def cauchy_mean_cosine(kappa: Tensor, dim: int) -> Tensor:
    """Return E t under the spherical Cauchy distribution; κ/(κ+2) on the circle.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 5e-7 (float32) for d from 2 to 1e6 and κ from 0 to 1e9. Differentiable
    twice.

    >>> cauchy_mean_cosine(torch.tensor([0.0, 2.0, 100.0]), 3)
    tensor([0.0000, 0.6320, 0.9984])
    """
    return kappa / (kappa + 2) if dim == 2 else value(kappa, _FAMILY, "mean", dim)


def cauchy_relative_entropy(kappa: Tensor, dim: int) -> Tensor:
    """Return KL(p‖U) = KL(U‖p) for the spherical Cauchy distribution p and the uniform distribution U.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 4e-7 (float32) for d from 2 to 1e6 and κ from 0 to 1e9. Differentiable
    twice.

    >>> cauchy_relative_entropy(torch.tensor([0.0, 2.0, 100.0]), 3)
    tensor([0.0000, 0.7465, 7.2321])
    """
    if dim == 2:
        return log1p(0.25 * kappa * (kappa / (1 + kappa)))
    return value(kappa, _FAMILY, "relative_entropy", dim)


def cauchy_mean_cosine_complement(kappa: Tensor, dim: int) -> Tensor:
    """Return 1 - E t under the spherical Cauchy distribution, accurate where it is small.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 6e-7 (float32) for d from 2 to 1e6 and κ from 0 to 1e9. Differentiable
    twice.

    >>> cauchy_mean_cosine_complement(torch.tensor([2.0, 1e6]), 2)  # 2/(κ+2) on the circle
    tensor([5.0000e-01, 2.0000e-06])
    """
    return 2 / (kappa + 2) if dim == 2 else value(kappa, _FAMILY, "loss", dim)


def cauchy_variance_cosine(kappa: Tensor, dim: int) -> Tensor:
    """Return Var t under the spherical Cauchy distribution.

    Args:
        kappa: concentration κ ≥ 0, any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.

    Relative error about 1e-14 (float64) and 5e-6 (float32) for d from 2 to 1e6 and κ from 0 to 1e9, where the variance
    does not underflow. Differentiable twice.

    >>> cauchy_variance_cosine(torch.tensor([0.0, 2.0, 100.0]), 3)  # 1/d at κ = 0
    tensor([0.3333, 0.1806, 0.0004])
    """
    if dim == 2:
        return 2 * (1 + kappa) / (kappa + 2).square()
    return value(kappa, _FAMILY, "variance", dim)


def _mean_cosine_slope(kappa: Tensor, dim: int) -> Tensor:
    """Return the derivative of ``cauchy_mean_cosine`` in κ."""
    return 2 / (kappa + 2).square() if dim == 2 else value(kappa, _FAMILY, "mean", dim, 1)


@with_derivatives(
    lambda kappa, length, complement, dim: 1 / _mean_cosine_slope(kappa, dim), None, from_output=True
)
def _inverse_mean_cosine(length: Tensor, complement: Tensor, dim: int) -> Tensor:
    if dim == 2:
        return 2 * length / complement
    low = inverse(length, _FAMILY, "mean", dim, power=1)
    return torch.where(length < 0.5, low, inverse(complement, _FAMILY, "loss", dim, power=0))


def cauchy_mean_cosine_inverse(length: Tensor, dim: int, complement: Tensor | None = None) -> Tensor:
    """Return the κ with ``cauchy_mean_cosine(κ, dim)`` = length, for a length in [0, 1).

    Args:
        length: of any shape, float32 or float64. The result has its shape and dtype.
        dim: the ambient dimension d ≥ 2.
        complement: 1 - length, of the same shape, if it is known more accurately than the subtraction gives.

    Accurate to a few roundings of ``length`` and ``complement``, for κ up to 1e12. Differentiable in
    ``length``.

    >>> cauchy_mean_cosine_inverse(torch.tensor([0.0, 0.5]), 2)  # 2·length/(1-length) on the circle
    tensor([0., 2.])
    """
    # In float64, because κ² and the variance for a large κ leave the range of float32.
    double = length.double()
    rest = 1 - double if complement is None else complement.double()
    return _inverse_mean_cosine(double, rest.detach(), dim).to(length.dtype)
