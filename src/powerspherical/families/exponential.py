"""Exponential families on the sphere: density exp(κT(t) - Ψ(κ)) relative to the uniform distribution.

The statistic T is normalised to T ≤ 0 with T = 0 at the mode t = 1. With Ψ(κ) = log E_U exp(κT), which is minus the
``offset``,

    E T = Ψ',    Var T = Ψ'',    KL(p‖U) = κΨ' - Ψ.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import log1p
from powerspherical.families.base import Family
from powerspherical.families.derived import information, mean_score
from powerspherical.quadrature import expectations, gauss_legendre
from powerspherical.quadrature.cosine import Cosine

_BREGMAN_NODES = 12


class ExponentialFamily(Family):
    """A family with the unnormalised density exp(κT).

    A subclass must define ``statistic``. The von Mises–Fisher family from its statistic alone:

    >>> class Exponential(ExponentialFamily):
    ...     name = title = "exponential"
    ...
    ...     def statistic(self, t):
    ...         return -t.minus
    >>> Exponential().mean_cosine(torch.tensor([0.0, 1.0]), 3)  # coth κ - 1/κ
    tensor([0.0000, 0.3130])
    """

    @abstractmethod
    def statistic(self, t: Cosine) -> Tensor:
        """Return T at t, elementwise and differentiable.

        >>> from powerspherical.families import POWER_SPHERICAL
        >>> t = torch.tensor([-1.0, 0.0, 1.0])
        >>> POWER_SPHERICAL.statistic(Cosine(1 - t, 1 + t))  # log((1+t)/2)
        tensor([   -inf, -0.6931, -0.0000])
        """

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return _product(kappa, self.statistic(t))

    def score(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return self.statistic(t)

    def divergence(self, p: Family, kappa_p: Tensor, kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
        # KL(p‖U) + Ψ - κ E_p T(νᵀX). Within the family, the Bregman divergence of Ψ and what the angle adds to it.
        loss, misaligned = self.losses(p, kappa_p, angle, dim)
        kappa_p, kappa = kappa_p.double(), kappa.double()
        if p.key == self.key:
            return bregman(kappa_p, kappa, self, dim) + kappa * misaligned
        return p.relative_entropy(kappa_p, dim) - self.offset(kappa, dim) + kappa * (loss + misaligned)

    def losses(self, p: Family, kappa_p: Tensor, angle: Cosine, dim: int) -> tuple[Tensor, Tensor]:
        """Return -E T(μᵀX) ≥ 0 and E T(μᵀX) - E T(νᵀX) ≥ 0 in float64, for the member κ_p of the family ``p``.

        X has the mean direction μ, and ν is at ``angle`` from it. The tensors have one shape, which the results have,
        too. The default integrates over the cosine and the azimuth.

        >>> from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY
        >>> one, double = torch.ones(1), torch.ones(1, dtype=torch.float64)
        >>> POWER_SPHERICAL.losses(SPHERICAL_CAUCHY, one, Cosine(double, double), 2)  # 2 log(3/2), -log(5/8)
        (tensor([0.8109], dtype=torch.float64), tensor([0.4700], dtype=torch.float64))
        """

        def loss(t: Cosine) -> Tensor:
            return -self.statistic(t)

        own = expectations.expectation(p, kappa_p.double(), dim, loss)
        return own, expectations.excess(p, kappa_p, angle, dim, loss)


@with_derivatives(lambda kappa, statistic: statistic, lambda kappa, statistic: kappa)
def _product(kappa: Tensor, statistic: Tensor) -> Tensor:
    """Return κT, and 0 for κ = 0 also where T = -inf, as at the antipode."""
    lowest = torch.where(kappa == 0, -1e30, -math.inf).to(kappa.dtype)
    return kappa * torch.maximum(statistic, lowest)


@with_derivatives(
    lambda kappa_p, kappa, family, dim: (kappa_p - kappa) * information(family, kappa_p, dim),
    lambda kappa_p, kappa, family, dim: mean_score(family, kappa, dim) - mean_score(family, kappa_p, dim),
)
def bregman(kappa_p: Tensor, kappa: Tensor, family: ExponentialFamily, dim: int) -> Tensor:
    """Return Ψ(κ) - Ψ(κ_p) - (κ-κ_p)Ψ'(κ_p), the divergence between two members with equal directions."""
    change = kappa - kappa_p
    # If κ and κ_p are close, the difference cancels, and we use Δ²∫₀¹(1-s)Ψ''(κ_p+sΔ)ds instead.
    near = change.abs() < 0.7 * (torch.minimum(kappa_p, kappa) + (dim - 1) / 2)
    nodes, weights = gauss_legendre(kappa_p, _BREGMAN_NODES).unbind()
    path = kappa_p.unsqueeze(-1) + torch.where(near, change, 0.0).unsqueeze(-1) * nodes
    curvature = (weights * (1 - nodes) * information(family, path, dim)).sum(-1)
    means = mean_score(family, kappa, dim) - mean_score(family, kappa_p, dim)
    entropies = family.relative_entropy(kappa_p, dim) - family.relative_entropy(kappa, dim)
    return torch.where(near, change * change * curvature, entropies + kappa * means)


def squared_length(u: Tensor, complement: Tensor) -> Tensor:
    """Return the S with e^{-S/2} = u for draws on S² by inversion, given u and 1-u; NaN for u outside [0, 1]."""
    near = complement < 0.5
    log_u = torch.where(near, log1p(-torch.where(near, complement, 0.0)), torch.log(u))
    return torch.where(log_u <= 0, -2 * log_u, torch.nan)
