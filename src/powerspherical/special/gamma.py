"""Differences of digamma functions, for the Power Spherical distribution relative to the uniform; area of the sphere.

With β = (d-1)/2 and α = β+κ, the log-partition relative to the uniform distribution is

    D(κ) = log E_U (1+t)^κ = lnΓ(α) + lnΓ(β+½) - lnΓ(β+κ/2) - lnΓ(β+½+κ/2).

This follows from De Cao & Aziz (2020), theorem "Power Spherical density", by the duplication formula. Its
derivatives are D' = E log(1+t) = log 2 + ψ(α) - ψ(α+β) and D'' = ψ₁(α) - ψ₁(α+β). ``moments.power_spherical`` has
the only formula, that of D''; the other functions are its integrals, as ``tables``.

Errors are stated for d from 2 to 1e7 and κ from 0 to 1e9. d need not be an integer.
"""

from __future__ import annotations

import math

from torch import Tensor

from powerspherical._torch.private import untraced_number
from powerspherical.special.curves import value

_FAMILY = "power_spherical"


@untraced_number
def log_sphere_area(dim: int) -> float:
    """log of the area 2π^{d/2}/Γ(d/2) of the unit sphere in R^d (d = ``dim`` is the ambient dimension).

    >>> round(math.exp(log_sphere_area(3)) / math.pi, 12)  # 4π
    4.0
    """
    return math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)


@untraced_number
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


def trigamma_difference(kappa: Tensor, dim: float) -> Tensor:
    """Return ψ₁(α) - ψ₁(α+β) = D''(κ), the variance of log(1+t) under the Power Spherical distribution.

    Here α = β+κ and β = (dim-1)/2. The result has the shape of ``kappa``.

    >>> import torch
    >>> trigamma_difference(torch.tensor(1.0, dtype=torch.float64), 3)  # ψ₁(2) - ψ₁(3) = 1/4
    tensor(0.2500, dtype=torch.float64)
    """
    return value(kappa, _FAMILY, "information", dim)


def digamma_difference(kappa: Tensor, dim: float) -> Tensor:
    """Return ψ(α+β) - ψ(α) = -E log((1+t)/2) under the Power Spherical distribution.

    Here α = β+κ and β = (dim-1)/2. The result has the shape of ``kappa``. Differentiable twice.

    >>> import torch
    >>> digamma_difference(torch.tensor(1.0, dtype=torch.float64), 3)  # ψ(3) - ψ(2) = 1/2
    tensor(0.5000, dtype=torch.float64)
    """
    return value(kappa, _FAMILY, "score_loss", dim)


def mean_log1p(kappa: Tensor, dim: float) -> Tensor:
    """Return D'(κ) = E log(1+t) = log 2 - ψ(α+β) + ψ(α) under the Power Spherical distribution.

    Here α = β+κ and β = (dim-1)/2. The result has the shape of ``kappa``. It is accurate also for large d and small κ,
    where the value is about (κ-½)/d and log 2 would cancel. Near its zero the error is relative to 1/d. Differentiable
    twice.

    >>> import torch
    >>> mean_log1p(torch.tensor(1.0, dtype=torch.float64), 3)  # log 2 - 1/2
    tensor(0.1931, dtype=torch.float64)
    """
    return value(kappa, _FAMILY, "log_partition_slope", dim)


def log_gamma_ratio(kappa: Tensor, dim: float) -> Tensor:
    """Return D(κ) = log E_U (1+t)^κ, the Power Spherical log-partition relative to the uniform.

    The result has the shape of ``kappa``. Near the zeros D(0) = D(1) = 0 the error is relative to κ/d. Differentiable
    three times.

    >>> import torch
    >>> log_gamma_ratio(torch.tensor([0.0, 2.0], dtype=torch.float64), 3).exp()  # E(1+t)² = 1 + 1/3
    tensor([1.0000, 1.3333], dtype=torch.float64)
    """
    return value(kappa, _FAMILY, "log_partition", dim)
