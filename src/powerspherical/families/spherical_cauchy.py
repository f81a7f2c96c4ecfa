"""The spherical Cauchy family (Kato & McCullagh 2020), with heavy tails and closed under Möbius maps of the sphere.

The unit vector x = (1-ρ²)(u+ψ)/‖u+ψ‖² + ψ with u uniform and ψ = ρμ has the density ((1-ρ²)/‖x-ψ‖²)^{d-1} relative to
the uniform distribution. The map shifts the rapidity of the cosine: artanh t = artanh t₀ + τ with τ = 2 artanh ρ.

The concentration is κ = e^τ - 1 in [0, ∞), so that ρ = κ/(κ+2). It keeps the digits of 1-ρ = 2/(κ+2), which ρ loses in
float32, and the density is rational in it. Density, KL and draws are smooth in κ at the uniform, κ = 0. For large κ the
points lie within angles of about 2/κ of μ.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from powerspherical._torch.constants import scalar_constant
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import log1p, log_of_share
from powerspherical.families.base import Family
from powerspherical.families.von_mises_fisher import VON_MISES_FISHER
from powerspherical.formulas.densities import cauchy_log_density, cauchy_slopes, sinh_rapidity
from powerspherical.formulas.maps import boosted
from powerspherical.quadrature import expectations
from powerspherical.quadrature.cosine import Cosine, value_of
from powerspherical.special.mobius import mean_log_boost

_VALUES_PER_NODE = 64  # about how many values the average over the azimuth holds


def _in_minus(minus: Tensor, kappa: Tensor, degrees: float) -> Tensor:
    """The derivative of the log-density in 1-t; finite where it overflows, because at the mode zero multiplies it."""
    return (-cauchy_slopes(minus, kappa, degrees)[0]).clamp(min=1e-6 * torch.finfo(kappa.dtype).min)


# The operations of the formula have derivatives such as 1/(1+κ)², which underflow in float32.
_log_density = with_derivatives(
    _in_minus, lambda minus, kappa, degrees: cauchy_slopes(minus, kappa, degrees)[1]
)(cauchy_log_density)


class SphericalCauchyFamily(Family):
    """Density (cosh τ - t sinh τ)^{-(d-1)} relative to the uniform, with e^τ = 1+κ. It is already normalised.

    ``SPHERICAL_CAUCHY`` is the only instance. ``SphericalCauchy`` states its accuracy.

    >>> SPHERICAL_CAUCHY.mean_cosine(torch.tensor([0.0, 2.0]), 2)  # κ/(κ+2) on the circle
    tensor([0.0000, 0.5000])
    """

    name = key = "spherical_cauchy"
    title = "spherical Cauchy"

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return _log_density(t.minus, kappa, float(dim - 1))

    def offset(self, kappa: Tensor, dim: int) -> Tensor:
        return 0 * kappa * kappa  # zero, but twice differentiable in κ, and NaN where κ is NaN

    def score(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return cauchy_slopes(t.minus, kappa, float(dim - 1))[1]

    def derivatives(self, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        first, _ = cauchy_slopes(t.minus, kappa, float(dim - 1))
        return first, first * first / (dim - 1)

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor:
        return log1p(kappa)

    # Probabilities and draws are those of the uniform, shifted in rapidity.

    def log_tail(self, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        plus, minus = boosted(t.plus, t.minus, 1 + kappa)  # swapped ends: the shift back, towards -μ
        return VON_MISES_FISHER.log_tail(Cosine(minus, plus), torch.zeros_like(kappa), dim)

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Cosine:
        uniform = VON_MISES_FISHER.quantile(u, complement, torch.zeros_like(kappa), dim)
        return Cosine(*boosted(*uniform, 1 + kappa))

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Cosine, Tensor]:
        """Shift the cosine t₀ = n/√(n²+S) of a uniform point, with n ~ N(0, 1). The noise returned is 1+κ."""
        normal = torch.empty_like(squared_length).normal_(generator=generator)
        root = torch.addcmul(squared_length, normal, normal).sqrt_()
        plus = root + normal
        minus = root.sub_(normal)
        # 1-t₀ : 1+t₀ = (√(n²+S) - n)² : S = S : (√(n²+S) + n)². The larger of the two squares has no cancellation, and
        # it is larger than S.
        minus = torch.maximum(minus.mul_(minus), squared_length)
        plus = torch.maximum(plus.mul_(plus), squared_length)
        growth = kappa + scalar_constant(1.0, kappa.dtype)
        return Cosine(*boosted(minus, plus, growth)), growth

    def slope(self, t: Cosine, noise: Tensor | None, kappa: Tensor, dim: int) -> Tensor:
        return (1 + kappa).reciprocal_()

    # Divergences

    def misalignment(self, kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
        # 2(1 ± νᵀX) is a squared distance, and a Möbius map multiplies it by the conformal factors at its end points.
        # So the angle adds -log(1 - h(1 - e^{-2τ})) with its haversine h. A small argument is a sum of terms ≥ 0.
        kappa, h, rest = kappa.double(), 0.5 * angle.minus, 0.5 * angle.plus
        loss = h * (kappa / (1 + kappa)) * ((kappa + 2) / (1 + kappa))
        return -log_of_share(rest + h / (1 + kappa).square(), loss)

    def divergence(self, p: Family, kappa_p: Tensor, kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
        """Within the family, (d-1) times a function of the hyperbolic distance between ρ_pμ and ρν in the ball.

        From another family, a quadrature over the cosine of X. The average over its azimuth has a closed form.
        """
        kappa_p, kappa = kappa_p.double(), kappa.double()
        if p.key == self.key:
            # sinh²(τ/2) for the distance τ, by the hyperbolic law of cosines, as a sum of two terms ≥ 0
            growth, growth_p = 1 + kappa, 1 + kappa_p
            radial = 0.25 * (kappa - kappa_p).square() / growth / growth_p
            sines = sinh_rapidity(kappa) * sinh_rapidity(kappa_p)
            return (dim - 1) * mean_log_boost(radial + sines * (0.5 * angle.minus), dim)

        loss, width = partial(_mean_log_distortion, dim=dim), (1 + kappa).reciprocal().square()
        cross = expectations.expectation_with_singularity(
            p, kappa_p, angle, dim, loss, kappa, values=_VALUES_PER_NODE, width=width
        )
        return p.relative_entropy(kappa_p, dim) + (dim - 1) * cross


def _mean_log_distortion(t: Cosine, angle: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """Return the mean of log(cosh τ - νᵀX sinh τ) given the cosine t = μᵀX, where c = μᵀν is the cosine of ``angle``.

    Let S = sinh τ and s the cosine of the azimuth. The argument of the log is A - Bs with A = cosh τ - tcS and
    B² = (1-t²)(1-c²)S². The mean over s is log r plus ``mean_log_boost`` on S^{d-2}, where
    r² = A² - B² = 1 - tc(1 - e^{-2τ}) + (t-c)²S² and the boost has sinh² of half its rapidity B²/(2r(A+r)). All terms
    are smooth in 1-c. 1 - tc and t - c are computed from the nearer ends.
    """
    near = t.minus < t.plus
    c = value_of(angle)
    apart = torch.where(near, t.minus * c + angle.minus, angle.plus - t.plus * c)  # 1 - tc
    gap = torch.where(near, angle.minus - t.minus, t.plus - angle.plus)  # t - c
    sinh, shrink = sinh_rapidity(kappa), 1 / (1 + kappa)
    square = apart + value_of(t) * c * shrink.square() + (gap * sinh).square()
    if dim == 2:  # s = ±1
        return 0.5 * torch.log(square)
    r = torch.sqrt(square)
    total = shrink + sinh * apart + r
    crossed = 0.25 * t.minus * t.plus * angle.minus * angle.plus * sinh.square()
    return 0.5 * torch.log(square) + mean_log_boost(2 * crossed / (r * total), dim - 1)


SPHERICAL_CAUCHY = SphericalCauchyFamily()
