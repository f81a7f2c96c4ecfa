"""The von Mises–Fisher tilt, T = t - 1: density ∝ e^{κt}."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical.special import bessel
from powerspherical.special.bessel_gain import log_hyp0f1_gain
from powerspherical.special.tilt import Arc, Tilt


class ExponentialTilt(Tilt):
    """Density ∝ e^{κt} on the sphere (Fisher 1953; Mardia & Jupp 2000, section 9.3).

    The normaliser of its marginal has the Bessel function of order d/2-1; De Cao & Aziz (2020) print (d-1)/2.
    """

    kink_at_antipode = False

    @staticmethod
    def statistic(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        return -one_minus_t

    @staticmethod
    def mean_statistic(kappa: Tensor, dim: int) -> Tensor:
        return -bessel.bessel_ratio_complement(kappa, dim)

    @staticmethod
    def variance_statistic(kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_slope(kappa, dim)

    @staticmethod
    def relative_entropy(kappa: Tensor, dim: int) -> Tensor:
        return bessel.exponential_relative_entropy(kappa, dim)

    @staticmethod
    def log_partition(kappa: Tensor, dim: int) -> Tensor:
        return bessel.log_hyp0f1(kappa, dim)

    @staticmethod
    def mean_cosine(kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio(kappa, dim)

    @staticmethod
    def mean_cosine_complement(kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_complement(kappa, dim)

    @staticmethod
    def variance_cosine(kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_slope(kappa, dim)

    @staticmethod
    def concentration_from_mean_cosine(length: Tensor, complement: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_inverse(length, dim, complement)

    @staticmethod
    def concentration_from_mean_statistic(mean: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_inverse(torch.clamp(1 + mean, min=0.0), dim, torch.clamp(-mean, max=1.0))

    @staticmethod
    def pull_and_bend(one_minus_t: Tensor, one_plus_t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(one_minus_t), torch.zeros_like(one_minus_t)

    @staticmethod
    def concentration_guess(nats: Tensor, dim: int) -> Tensor:
        # KL ≈ N log1p(q/2) with q = √(1+z²) - 1, z = κ/N, N = (d-1)/2, solved for κ.
        order = (dim - 1) / 2
        q = 2 * torch.expm1(nats / order)
        return order * torch.sqrt(q * (q + 2))

    @classmethod
    def below_mean(cls, one_minus_t: Tensor, deviation: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return deviation < 0  # T is t but for a constant: the ratio need not be computed again

    @staticmethod
    def statistic_slope(sine: Tensor, half_tangent: Tensor) -> Tensor:
        return -sine

    @staticmethod
    def statistic_curvature(kappa: Tensor) -> Tensor:
        # The mean of cos over [0, φ] in the quadratic sense, (1-cos φ)/(φ²/2), is least at φ = π: 4/π² > 0.405.
        return 0.405 * kappa

    @staticmethod
    def statistic_change(arc: Arc) -> Tensor:
        return arc.cosine_change

    @staticmethod
    def widened_window(window: Tensor, t: Tensor, kappa: Tensor, exponent: float) -> Tensor:
        # Past the equator the slope falls off: cut where the exponential itself has fallen by `exponent`.
        target = torch.clamp(t - exponent / torch.clamp(kappa, min=1e-30), min=-1.0)
        return torch.maximum(window, torch.acos(target) - torch.acos(t))

    @staticmethod
    def log_shrink(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        # e(b) = exp(G(κb) + κb)
        return -(log_hyp0f1_gain(kappa, lower, gap, dim) + kappa * gap)


EXPONENTIAL_TILT = ExponentialTilt()
