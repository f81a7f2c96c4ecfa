"""Averages over the sphere for the spherical Cauchy distribution (Kato & McCullagh 2020).

The distribution is the image of the uniform one under a Möbius map of the sphere: a boost by the rapidity τ ≥ 0, which
takes a cosine t to t' = (t + tanh τ)/(1 + t tanh τ). Relative to the uniform, its density is
(cosh τ - t sinh τ)^{-(d-1)}. Its concentration is κ = e^τ - 1 ≥ 0, and the radius of the Möbius map is
ρ = tanh(τ/2) = κ/(κ+2). ``moments.spherical_cauchy`` has the formulas, from which ``tables`` are built.

Errors are stated for d from 2 to 1e6 and κ from 0 to 1e9.
"""

from __future__ import annotations

from torch import Tensor

from powerspherical.special.curves import inverse, inverse_mean, value

_FAMILY = "spherical_cauchy"


def mean_log_boost(half_sinh_square: Tensor, dim: int) -> Tensor:
    """Return E_U log(cosh τ - t sinh τ) ≥ 0, given q = sinh²(τ/2) ≥ 0.

    If two points of the ball have the hyperbolic distance τ, (d-1) times the result is the KL divergence between their
    spherical Cauchy distributions.

    Args:
        half_sinh_square: q, of any shape, float32 or float64. The result has its shape and dtype.
        dim: the ambient dimension d ≥ 2.

    Relative error about 1e-15 (float64) and 2e-7 (float32) for d from 2 to 1e7 and any q. Differentiable twice.

    >>> import torch
    >>> mean_log_boost(torch.tensor(1.0, dtype=torch.float64), 2)  # log(1+q) on the circle
    tensor(0.6931, dtype=torch.float64)
    """
    return value(half_sinh_square, "log_boost", "mean", dim)


def mean_log_boost_inverse(mean: Tensor, dim: int) -> Tensor:
    """Return the q ≥ 0 with ``mean_log_boost(q, dim)`` = mean.

    Args:
        mean: numbers ≥ 0 of any shape, float32 or float64. The result has their shape and dtype.
        dim: the ambient dimension d ≥ 2.

    ``mean_log_boost`` of the result agrees with ``mean`` to about 1e-15 (float64) or 4e-7 (float32). Differentiable.

    >>> import torch
    >>> mean_log_boost_inverse(torch.tensor([0.0, 1.0]), 2)  # e^mean - 1 on the circle
    tensor([0.0000, 1.7183])
    """
    return inverse(mean.double(), "log_boost", "mean", dim).to(mean.dtype)


def cauchy_mean_cosine(kappa: Tensor, dim: int) -> Tensor:
    """Return E t under the spherical Cauchy distribution, in the shape of ``kappa``.

    Relative error about 1e-15 (float64) and 2e-7 (float32). Differentiable twice.

    >>> import torch
    >>> cauchy_mean_cosine(torch.tensor([0.0, 2.0, 100.0]), 3)
    tensor([0.0000, 0.6320, 0.9984])
    """
    return value(kappa, _FAMILY, "mean", dim)


def cauchy_relative_entropy(kappa: Tensor, dim: int) -> Tensor:
    """Return KL(p‖U) = KL(U‖p) for the spherical Cauchy distribution p and the uniform distribution U.

    The result has the shape of ``kappa``. Relative error about 1e-15 (float64) and 2e-7 (float32). Differentiable
    twice.

    >>> import torch
    >>> cauchy_relative_entropy(torch.tensor([0.0, 2.0, 100.0]), 3)
    tensor([0.0000, 0.7465, 7.2321])
    """
    return value(kappa, _FAMILY, "relative_entropy", dim)


def cauchy_mean_cosine_complement(kappa: Tensor, dim: int) -> Tensor:
    """Return 1 - E t under the spherical Cauchy distribution, accurate where it is small, in the shape of ``kappa``.

    Relative error about 1e-15 (float64) and 2e-7 (float32). Differentiable twice.

    >>> import torch
    >>> cauchy_mean_cosine_complement(torch.tensor([2.0, 1e6]), 2)  # 2/(κ+2) on the circle
    tensor([5.0000e-01, 2.0000e-06])
    """
    return value(kappa, _FAMILY, "loss", dim)


def cauchy_variance_cosine(kappa: Tensor, dim: int) -> Tensor:
    """Return Var t under the spherical Cauchy distribution, in the shape of ``kappa``.

    Relative error about 2e-15 (float64) and 2e-7 (float32), where the variance does not underflow. Differentiable
    twice.

    >>> import torch
    >>> cauchy_variance_cosine(torch.tensor([0.0, 2.0, 100.0]), 3)  # 1/d at κ = 0
    tensor([0.3333, 0.1806, 0.0004])
    """
    return value(kappa, _FAMILY, "variance", dim)


def cauchy_mean_cosine_inverse(length: Tensor, dim: int, complement: Tensor | None = None) -> Tensor:
    """Return the κ with ``cauchy_mean_cosine(κ, dim)`` = length.

    Args:
        length: in [0, 1), of any shape, float32 or float64. The result has its shape and dtype.
        dim: the ambient dimension d ≥ 2.
        complement: 1 - length, of the same shape, if it is known more accurately than the subtraction gives.

    Accurate to a few roundings of ``length`` and ``complement``, for κ up to 1e12. Differentiable in
    ``length``.

    >>> import torch
    >>> cauchy_mean_cosine_inverse(torch.tensor([0.0, 0.5]), 2)  # 2·length/(1-length) on the circle
    tensor([0., 2.])
    """
    return inverse_mean(length, 1 - length if complement is None else complement, _FAMILY, dim)
