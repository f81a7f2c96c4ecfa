"""The Power Spherical tilt, T = log((1+t)/2): density ∝ (1+t)^κ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical.special import gamma
from powerspherical.special._elementary import with_derivative
from powerspherical.special.tilt import Arc, Tilt

_NEWTON_STEPS = 5


@with_derivative(lambda kappa, dim: (dim - 1) / (kappa + (dim - 1)).square())
def _mean_cosine(kappa: Tensor, dim: int) -> Tensor:
    return kappa / (kappa + (dim - 1))


class PowerTilt(Tilt):
    """Density ∝ (1+t)^κ on the sphere (De Cao & Aziz, 2020); (1+t)/2 ~ Beta(β+κ, β), β = (d-1)/2."""

    kink_at_antipode = True

    @staticmethod
    def statistic(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        near = one_minus_t < 1
        close = torch.log1p(torch.where(near, one_minus_t, 0.0) / -2)
        # At the antipode itself log 0 = -inf, but its derivative is taken as 0 instead of NaN.
        antipode = one_plus_t <= 0
        far = torch.log(torch.where(near | antipode, 1.0, one_plus_t) / 2)
        return torch.where(near, close, torch.where(antipode, -math.inf, far))

    @staticmethod
    def mean_statistic(kappa: Tensor, dim: int) -> Tensor:
        return -gamma.digamma_difference(kappa, dim)

    @staticmethod
    def variance_statistic(kappa: Tensor, dim: int) -> Tensor:
        return gamma.trigamma_difference(kappa, dim)

    @staticmethod
    def relative_entropy(kappa: Tensor, dim: int) -> Tensor:
        return gamma.power_relative_entropy(kappa, dim)

    @staticmethod
    def log_partition(kappa: Tensor, dim: int) -> Tensor:
        return gamma.log_gamma_ratio(kappa, dim)

    @staticmethod
    def mean_cosine(kappa: Tensor, dim: int) -> Tensor:
        return _mean_cosine(kappa, dim)

    @staticmethod
    def mean_cosine_complement(kappa: Tensor, dim: int) -> Tensor:
        return (dim - 1) / (kappa + (dim - 1))

    @staticmethod
    def variance_cosine(kappa: Tensor, dim: int) -> Tensor:
        total = kappa + (dim - 1)  # α + β
        return (2 * kappa + (dim - 1)) / total * ((dim - 1) / total) / (total + 1)

    @staticmethod
    def concentration_from_mean_cosine(length: Tensor, complement: Tensor, dim: int) -> Tensor:
        return (dim - 1) * length / complement

    @staticmethod
    def concentration_from_mean_statistic(mean: Tensor, dim: int) -> Tensor:
        # ψ(α+β) - ψ(α) = w ≈ log1p(β/(α-½)), solved for α; then Newton's method on its inverse, which is nearly
        # linear in κ.
        beta, wanted = (dim - 1) / 2, -mean
        kappa = torch.clamp(0.5 - beta + beta / torch.expm1(wanted), min=0.0)
        for _ in range(_NEWTON_STEPS):
            now = gamma.digamma_difference(kappa, dim)
            step = now * (1 - now / wanted) / gamma.trigamma_difference(kappa, dim)
            kappa = torch.clamp(kappa - step, min=0.0)
        return kappa

    @staticmethod
    def pull_and_bend(one_minus_t: Tensor, one_plus_t: Tensor) -> tuple[Tensor, Tensor]:
        return 1 / one_plus_t, one_minus_t / one_plus_t

    @staticmethod
    def concentration_guess(nats: Tensor, dim: int) -> Tensor:
        # KL ≈ β log1p(κ²/(4β(β+κ))), solved for κ.
        beta = (dim - 1) / 2
        growth = torch.expm1(nats / beta)
        return 2 * beta * (growth + torch.sqrt(growth * (growth + 1)))

    @staticmethod
    def statistic_slope(sine: Tensor, half_tangent: Tensor) -> Tensor:
        return -half_tangent

    @staticmethod
    def statistic_curvature(kappa: Tensor) -> Tensor:
        return kappa / 2

    @staticmethod
    def statistic_change(arc: Arc) -> Tensor:
        # 1 + t' = 2 sin²((π-φ')/2); the ratio to 1+t directly where the change is not small.
        ratio = arc.cosine_change / arc.one_plus_cosine
        large = ratio < -0.5
        target = 2 * torch.sin(arc.to_antipode / 2).square()
        far = torch.log(torch.where(large, target, 1.0)) - torch.log(arc.one_plus_cosine)
        return torch.where(large, far, torch.log1p(torch.where(large, 0.0, ratio)))

    @staticmethod
    def log_shrink(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        # e(b) = b^κ
        upper = lower + gap
        small = gap < lower
        close = torch.log1p(-torch.where(small, gap, 0.0) / upper)
        return kappa * torch.where(small, close, torch.log(lower / upper))


POWER_TILT = PowerTilt()
