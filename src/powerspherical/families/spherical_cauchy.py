"""The spherical Cauchy family (Kato & McCullagh 2020), with heavy tails and closed under Möbius maps of the sphere.

The unit vector x = (1-ρ²)(u+ψ)/‖u+ψ‖² + ψ with u uniform and ψ = ρμ has the density ((1-ρ²)/‖x-ψ‖²)^{d-1} relative to
the uniform distribution. The map shifts the rapidity of the cosine: artanh t = artanh t₀ + τ with τ = 2 artanh ρ.

The concentration is κ = e^τ - 1 in [0, ∞), so that ρ = κ/(κ+2). It keeps the digits of 1-ρ = 2/(κ+2), which ρ loses in
float32, and the density is rational in it. Density, KL and draws are smooth in κ at the uniform, κ = 0. For large κ the
points lie within angles of about 2/κ of μ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.constants import scalar_constant
from powerspherical._torch.elementary import expm1, log1p
from powerspherical.families import _quadrature as quadrature
from powerspherical.families.base import Family
from powerspherical.families.von_mises_fisher import VON_MISES_FISHER
from powerspherical.special import curves, mobius
from powerspherical.special.gamma import mean_log1p

_VALUES_PER_NODE = 64  # about how many values the average over the azimuth holds


class SphericalCauchyFamily(Family):
    """Density (cosh τ - t sinh τ)^{-(d-1)} relative to the uniform, with e^τ = 1+κ. It is already normalised.

    ``SPHERICAL_CAUCHY`` is the only instance. ``SphericalCauchy`` states its accuracy.

    >>> SPHERICAL_CAUCHY.mean_cosine(torch.tensor([0.0, 2.0]), 2)  # κ/(κ+2) on the circle
    tensor([0.0000, 0.5000])
    """

    name = "spherical_cauchy"
    title = "spherical Cauchy"

    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        # cosh τ - t sinh τ = e^{-τ}(1 + (1-t)κ(κ+2)/2). The log of each factor is accurate.
        spread = log1p(0.5 * one_minus_t * kappa * (kappa + 2))
        return (dim - 1) * (log1p(kappa) - spread)

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        return 0 * kappa * kappa  # zero, but twice differentiable in κ, and NaN where κ is NaN

    def log_density(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return self.log_kernel(one_minus_t, one_plus_t, kappa, dim)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        return mobius.cauchy_relative_entropy(kappa, dim)

    def relative_entropy_and_slope(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if dim == 2:
            return self.relative_entropy(kappa, dim), kappa / ((1 + kappa) * (kappa + 2))
        return curves.value_and_slope(kappa, "spherical_cauchy", "entropy", dim)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return mobius.cauchy_mean_cosine(kappa, dim)

    def mean_cosine_complement(self, kappa: Tensor, dim: int) -> Tensor:
        return mobius.cauchy_mean_cosine_complement(kappa, dim)

    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return mobius.cauchy_variance_cosine(kappa, dim)

    # 2(1 ± νᵀX) is a squared distance, and a Möbius map multiplies it by the conformal factors at its end points.
    # So the mean of its log is that for the uniform, plus the log of one factor and the mean log of the other.

    def mean_log1p_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return self._mean_log_distance(kappa, dim) + log1p(kappa)

    def mean_log1m_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return self._mean_log_distance(kappa, dim) - log1p(kappa)

    def _mean_log_distance(self, kappa: Tensor, dim: int) -> Tensor:
        return mean_log1p(torch.zeros_like(kappa), dim) - self.relative_entropy(kappa, dim) / (dim - 1)

    def mean_log_loss(self, kappa: Tensor, dim: int, *, single: bool = False) -> Tensor:
        return mobius.cauchy_mean_log_loss(kappa, dim)

    def misalignment(self, kappa: Tensor, haversine: Tensor, dim: int, *, single: bool = False) -> Tensor:
        # -log(1 - h(1 - e^{-2τ})). If the argument is small, we compute it as a sum of two terms ≥ 0.
        loss = haversine * (kappa / (1 + kappa)) * ((kappa + 2) / (1 + kappa))
        small = loss < 0.5
        left = (1 - haversine) + haversine / (1 + kappa).square()
        return -torch.where(small, log1p(-torch.where(small, loss, 0.0)), torch.log(left))

    # Probabilities and draws are those of the uniform, shifted in rapidity.

    def log_near_tail(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        plus, minus = _shifted(one_plus_t, one_minus_t, 1 + kappa)  # swapped ends: the shift back, towards -μ
        return VON_MISES_FISHER.log_near_tail(minus, plus, torch.zeros_like(kappa), dim)

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        ends = VON_MISES_FISHER.quantile_values(u, complement, torch.zeros_like(kappa), dim)
        return _shifted(*ends, 1 + kappa)

    def implicit_slope(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return 1 / (1 + kappa)

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Shift the cosine t₀ = n/√(n²+S) of a uniform point, with n ~ N(0, 1). The noise returned is 1+κ."""
        normal = torch.randn_like(squared_length, generator=generator)
        root = torch.addcmul(squared_length, normal, normal).sqrt_()
        plus = root + normal
        minus = root.sub_(normal)
        # 1-t₀ : 1+t₀ = (√(n²+S) - n)² : S = S : (√(n²+S) + n)². The larger of the two squares has no cancellation, and
        # it is larger than S.
        minus = torch.maximum(minus.mul_(minus), squared_length)
        plus = torch.maximum(plus.mul_(plus), squared_length)
        growth = kappa + scalar_constant(1.0, kappa.dtype)
        return *_shifted(minus, plus, growth), growth

    def rapidity_slope(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        return (1 + kappa).reciprocal_()

    # Likelihood and divergences

    def score(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        # d log p/dτ = (d-1)(t cosh τ - sinh τ)/(cosh τ - t sinh τ), and dτ/dκ = 1/(1+κ)
        scaled = (1 + kappa).square() * one_minus_t
        return (dim - 1) / (1 + kappa) * (one_plus_t - scaled) / (one_plus_t + scaled)

    def pull_and_bend(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        # With w = κ(κ+2)/2, g = -(d-1) log(1 + w(1-t)) and g' = (d-1)w/(1 + w(1-t)). g is convex in t, so bend = 0.
        weight = 0.5 * (kappa + 2)  # w/κ
        return (dim - 1) * weight / (1 + kappa * weight * one_minus_t), torch.zeros_like(one_minus_t)

    def fitted_concentration(self, mean_score: Tensor, kappa: Tensor, dim: int) -> Tensor:
        # Fisher scoring in the rapidity τ, in which the information (d-1)²·E t₀² = (d-1)²/d is constant.
        step = mean_score * (1 + kappa) * dim / (dim - 1) ** 2
        return expm1(log1p(kappa) + step.clamp(-2.0, 2.0)).clamp(min=0.0)

    def concentration_from_mean_cosine(self, length: Tensor, complement: Tensor, dim: int) -> Tensor:
        return mobius.cauchy_mean_cosine_inverse(length, dim, complement)

    def concentration_from_relative_entropy(self, nats: Tensor, dim: int) -> Tensor:
        # q = sinh²(τ/2) = κ²/(4(1+κ)). In float64, because e^{nats/(d-1)} magnifies the rounding of nats.
        q = mobius.mean_log_boost_inverse(nats.double() / (dim - 1), dim)
        return (2 * (q + torch.sqrt(q * (1 + q)))).to(nats.dtype)

    def divergence_from_uniform(self, kappa: Tensor, dim: int) -> Tensor:
        return self.relative_entropy(kappa, dim)

    def divergence_from(
        self, p: Family, kappa_p: Tensor, kappa: Tensor, haversine: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        """Within the family, (d-1) times a function of the hyperbolic distance between ρ_pμ and ρν in the ball.

        From another family, a quadrature over the cosine of X. The average over its azimuth has a closed form.
        """
        if p is not self:

            def loss(minus: Tensor, plus: Tensor, h: Tensor, k: Tensor) -> Tensor:
                return _mean_log_distortion(minus, plus, h, k, dim)

            cross = quadrature.expectation_with_singularity(
                p,
                kappa_p,
                haversine,
                dim,
                loss,
                kappa,
                values=_VALUES_PER_NODE,
                width=(1 + kappa).reciprocal().square(),
            )
            return p.relative_entropy(kappa_p, dim) + (dim - 1) * cross
        # sinh²(τ/2) for the distance τ, by the hyperbolic law of cosines, as a sum of two terms ≥ 0
        growth, growth_p = 1 + kappa, 1 + kappa_p
        radial = 0.25 * (kappa - kappa_p).square() / growth / growth_p
        sines = mobius.sinh_rapidity(kappa) * mobius.sinh_rapidity(kappa_p)
        return (dim - 1) * mobius.mean_log_boost(radial + sines * haversine, dim)


def _mean_log_distortion(
    one_minus_t: Tensor, one_plus_t: Tensor, haversine: Tensor, kappa: Tensor, dim: int
) -> Tensor:
    """Return the mean of log(cosh τ - νᵀX sinh τ) given the cosine t = μᵀX, where (1-μᵀν)/2 = ``haversine``.

    Let c = μᵀν, S = sinh τ and s the cosine of the azimuth. The argument of the log is A - Bs with A = cosh τ - tcS and
    B² = (1-t²)(1-c²)S². The mean over s is log r plus ``mean_log_boost`` on S^{d-2}, where
    r² = A² - B² = 1 - tc(1 - e^{-2τ}) + (t-c)²S² and the boost has sinh² of half its rapidity B²/(2r(A+r)). All terms
    are smooth in ``haversine``. 1 - tc and t - c are computed from the nearer ends.
    """
    near = one_minus_t < one_plus_t
    other = 1 - haversine
    t, c = 0.5 * (one_plus_t - one_minus_t), other - haversine
    apart = torch.where(near, one_minus_t * c + 2 * haversine, 2 * other - one_plus_t * c)  # 1 - tc
    gap = torch.where(near, 2 * haversine - one_minus_t, one_plus_t - 2 * other)  # t - c
    sinh, shrink = mobius.sinh_rapidity(kappa), 1 / (1 + kappa)
    square = apart + t * c * shrink.square() + (gap * sinh).square()
    if dim == 2:  # s = ±1
        return 0.5 * torch.log(square)
    r = torch.sqrt(square)
    total = shrink + sinh * apart + r
    crossed = one_minus_t * one_plus_t * haversine * other * sinh.square()
    return 0.5 * torch.log(square) + mobius.mean_log_boost(2 * crossed / (r * total), dim - 1)


def _shifted(one_minus_t: Tensor, one_plus_t: Tensor, growth: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1-t and 1+t after multiplying (1+t)/(1-t) by growth² ≥ 1. The inputs may have a common factor."""
    minus = one_minus_t / growth / growth  # growth² may overflow
    mean = torch.lerp(minus, one_plus_t, 0.5)
    return minus / mean, one_plus_t / mean


SPHERICAL_CAUCHY = SphericalCauchyFamily()
