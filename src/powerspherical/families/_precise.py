"""Tails of exponential families, accurate to 1e-10.

The angle φ = acos t has the log-concave density q(φ) ∝ exp(L), L = κT + (d-2) log sin φ. We integrate over a window of
the nearer tail, relative to the integrand at φ, with the same number of Gauss–Legendre nodes for every family of this
kind, dimension and concentration. In low dimensions, nodes are moved towards a singularity at the antipode.

    I₀ = ∫ exp(L' - L) dφ',    I₁ = ∫ (T' - E T) exp(L' - L) dφ',
    P(tail) = q(φ) I₀,         dt/dκ = -σ I₁ sin φ,

where σ = +1 for the tail towards the antipode (small t) and -1 for the tail towards the mode. The formula for dt/dκ is
implicit differentiation of F(t; κ) = u (Figurnov et al., 2018): the κ-derivative of the density is (T - E T) times the
density. ``implicit_slope`` is (dt/dκ)/(1-t²) = -σ I₁/sin φ. T' - T and L' - L are computed from increments along the
arc, without cancellation.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import log1p
from powerspherical._torch.modes import can_look, is_exporting, is_plain
from powerspherical.families import _exported_quantile as exported_quantile
from powerspherical.families import _overlap as overlap
from powerspherical.families._interpolation import Cells, cells_around, coefficients, interpolated
from powerspherical.families._quadrature import cosine_ends_of
from powerspherical.families._tail_quadrature import rapidity
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.special.gamma import log_cosine_normalizer
from powerspherical.special.quadrature import gauss_legendre

_NODES = 32
_EXPONENT = 40.0  # the integrand is followed until it has fallen by e^-40
_TINY = 1e-140  # smallest 1±t; its products with large numbers stay normal
_SEARCH_STEPS, _REFINEMENTS = 8, 3  # at most, for quantiles
_NEAR, _NEARER = (
    2.0,
    1e-5,
)  # errors of the log of a tail at which the search and the refinement of a quantile end
_SMALLEST_START = 1e-15  # smaller probabilities start at the quantile of this one
_SHORT_NODES = 8  # of a rule for an arc along which a tail changes by a factor of at most about e^_NEAR
_ENTROPY_STEPS = 5  # from the guess to full accuracy, for d up to 1e7 and any nats


class Arc(NamedTuple):
    """Points at angles φ' from the mean direction, relative to a point at the angle φ. The last axis are the points.

    Attributes:
        half_sine, half_cosine: sine and cosine of (φ' - φ)/2.
        cosine_change: cos φ' - cos φ.
        half_tangent: tan(φ/2), of shape (…, 1).
    """

    half_sine: Tensor
    half_cosine: Tensor
    cosine_change: Tensor
    half_tangent: Tensor


class PreciseFamily(ExponentialFamily):
    """An exponential family whose tails are integrated along an arc, with increments of T in closed form."""

    @abstractmethod
    def statistic_slope(self, sine: Tensor, half_tangent: Tensor) -> Tensor:
        """dT/dφ at the angle φ = acos t, from sin φ and tan(φ/2)."""

    @abstractmethod
    def statistic_curvature(self, kappa: Tensor) -> Tensor:
        """A lower bound of -κ d²T/dφ², which determines the width of the quadrature window."""

    @abstractmethod
    def statistic_change(self, arc: Arc) -> Tensor:
        """T(φ') - T(φ), computed without subtraction."""

    @abstractmethod
    def concentration_guess(self, nats: Tensor, dim: int) -> Tensor:
        """A starting point for the solution κ of ``relative_entropy`` = nats."""

    @abstractmethod
    def rapidity_mode_odds(self, kappa: Tensor, dim: int) -> Tensor:
        """(1-t)/(1+t) at the mode of the density of artanh t."""

    @abstractmethod
    def log_shrink(self, kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        """log e(lower)/e(lower + gap) for the generating function e of ``_overlap``."""

    def widened_window(self, window: Tensor, t: Tensor, kappa: Tensor, exponent: float) -> Tensor:
        """A wider window towards the antipode, used where the curvature bound makes ``window`` too narrow."""
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

    def misalignment(self, kappa: Tensor, haversine: Tensor, dim: int, *, single: bool = False) -> Tensor:
        nodes = overlap.NODES_SINGLE if single else overlap.NODES
        kappa, haversine = torch.broadcast_tensors(kappa, haversine)
        return in_chunks(lambda k, h: overlap.misalignment(self, k, h, dim, nodes), kappa, haversine)

    def log_near_tail(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        law = _Law(self, kappa, dim)
        point = law.point(one_minus_t, one_plus_t)
        side = law.side(point)
        mass, _ = law.tail_integrals(point, side)
        log_density = law.log_density(point, self.relative_entropy(kappa, dim))
        return (log_density + torch.log(mass)).clamp(max=0.0), side > 0

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """See ``Family``. In plain eager mode, large batches with a single κ interpolate artanh t in the logit of u.

        The interpolation changes 1-t and 1+t by less than 1e-11 of their values.
        """
        if is_exporting():
            return self.exported_quantile(u, complement, kappa, dim)
        if _all_equal(kappa):
            logit = torch.log(u) - torch.log(complement)
            if cells := cells_around(logit):
                table = _rapidity_table(self, float(kappa.reshape(-1)[0]), dim, cells, kappa.device)
                return cosine_ends_of(interpolated(table, cells, logit))
        return in_chunks(lambda u, c, k: _Law(self, k, dim).quantile(u, c), u, complement, kappa)

    def exported_quantile(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """``quantile_values`` for exported programs, by a quantile of the rapidity y = artanh t."""
        mode, deviation = self._rapidity_scale(kappa, dim)

        def log_weight(y: Tensor) -> Tensor:
            one_minus_t, one_plus_t = cosine_ends_of(y)
            log_squared_sine = torch.log(one_minus_t) + torch.log(one_plus_t)
            statistic = self.statistic(one_minus_t, one_plus_t)
            return kappa.unsqueeze(-1) * statistic + 0.5 * (dim - 1) * log_squared_sine

        return cosine_ends_of(exported_quantile.quantile(log_weight, mode, deviation, u, complement))

    def _rapidity_scale(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return the mode of artanh t and its standard deviation, from the curvature of the log-density at the mode."""
        odds = self.rapidity_mode_odds(kappa, dim)
        return -0.5 * torch.log(odds), torch.sqrt((1 + odds) / (2 * (dim - 1)))

    def implicit_slope(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """See ``Family``. In plain eager mode, large batches with a single κ interpolate the slope in artanh t.

        The relative error of the interpolation is below 1e-10. On CUDA the slopes are not interpolated, because that
        would take a host sync.
        """
        if not kappa.is_cuda and _all_equal(kappa):
            # Densities are analytic within a distance π/2 of the real line. We measure artanh t in units of 1/2, or
            # of the deviation if that is smaller.
            one_kappa = kappa.reshape(-1)[0]
            unit = self._rapidity_scale(one_kappa, dim)[1].clamp(max=0.5)
            place = rapidity(one_minus_t, one_plus_t) / unit

            def slopes(place: Tensor) -> Tensor:
                return self._integrated_slope(*cosine_ends_of(place * unit), one_kappa.expand_as(place), dim)

            if cells := cells_around(place):
                return interpolated(coefficients(slopes, cells, place), cells, place)
        return self._integrated_slope(one_minus_t, one_plus_t, kappa, dim)

    def _integrated_slope(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        """``implicit_slope`` without interpolation."""
        law = _Law(self, kappa, dim)
        point = law.point(one_minus_t, one_plus_t)
        side = law.side(point)
        _, moment = law.tail_integrals(point, side)
        return -side * moment / point.sine

    def concentration_from_relative_entropy(self, nats: Tensor, dim: int) -> Tensor:
        return _from_relative_entropy(nats, self, dim)


def _all_equal(kappa: Tensor) -> bool:
    """Whether the host can see that there are several entries, and that all are equal."""
    if kappa.numel() < 2 or kappa.is_meta or not is_plain(kappa) or not can_look():
        return False
    return not any(kappa.stride()) or bool((kappa == kappa.reshape(-1)[0]).all())


@functools.lru_cache(64)
def _rapidity_table(
    family: PreciseFamily, kappa: float, dim: int, cells: Cells, device: torch.device
) -> Tensor:
    """Return the coefficients of artanh t as a function of the logit of u. A fixed κ needs them again and again."""

    def rapidities(logit: Tensor) -> Tensor:
        law = _Law(family, torch.full_like(logit, kappa), dim)
        return rapidity(*law.quantile(torch.sigmoid(logit), torch.sigmoid(-logit)))

    with torch.inference_mode(False), torch.no_grad():
        return coefficients(rapidities, cells, torch.empty((), dtype=torch.float64, device=device))


class _Point(NamedTuple):
    """A cosine t by its distances from both ends of [-1, 1], which avoids cancellation, and T - E T there."""

    one_minus_t: Tensor
    one_plus_t: Tensor
    deviation: Tensor

    @property
    def t(self) -> Tensor:
        return 0.5 * (self.one_plus_t - self.one_minus_t)

    @property
    def sine(self) -> Tensor:
        return torch.sqrt(self.one_minus_t) * torch.sqrt(self.one_plus_t)

    @property
    def half_tangent(self) -> Tensor:
        return torch.sqrt(self.one_minus_t) / torch.sqrt(self.one_plus_t)


class _Law:
    """The law of t for concentrations κ of any shape. Points and sides have the same shape."""

    def __init__(self, family: PreciseFamily, kappa: Tensor, dim: int) -> None:
        self.family, self.kappa, self.dim = family, kappa, dim
        self.mean_statistic = family.mean_statistic(kappa, dim)

    def point(self, one_minus_t: Tensor, one_plus_t: Tensor) -> _Point:
        ends = one_minus_t.clamp(min=_TINY), one_plus_t.clamp(min=_TINY)
        return _Point(*ends, self.family.statistic(*ends) - self.mean_statistic)

    def log_density(self, point: _Point, entropy: Tensor) -> Tensor:
        """Return log q(φ), given ``entropy`` = KL(p‖U)."""
        log_sine = 0.5 * (torch.log(point.one_minus_t) + torch.log(point.one_plus_t))
        constant = log_cosine_normalizer(self.dim)
        return (entropy + self.kappa * point.deviation) + (self.dim - 2) * log_sine + constant

    def side(self, point: _Point) -> Tensor:
        """Return σ: +1 if t is below its mean, else -1."""
        below = self.family.below_mean(point.one_minus_t, point.deviation, self.kappa, self.dim)
        return torch.where(below, 1.0, -1.0).to(self.kappa.dtype)

    def tail_integrals(self, point: _Point, side: Tensor) -> tuple[Tensor, Tensor]:
        """Return I₀ and I₁."""
        down = side > 0
        room = 2 * torch.atan(torch.where(down, 1 / point.half_tangent, point.half_tangent))
        window = self._window(point, side, room)
        nodes, weights = gauss_legendre(_NODES, room)
        rest = 1 - nodes
        if self.dim < 10 and self.family.antipode_power(self.kappa) is not None:
            # If the window ends at the antipode, 1-x → (1-x)⁴ concentrates the nodes there.
            graded = (down & (window >= room)).unsqueeze(-1)
            weights = torch.where(graded, 4 * weights * rest**3, weights)
            rest = torch.where(graded, rest**4, rest)
        change, exponent = self._changes(point, (side * window).unsqueeze(-1) * (1 - rest))
        mass = torch.exp(exponent) * weights
        moment = (mass * (point.deviation.unsqueeze(-1) + change)).sum(-1)
        return window * mass.sum(-1), window * moment

    def _window(self, point: _Point, side: Tensor, room: Tensor) -> Tensor:
        """Return how far the integrand reaches, at most ``room``, from a quadratic bound of L - L'."""
        slope = self.kappa * self.family.statistic_slope(point.sine, point.half_tangent)
        descent = -side * (slope + (self.dim - 2) * (point.t / point.sine))
        # On the circle with κ = 0 the integrand is constant. Any small curvature then gives the whole room.
        curvature = (self.family.statistic_curvature(self.kappa) + (self.dim - 2)).clamp(min=1e-3)
        root = torch.sqrt(descent * descent + 2 * _EXPONENT * curvature)
        falling = 2 * _EXPONENT / (descent.clamp(min=0) + root).clamp(min=1e-30)
        window = torch.where(descent > 0, falling, (root - descent) / curvature)
        window = torch.minimum(window, room)
        _, exponent = self._changes(point, (side * window).unsqueeze(-1))
        too_narrow = (side > 0) & (exponent.squeeze(-1) > -0.9 * _EXPONENT)
        wider = self.family.widened_window(window, point.t, self.kappa, _EXPONENT)
        return torch.where(too_narrow, torch.minimum(wider, room), window)

    def _changes(self, point: _Point, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return T' - T and L' - L at the angles φ' = φ + step. The last axis of ``step`` are the points."""
        t, sine, half_tangent = (x.unsqueeze(-1) for x in (point.t, point.sine, point.half_tangent))
        half_sine, half_cosine = torch.sin(0.5 * step), torch.cos(0.5 * step)
        sin_step = 2 * half_sine * half_cosine
        versine = 2 * half_sine.square()
        arc = Arc(half_sine, half_cosine, -(versine * t + sin_step * sine), half_tangent)
        change = self.family.statistic_change(arc)
        exponent = self.kappa.unsqueeze(-1) * change
        if self.dim > 2:
            sine_ratio = (t / sine) * sin_step - versine
            exponent = exponent + (self.dim - 2) * log1p(sine_ratio.clamp(min=-1 + 1e-16))
        return change, exponent

    def quantile(self, u: Tensor, complement: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1-t and 1+t for the u-quantile t, by Halley's method on the log of the smaller tail.

        The unknown is the rapidity y = artanh t, in which the log of the tail is nearly linear. We integrate the whole
        tail only until a point is near the solution. After that, we integrate the arc from that point to a better one.
        """
        below = u < complement
        side = torch.where(below, 1.0, -1.0).to(u.dtype)
        target = torch.log(torch.where(below, u, complement))
        entropy = self.family.relative_entropy(self.kappa, self.dim)
        y = self._start_rapidity(u, complement)
        change = torch.zeros_like(y)
        for step in range(1, _SEARCH_STEPS + 1):
            y = y + change
            point = self.point(*cosine_ends_of(y))
            mass, _ = self.tail_integrals(point, side)
            log_mass = target - self.log_density(point, entropy)  # at the solution, relative to q(φ)
            excess = torch.log(mass) - log_mass
            # Far in the tail log P is linear in the rapidity, and large steps are accurate. The first ones may start
            # elsewhere, so they are limited more.
            change = self._halley_step(point, side, point.sine / mass, excess).clamp(
                -2 * step**2, 2 * step**2
            )
            if can_look() and not bool((excess.abs() > _NEAR).any()):
                break
        near = excess.abs() <= _NEAR  # False where the search stops early, because 1-t or 1+t is below _TINY
        for _ in range(_REFINEMENTS):
            moved = self.point(*cosine_ends_of(y + change))
            between, density = self._short_arc(point, side, change)
            reached = mass + between
            excess = torch.where(near, torch.log(reached) - log_mass, 0.0)
            correction = self._halley_step(moved, side, moved.sine * density / reached, excess)
            change = change + torch.where(near, correction, 0.0)
            # The convergence is cubic: this step leaves an error of about the third power.
            if can_look() and not bool((excess.abs() > _NEARER).any()):
                break
        return cosine_ends_of(y + change)

    def _halley_step(self, point: _Point, side: Tensor, hazard: Tensor, excess: Tensor) -> Tensor:
        """Return the change of the rapidity that lowers the log of the tail P by ``excess``.

        ``hazard`` is the density of the rapidity divided by P. With h = ``hazard`` and s the slope of the log-density
        towards a larger tail, log P has the derivatives h and h(s - h).
        """
        statistic_slope = self.family.statistic_slope(point.sine, point.half_tangent)
        slope = -side * (self.kappa * statistic_slope * point.sine + (self.dim - 1) * point.t)
        newton = -excess / hazard
        return side * newton / (1 + (0.5 * (slope - hazard) * newton).clamp(-0.5, 1.0))

    def _short_arc(self, point: _Point, side: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the tail gains if the rapidity of ``point`` increases by ``change``, and the density there.

        Both are relative to the density q(φ) at ``point``.
        """
        shrink = torch.expm1(-change)
        tangent = point.half_tangent
        angle = 2 * torch.atan(tangent * shrink / (1 + tangent.square() * (1 + shrink)))  # φ' - φ
        nodes, weights = gauss_legendre(_SHORT_NODES, angle)
        _, exponent = self._changes(point, angle.unsqueeze(-1) * torch.cat((nodes, nodes.new_ones(1))))
        density = torch.exp(exponent)
        return -side * angle * (density[..., :-1] * weights).sum(-1), density[..., -1]

    def _start_rapidity(self, u: Tensor, complement: Tensor) -> Tensor:
        """Return roughly the rapidity of the quantile of the Beta law with the mean and variance of (1+t)/2."""
        rest = self.family.mean_cosine_complement(self.kappa, self.dim) / 2
        mean = 1 - rest
        total = mean * rest / (self.family.variance_cosine(self.kappa, self.dim) / 4) - 1
        a, b = mean * total, rest * total
        if self.dim == 2:
            # b is about 1/2, and √(2a) tan(φ/2) about the absolute value of a Student variable with 2a degrees of
            # freedom. We use the approximation of its quantile by Gaver & Kafadar (1984).
            far = -torch.special.ndtri(0.5 * u.clamp(min=_SMALLEST_START))
            near = math.sqrt(2) * torch.erfinv(complement.clamp(min=_SMALLEST_START))
            scale = (2 * a - 5 / 6) / (2 * a - 2 / 3 + 0.05 / a).square()
            return -0.5 * torch.log(torch.expm1(scale * torch.where(u < complement, far, near).square()))
        lower = torch.special.ndtri(torch.minimum(u, complement).clamp(min=_SMALLEST_START))
        normal = torch.where(u < complement, lower, -lower)
        # Abramowitz & Stegun 26.5.22
        skew = (normal * normal - 3) / 6
        inverse_a, inverse_b = 1 / (2 * a - 1).clamp(min=0.5), 1 / (2 * b - 1).clamp(min=0.5)
        harmonic = 2 / (inverse_a + inverse_b)
        spread = -normal * torch.sqrt((harmonic + skew).clamp(min=0.1)) / harmonic
        width = spread - (inverse_b - inverse_a) * (skew + 5 / 6 - 2 / (3 * harmonic))
        return (0.5 * torch.log(a / b) - width).clamp(-30, 30)


@with_derivatives(
    lambda kappa, nats, family, dim: 1 / (kappa * family.variance_statistic(kappa, dim)), from_output=True
)
def _from_relative_entropy(nats: Tensor, family: PreciseFamily, dim: int) -> Tensor:
    """Return the κ with KL(p‖U) = nats, by Newton's method for log KL as a function of log κ.

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
