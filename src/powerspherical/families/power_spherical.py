"""The Power Spherical family, density ∝ (1+t)^κ (De Cao & Aziz, 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical._torch.constants import scalar_constant
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import log1p
from powerspherical._torch.precision import needs_float64
from powerspherical._torch.random import standard_gamma
from powerspherical.families.base import ExponentialFamily, Family, squared_length
from powerspherical.formulas import slopes
from powerspherical.formulas.maps import power_spherical_ends_3
from powerspherical.quadrature import misalignment
from powerspherical.quadrature.cosine import Cosine, dtype_of, log_half_cosine
from powerspherical.special import curves


@with_derivatives(lambda kappa, dim: (dim - 1) / (kappa + (dim - 1)).square())
def _mean_cosine(kappa: Tensor, dim: int) -> Tensor:
    return kappa / (kappa + (dim - 1))


class PowerSphericalFamily(ExponentialFamily):
    """The Power Spherical family, with the statistic T = log((1+t)/2). (1+t)/2 ~ Beta(β+κ, β) with β = (d-1)/2.

    ``POWER_SPHERICAL`` is the only instance. ``PowerSpherical`` states its accuracy.

    >>> POWER_SPHERICAL.mean_cosine(torch.tensor([0.0, 2.0]), 3)  # κ/(κ+d-1)
    tensor([0.0000, 0.5000])
    """

    name = key = "power_spherical"
    title = "Power Spherical"
    peak = math.log(2)

    def statistic(self, t: Cosine) -> Tensor:
        return log_half_cosine(t)

    def derivatives(self, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        slope = kappa / t.plus
        return slope, -slope / t.plus

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor:
        return 0.5 * log1p(2 * kappa / (dim - 1))

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return _mean_cosine(kappa, dim)

    def mean_loss(self, kappa: Tensor, dim: int) -> Tensor:
        return (dim - 1) / (kappa + (dim - 1))

    @needs_float64
    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        exact = kappa.double()  # in float32 the roundings would add up
        total = exact + (dim - 1)  # α + β
        return ((2 * exact + (dim - 1)) / total * ((dim - 1) / total) / (total + 1)).to(kappa.dtype)

    def from_mean_cosine(self, length: Tensor, loss: Tensor, dim: int) -> Tensor:
        return (dim - 1) * length / loss

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Cosine:
        if dim == 3:
            return Cosine(*power_spherical_ends_3(squared_length(u, complement), kappa))
        return super().quantile(u, complement, kappa, dim)

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Cosine, Tensor]:
        """Draw (1+t)/2 = G/(G+H) with G ~ Gamma(β+κ) and H ~ Gamma(β). The noise is G.

        H is half the squared length of the tangent Gaussian vector. At d = 3, t is a function of H and κ only, and
        ``slope`` does not need the noise.
        """
        if dim == 3:
            return Cosine(*power_spherical_ends_3(squared_length, kappa)), squared_length.clone()
        noise = standard_gamma(kappa + scalar_constant((dim - 1) / 2, kappa.dtype), generator)
        total = noise.add(squared_length, alpha=0.5)
        half = noise / total  # 2G may overflow
        return Cosine(squared_length / total, half.add_(half)), noise

    def slope(self, t: Cosine, noise: Tensor | None, kappa: Tensor, dim: int) -> Tensor:
        """d artanh(t)/dκ: at a fixed probability at d = 3, in float64 and without noise, otherwise at a fixed H.

        At a fixed H it is ½ dlog G/dα, where α = β+κ is the shape of G. Both derivatives have the same mean. The first
        needs a quadrature unless d = 3. The second needs a few operations. Its relative error is at most 1.2e-4, and
        its variance is up to twice as large.
        """
        if dim == 3:
            return slopes.power_spherical_slope_3(*t, kappa)
        if noise is None or dtype_of(t) == torch.float64:
            return super().slope(t, noise, kappa, dim)
        shape = kappa + (dim - 1) / 2
        slope = slopes.gamma_slope_by_expansion(shape, noise)
        if (dim - 1) / 2 < slopes.LARGE_SHAPE:
            small = slopes.gamma_slope_by_quadrature(shape.clamp(max=slopes.LARGE_SHAPE), noise)
            slope = torch.where(shape < slopes.LARGE_SHAPE, small, slope)
        return 0.5 * slope

    misalignment = staticmethod(misalignment.of_power_spherical)

    def losses(self, p: Family, kappa_p: Tensor, angle: Cosine, dim: int) -> tuple[Tensor, Tensor]:
        return curves.value(kappa_p.double(), p.key, "log_loss", dim), p.misalignment(kappa_p, angle, dim)


POWER_SPHERICAL = PowerSphericalFamily()
