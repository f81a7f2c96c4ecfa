"""Tails of an exponential family to 1e-10, from the increments of its statistic along an arc.

In the angle φ = acos t the cosine has the density q(φ) ∝ exp(L), L = κT + (d-2) log sin φ, which is log-concave. One
fixed Gauss–Legendre rule over a window of the tail nearer to φ, with the integrand relative to its value at φ, serves
every such family, dimension and concentration:

    I₀ = ∫ exp(L' - L) dφ',    I₁ = ∫ (T' - E T) exp(L' - L) dφ',
    P(tail) = q(φ) I₀,         dt/dκ = -σ I₁ sin φ,

σ = +1 towards the antipode (small t) and -1 towards the mode. The second line is implicit differentiation of
F(t; κ) = u (Figurnov et al., 2018), since ∂/∂κ of the density is (T - E T) times the density.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.derivatives import with_derivatives
from powerspherical.families import _overlap as overlap
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.special._quadrature import gauss_legendre
from powerspherical.special.gamma import log_cosine_normalizer

_NODES = 32
_EXPONENT = 40.0  # the integrand is followed until it has fallen by e^-40
_TINY = 1e-140  # its square root can still be squared and multiplied by large numbers
_ENTROPY_STEPS = 5  # from the guess to rounding, for d up to 1e7 and any nats


class Arc(NamedTuple):
    """Points at angles φ' = φ ± h from the mean direction, seen from φ; last axis: the points.

    Attributes:
        cosine_change: cos φ' - cos φ.
        one_plus_cosine: 1 + cos φ, of shape (…, 1).
        to_antipode: π - φ'.
    """

    cosine_change: Tensor
    one_plus_cosine: Tensor
    to_antipode: Tensor


class PreciseFamily(ExponentialFamily):
    """An exponential family that knows how its statistic changes along an arc, and where its inverses lie."""

    @abstractmethod
    def statistic_slope(self, sine: Tensor, half_tangent: Tensor) -> Tensor:
        """dT/dφ at the angle φ = acos t, from sin φ and tan(φ/2)."""

    @abstractmethod
    def statistic_curvature(self, kappa: Tensor) -> Tensor:
        """A lower bound of -κ d²T/dφ² that sets the width of the quadrature window."""

    @abstractmethod
    def statistic_change(self, arc: Arc) -> Tensor:
        """T(φ') - T(φ), without subtracting the two."""

    @abstractmethod
    def concentration_guess(self, nats: Tensor, dim: int) -> Tensor:
        """A start for the solution κ of ``relative_entropy`` = nats."""

    @abstractmethod
    def log_shrink(self, kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        """log e(lower)/e(lower + gap) of the generating function e, see ``_overlap``."""

    def widened_window(self, window: Tensor, t: Tensor, kappa: Tensor, exponent: float) -> Tensor:
        """The window towards the antipode, where the curvature bound may be too optimistic."""
        return window

    def below_mean(self, one_minus_t: Tensor, deviation: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """Whether t < E t, where T - E T = ``deviation``."""
        return one_minus_t > self.mean_cosine_complement(kappa, dim)

    def mean_log1p_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return overlap.mean_log1p_cosine(self, kappa, dim)

    def mean_log1m_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return overlap.mean_log1m_cosine(self, kappa, dim)

    def mean_log_loss(self, kappa: Tensor, dim: int, *, single: bool = False) -> Tensor:
        nodes = overlap.NODES_SINGLE if single else overlap.NODES
        return in_chunks(lambda k: overlap.mean_log_cosine(self, k, dim, nodes), kappa)

    def misalignment(self, kappa: Tensor, half_chord: Tensor, dim: int, *, single: bool = False) -> Tensor:
        nodes = overlap.NODES_SINGLE if single else overlap.NODES
        return in_chunks(
            lambda k, h: overlap.misalignment(self, k, h, dim, nodes),
            *torch.broadcast_tensors(kappa, half_chord),
        )

    def log_near_tail(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        law, angle = _Law.of(self, kappa, dim), _Angle.of(one_minus_t, one_plus_t)
        deviation = law.deviation(angle)
        side = law.side(angle, deviation)
        mass, _ = _tail_integrals(law, angle, side, deviation)
        near = law.log_density(angle, deviation, law.relative_entropy()) + torch.log(mass)
        return near.clamp(max=0.0), side > 0

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        return _quantile(self, u, complement, kappa, dim)

    def implicit_slope(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        law, angle = _Law.of(self, kappa, dim), _Angle.of(one_minus_t, one_plus_t)
        deviation = law.deviation(angle)
        side = law.side(angle, deviation)
        _, first = _tail_integrals(law, angle, side, deviation)
        return -side * first / angle.sine

    def concentration_from_relative_entropy(self, nats: Tensor, dim: int) -> Tensor:
        return _from_relative_entropy(nats, self, dim)


class _Angle(NamedTuple):
    """A point of [-1, 1] by its distances from both ends, so that nothing is computed by subtraction."""

    one_minus_t: Tensor
    one_plus_t: Tensor

    @classmethod
    def of(cls, one_minus_t: Tensor, one_plus_t: Tensor) -> _Angle:
        return cls(one_minus_t.clamp(min=_TINY), one_plus_t.clamp(min=_TINY))

    @property
    def t(self) -> Tensor:
        return 0.5 * (self.one_plus_t - self.one_minus_t)

    @property
    def sine(self) -> Tensor:
        return torch.sqrt(self.one_minus_t) * torch.sqrt(self.one_plus_t)

    @property
    def half_tangent(self) -> Tensor:
        return torch.sqrt(self.one_minus_t) / torch.sqrt(self.one_plus_t)


class _Law(NamedTuple):
    """A family with a concentration, and what depends on these alone."""

    family: PreciseFamily
    kappa: Tensor
    dim: int
    mean: Tensor

    @classmethod
    def of(cls, family: PreciseFamily, kappa: Tensor, dim: int) -> _Law:
        return cls(family, kappa, dim, family.mean_statistic(kappa, dim))

    def deviation(self, angle: _Angle) -> Tensor:
        """T - E T."""
        return self.family.statistic(angle.one_minus_t, angle.one_plus_t) - self.mean

    def relative_entropy(self) -> Tensor:
        """KL(p‖U), which a density needs and a derivative of a draw does not."""
        return self.family.relative_entropy(self.kappa, self.dim)

    def log_density(self, angle: _Angle, deviation: Tensor, entropy: Tensor) -> Tensor:
        """log q(φ), given ``relative_entropy``."""
        log_sine = 0.5 * (torch.log(angle.one_minus_t) + torch.log(angle.one_plus_t))
        constant = log_cosine_normalizer(self.dim)
        return (entropy + self.kappa * deviation) + (self.dim - 2) * log_sine + constant

    def side(self, angle: _Angle, deviation: Tensor) -> Tensor:
        """+1 below the mean of t, -1 above."""
        below = self.family.below_mean(angle.one_minus_t, deviation, self.kappa, self.dim)
        return torch.where(below, 1.0, -1.0).to(angle.t.dtype)


def _changes(
    law: _Law, angle: _Angle, side: Tensor, step: Tensor, room_left: Tensor
) -> tuple[Tensor, Tensor]:
    """T' - T and L' - L at the angles φ + σ·step (last axis: the steps), from increments alone."""
    t, sine = angle.t.unsqueeze(-1), angle.sine.unsqueeze(-1)
    side = side.unsqueeze(-1)
    sin_step = torch.sin(step) * side
    versine = 2 * torch.sin(step / 2).square()
    arc = Arc(
        cosine_change=-(versine * t + sin_step * sine),
        one_plus_cosine=angle.one_plus_t.unsqueeze(-1),
        to_antipode=torch.where(side > 0, room_left, math.pi - room_left),
    )
    change = law.family.statistic_change(arc)
    exponent = law.kappa.unsqueeze(-1) * change
    if law.dim > 2:
        sine_ratio = (t / sine) * sin_step - versine
        exponent = exponent + (law.dim - 2) * torch.log1p(sine_ratio.clamp(min=-1 + 1e-16))
    return change, exponent


def _window(law: _Law, angle: _Angle, side: Tensor, room: Tensor) -> Tensor:
    """How far the integrand reaches: the root of a quadratic bound of L - L', or more where that is too tight."""
    slope = law.kappa * law.family.statistic_slope(angle.sine, angle.half_tangent)
    descent = -side * (slope + (law.dim - 2) * (angle.t / angle.sine))
    # On the circle with κ = 0 nothing falls off: any small bound leads to the whole room.
    curvature = (law.family.statistic_curvature(law.kappa) + (law.dim - 2)).clamp(min=1e-3)
    root = torch.sqrt(descent * descent + 2 * _EXPONENT * curvature)
    falling = 2 * _EXPONENT / (descent.clamp(min=0) + root).clamp(min=1e-30)
    window = torch.where(descent > 0, falling, (root - descent) / curvature)
    window = torch.minimum(window, room)
    _, exponent = _changes(law, angle, side, window.unsqueeze(-1), (room - window).unsqueeze(-1))
    tight = (side > 0) & (exponent.squeeze(-1) > -0.9 * _EXPONENT)
    wider = law.family.widened_window(window, angle.t, law.kappa, _EXPONENT)
    return torch.where(tight, torch.minimum(wider, room), window)


def _tail_integrals(law: _Law, angle: _Angle, side: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """I₀ and I₁; ``deviation`` is T - E T at the point itself."""
    down = side > 0
    room = 2 * torch.atan(torch.where(down, 1 / angle.half_tangent, angle.half_tangent))
    window = _window(law, angle, side, room)
    nodes, weights = gauss_legendre(_NODES, angle.t)
    rest = 1 - nodes
    if law.dim < 10 and law.family.antipode_power(law.kappa) is not None:
        # A window that ends at the antipode needs nodes that crowd there: 1-x → (1-x)⁴.
        graded = (down & (window >= room)).unsqueeze(-1)
        weights = torch.where(graded, 4 * weights * rest**3, weights)
        rest = torch.where(graded, rest**4, rest)
    width = window.unsqueeze(-1)
    room_left = (room - window).unsqueeze(-1) + width * rest
    change, exponent = _changes(law, angle, side, width * (1 - rest), room_left)
    mass = torch.exp(exponent) * weights
    first = (mass * (deviation.unsqueeze(-1) + change)).sum(-1)
    return window * mass.sum(-1), window * first


def _start_logit(family: PreciseFamily, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """logit of (1+t)/2 for the Beta with the same mean and variance, by Abramowitz & Stegun 26.5.22."""
    rest = family.mean_cosine_complement(kappa, dim) / 2
    mean = 1 - rest
    total = mean * rest / (family.variance_cosine(kappa, dim) / 4) - 1
    a, b = mean * total, rest * total
    normal = torch.erfinv((u - complement).clamp(-1 + 1e-7, 1 - 1e-7)) * math.sqrt(2)
    skew = (normal * normal - 3) / 6
    inverse_a, inverse_b = 1 / (2 * a - 1).clamp(min=0.5), 1 / (2 * b - 1).clamp(min=0.5)
    harmonic = 2 / (inverse_a + inverse_b)
    spread = -normal * torch.sqrt((harmonic + skew).clamp(min=0.1)) / harmonic
    width = spread - (inverse_b - inverse_a) * (skew + 5 / 6 - 2 / (3 * harmonic))
    return (torch.log(a / b) - 2 * width).clamp(-60, 60)


def _ends(logit: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t from the logit of (1+t)/2."""
    return 2 * torch.sigmoid(-logit), 2 * torch.sigmoid(logit)


_NEWTON_STEPS = 10


def _quantile(
    family: PreciseFamily, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Newton's method on the log of the smaller tail, in the logit of (1+t)/2, in which it is nearly linear."""
    below = u < complement
    side = torch.where(below, 1.0, -1.0).to(u.dtype)
    target = torch.log(torch.where(below, u, complement))
    law = _Law.of(family, kappa, dim)
    entropy = law.relative_entropy()
    logit = _start_logit(family, u, complement, kappa, dim)
    for step in range(1, _NEWTON_STEPS + 1):
        angle = _Angle.of(*_ends(logit))
        deviation = law.deviation(angle)
        mass, _ = _tail_integrals(law, angle, side, deviation)
        excess = law.log_density(angle, deviation, entropy) + torch.log(mass) - target
        slope = side * 0.5 * angle.sine / mass
        # Far out log P is a straight line in the logit, and large steps are right; at first they might not be.
        logit = logit - (excess / slope).clamp(-4 * step**2, 4 * step**2)
    return _ends(logit)


@with_derivatives(
    lambda kappa, nats, family, dim: 1 / (kappa * family.variance_statistic(kappa, dim)), from_output=True
)
def _from_relative_entropy(nats: Tensor, family: PreciseFamily, dim: int) -> Tensor:
    """Newton's method on log KL(κ) = log nats in log κ.

    In float64, because e^{nats/β} magnifies the rounding of nats.
    """
    target = nats.double()
    zero = target == 0
    safe = torch.where(zero, 1.0, target)
    kappa = family.concentration_guess(safe, dim)
    for _ in range(_ENTROPY_STEPS):
        divergence = family.relative_entropy(kappa, dim)
        slope = kappa * kappa * family.variance_statistic(kappa, dim)
        kappa = kappa * torch.exp(divergence / slope * torch.log(safe / divergence))
    return torch.where(zero, 0.0, kappa).to(nats.dtype)
