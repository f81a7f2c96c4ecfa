"""The Power Spherical family, density ∝ (1+t)^κ (De Cao & Aziz, 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical._torch.constants import scalar_constant
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import expm1, log1p
from powerspherical._torch.random import standard_gamma
from powerspherical.families import two_sphere
from powerspherical.families._precise import Arc, PreciseFamily
from powerspherical.families._quadrature import log_half_cosine
from powerspherical.families.base import Family, PointSums
from powerspherical.special import curves, gamma
from powerspherical.special.gamma_draw import log_gamma_slope

_NEWTON_STEPS = 5


@with_derivatives(lambda kappa, dim: (dim - 1) / (kappa + (dim - 1)).square())
def _mean_cosine(kappa: Tensor, dim: int) -> Tensor:
    return kappa / (kappa + (dim - 1))


class PowerSphericalFamily(PreciseFamily):
    """The Power Spherical family, with the statistic T = log((1+t)/2). (1+t)/2 ~ Beta(β+κ, β) with β = (d-1)/2.

    ``POWER_SPHERICAL`` is the only instance. ``PowerSpherical`` states its accuracy.

    >>> POWER_SPHERICAL.mean_cosine(torch.tensor([0.0, 2.0]), 3)  # κ/(κ+d-1)
    tensor([0.0000, 0.5000])
    """

    name = "power_spherical"
    title = "Power Spherical"
    peak = math.log(2)

    def antipode_power(self, kappa: Tensor) -> Tensor:
        return kappa

    def statistic(self, one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        return log_half_cosine(one_minus_t, one_plus_t)

    def mean_statistic(self, kappa: Tensor, dim: int) -> Tensor:
        return -gamma.digamma_difference(kappa, dim)

    def variance_statistic(self, kappa: Tensor, dim: int) -> Tensor:
        return gamma.trigamma_difference(kappa, dim)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        return gamma.power_relative_entropy(kappa, dim)

    def relative_entropy_and_slope(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return curves.value_and_slope(kappa, "power_spherical", "entropy", dim)

    def offset_and_mean_statistic(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        offset, loss = curves.value_and_slope(kappa, "power_spherical", "offset", dim)
        return offset, -loss

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        return gamma.log_gamma_ratio(kappa, dim)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return _mean_cosine(kappa, dim)

    def mean_cosine_complement(self, kappa: Tensor, dim: int) -> Tensor:
        return (dim - 1) / (kappa + (dim - 1))

    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        total = kappa + (dim - 1)  # α + β
        return (2 * kappa + (dim - 1)) / total * ((dim - 1) / total) / (total + 1)

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        if dim == 3:
            return two_sphere.power_spherical_quantile(u, complement, kappa)
        return super().quantile_values(u, complement, kappa, dim)

    # Draws

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw (1+t)/2 = G/(G+H) with G ~ Gamma(β+κ) and H ~ Gamma(β). The noise is G.

        H is half the squared length of the tangent Gaussian vector. At d = 3, t is a function of H and κ only, and
        ``rapidity_slope`` does not need the noise.
        """
        if dim == 3:
            return *two_sphere.power_spherical_ends(squared_length, kappa), squared_length.clone()
        noise = standard_gamma(kappa + scalar_constant((dim - 1) / 2, kappa.dtype), generator)
        total = noise.add(squared_length, alpha=0.5)
        half = noise / total  # 2G may overflow
        return squared_length / total, half.add_(half), noise

    def rapidity_slope(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        """d artanh(t)/dκ of a draw: at a fixed probability at d = 3 and in float64, otherwise at a fixed H.

        At a fixed H it is ½ dlog G/dα, where α = β+κ is the shape of G. Both derivatives have the same mean. The first
        needs a quadrature unless d = 3. The second needs a few operations. Its relative error is at most 1.2e-4, and
        its variance is up to twice as large.
        """
        if dim == 3:
            return two_sphere.power_spherical_slope(one_minus_t, one_plus_t, kappa)
        if one_minus_t.dtype == torch.float64:
            return super().rapidity_slope(one_minus_t, one_plus_t, noise, kappa, dim)
        beta = (dim - 1) / 2
        shape = kappa + scalar_constant(beta, kappa.dtype)
        return log_gamma_slope(shape, noise, beta).mul_(0.5)

    # Inverses

    def concentration_from_mean_cosine(self, length: Tensor, complement: Tensor, dim: int) -> Tensor:
        return (dim - 1) * length / complement

    def concentration_from_mean_statistic(self, mean: Tensor, dim: int) -> Tensor:
        # We start from w = ψ(α+β) - ψ(α) ≈ log1p(β/(α-½)), solved for α. Then Newton's method for 1/w, which is nearly
        # linear in κ.
        beta, wanted = (dim - 1) / 2, -mean
        kappa = torch.clamp(0.5 - beta + beta / expm1(wanted), min=0.0)
        for _ in range(_NEWTON_STEPS):
            reached = gamma.digamma_difference(kappa, dim)
            step = reached * (1 - reached / wanted) / gamma.trigamma_difference(kappa, dim)
            kappa = torch.clamp(kappa - step, min=0.0)
        return kappa

    def concentration_guess(self, nats: Tensor, dim: int) -> Tensor:
        # KL ≈ β log1p(κ²/(4β(β+κ))), solved for κ.
        beta = (dim - 1) / 2
        growth = expm1(nats / beta)
        return 2 * beta * (growth + torch.sqrt(growth * (growth + 1)))

    # Likelihood and divergences

    def pull_and_bend(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        return 1 / one_plus_t, one_minus_t / one_plus_t

    def log_densities_(
        self, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        # Rounding may make (1+t)/2 negative at an antipode.
        halves = torch.add(cosines.new_full((), 0.5), cosines, alpha=0.5, out=cosines)
        halves.clamp_(min=torch.finfo(cosines.dtype).eps)
        if not keep:
            return halves.log_().mul_(kappa).add_(offsets), ()
        logs = halves.log()
        return torch.addcmul(offsets, logs, kappa), (halves, logs)

    def point_sums_(self, kept: tuple[Tensor, ...], shares: Tensor, kappa: Tensor, dim: int) -> PointSums:
        halves, logs = kept
        count, score = shares.sum(1).double(), logs.mul_(shares).sum(1).double()
        pulls = shares.div_(halves)
        return PointSums(count, pulls, pulls.sum(1).double() - count, score, factor=0.5)

    def mean_loss(self, p: Family, kappa_p: Tensor, dim: int, *, single: bool = False) -> Tensor:
        return p.mean_log_loss(kappa_p, dim, single=single)

    def mean_misalignment(
        self, p: Family, kappa_p: Tensor, haversine: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        return p.misalignment(kappa_p, haversine, dim, single=single)

    def log_shrink(self, kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        # e(b) = b^κ
        upper = lower + gap
        small = gap < lower
        close = log1p(-torch.where(small, gap, 0.0) / upper)
        return kappa * torch.where(small, close, torch.log(lower / upper))

    # Along an arc

    def statistic_slope(self, sine: Tensor, half_tangent: Tensor) -> Tensor:
        return -half_tangent

    def statistic_curvature(self, kappa: Tensor) -> Tensor:
        return kappa / 2

    def rapidity_mode_odds(self, kappa: Tensor, dim: int) -> Tensor:
        return (dim - 1) / (2 * kappa + (dim - 1))

    def statistic_change(self, arc: Arc) -> Tensor:
        # log((1+t')/(1+t)) = 2 log(cos(φ'/2)/cos(φ/2)). We compute the ratio of the cosines minus 1.
        slack = arc.half_sine * (arc.half_tangent + arc.half_sine / (1 + arc.half_cosine))
        return 2 * log1p(-slack.clamp(max=1 - 1e-16))


POWER_SPHERICAL = PowerSphericalFamily()
