"""The marginal of t = μᵀx for any tilt: tail probabilities, quantiles and the implicit derivative dt/dκ.

In the angle φ = acos t the marginal has the density q(φ) ∝ exp(L), L = κT + (d-2) log sin φ, which is
log-concave. One fixed Gauss–Legendre rule over a window of the tail nearer to φ, with the integrand relative
to its value at φ, therefore serves every family, dimension and concentration:

    I₀ = ∫ exp(L' - L) dφ',    I₁ = ∫ (T' - E T) exp(L' - L) dφ',
    P(tail) = q(φ) I₀,         dt/dκ = -σ I₁ sin φ,

σ = +1 towards the antipode (small t) and -1 towards the mode. The second line is implicit differentiation of
F(t; κ) = u (Figurnov et al., 2018), since ∂/∂κ of the density is (T - E T) times the density.
Everything here is computed in float64, whatever the inputs: a handful of scalars a row. Results are rounded to their
dtype.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical.special._chunks import in_chunks
from powerspherical.special._constants import gauss_legendre
from powerspherical.special._elementary import differentiable_no_further
from powerspherical.special.sphere import log_cosine_normalizer
from powerspherical.special.tilt import Arc, Tilt

_NODES = 32
_EXPONENT = 40.0  # the integrand is followed until it has fallen by e^-40
_TINY = 1e-140  # its square root can still be squared and multiplied by large numbers


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
    """A tilt with a concentration, and what depends on these alone."""

    tilt: Tilt
    kappa: Tensor
    dim: int
    mean: Tensor

    @classmethod
    def of(cls, tilt: Tilt, kappa: Tensor, dim: int) -> _Law:
        return cls(tilt, kappa, dim, tilt.mean_statistic(kappa, dim))

    def deviation(self, angle: _Angle) -> Tensor:
        """T - E T."""
        return self.tilt.statistic(angle.one_minus_t, angle.one_plus_t) - self.mean

    def relative_entropy(self) -> Tensor:
        """KL(p‖U), which a density needs and a derivative of a draw does not."""
        return self.tilt.relative_entropy(self.kappa, self.dim)

    def log_density(self, angle: _Angle, deviation: Tensor, entropy: Tensor) -> Tensor:
        """log q(φ), given ``relative_entropy``."""
        log_sine = 0.5 * (torch.log(angle.one_minus_t) + torch.log(angle.one_plus_t))
        constant = log_cosine_normalizer(self.dim)
        return (entropy + self.kappa * deviation) + (self.dim - 2) * log_sine + constant

    def side(self, angle: _Angle, deviation: Tensor) -> Tensor:
        """+1 below the mean of t, -1 above."""
        below = self.tilt.below_mean(angle.one_minus_t, deviation, self.kappa, self.dim)
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
    change = law.tilt.statistic_change(arc)
    exponent = law.kappa.unsqueeze(-1) * change
    if law.dim > 2:
        sine_ratio = (t / sine) * sin_step - versine
        exponent = exponent + (law.dim - 2) * torch.log1p(sine_ratio.clamp(min=-1 + 1e-16))
    return change, exponent


def _window(law: _Law, angle: _Angle, side: Tensor, room: Tensor) -> Tensor:
    """How far the integrand reaches: the root of a quadratic bound of L - L', or more where that is too tight."""
    slope = law.kappa * law.tilt.statistic_slope(angle.sine, angle.half_tangent)
    descent = -side * (slope + (law.dim - 2) * (angle.t / angle.sine))
    # On the circle with κ = 0 nothing falls off: any small bound leads to the whole room.
    curvature = (law.tilt.statistic_curvature(law.kappa) + (law.dim - 2)).clamp(min=1e-3)
    root = torch.sqrt(descent * descent + 2 * _EXPONENT * curvature)
    falling = 2 * _EXPONENT / (descent.clamp(min=0) + root).clamp(min=1e-30)
    window = torch.where(descent > 0, falling, (root - descent) / curvature)
    window = torch.minimum(window, room)
    _, exponent = _changes(law, angle, side, window.unsqueeze(-1), (room - window).unsqueeze(-1))
    tight = (side > 0) & (exponent.squeeze(-1) > -0.9 * _EXPONENT)
    wider = law.tilt.widened_window(window, angle.t, law.kappa, _EXPONENT)
    return torch.where(tight, torch.minimum(wider, room), window)


def _tail_integrals(law: _Law, angle: _Angle, side: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """I₀ and I₁; ``deviation`` is T - E T at the point itself."""
    down = side > 0
    room = 2 * torch.atan(torch.where(down, 1 / angle.half_tangent, angle.half_tangent))
    window = _window(law, angle, side, room)
    nodes, weights = gauss_legendre(_NODES, angle.t)
    rest = 1 - nodes
    if law.tilt.kink_at_antipode and law.dim < 10:
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


def _implicit_gradient(
    tilt: Tilt, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> Tensor:
    def rows(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
        law, angle = _Law.of(tilt, kappa, dim), _Angle.of(one_minus_t, one_plus_t)
        deviation = law.deviation(angle)
        side = law.side(angle, deviation)
        _, first = _tail_integrals(law, angle, side, deviation)
        return -side * first * angle.sine

    return in_chunks(rows, one_minus_t, one_plus_t, kappa)


def implicit_gradient(tilt: Tilt, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """dt/dκ at a fixed probability, the reparameterised derivative of a draw of t; exact, without autograd.

    Args:
        tilt: the family.
        one_minus_t, one_plus_t: the distances of t from both ends, each to its own relative accuracy.
        kappa: concentration, of the same shape.
        dim: the ambient dimension.

    Relative error below 1e-9 for float64 inputs; the memory is bounded for any number of rows.
    """
    with torch.no_grad():
        minus, plus, k = (x.double() for x in torch.broadcast_tensors(one_minus_t, one_plus_t, kappa))
        return _implicit_gradient(tilt, minus, plus, k, dim).to(one_minus_t.dtype)


def _log_pdf(tilt: Tilt, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """log of the density of t itself."""
    law, angle = _Law.of(tilt, kappa, dim), _Angle.of(one_minus_t, one_plus_t)
    return law.log_density(angle, law.deviation(angle), law.relative_entropy()) - torch.log(angle.sine)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x ≤ 0."""
    close = x > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(close, x, -1.0)))
    return torch.where(close, near, torch.log1p(-torch.exp(torch.where(close, -1.0, x))))


def _log_tails(
    tilt: Tilt, dim: int, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor
) -> tuple[Tensor, Tensor]:
    law, angle = _Law.of(tilt, kappa, dim), _Angle.of(one_minus_t, one_plus_t)
    deviation = law.deviation(angle)
    side = law.side(angle, deviation)
    mass, _ = _tail_integrals(law, angle, side, deviation)
    near = (law.log_density(angle, deviation, law.relative_entropy()) + torch.log(mass)).clamp(max=0.0)
    far = _log1mexp(near)
    below = side > 0
    log_cdf, log_sf = torch.where(below, near, far), torch.where(below, far, near)
    known = ~kappa.isnan()
    bottom, top = (one_plus_t <= 0) & known, (one_minus_t <= 0) & known
    log_cdf = torch.where(top, 0.0, torch.where(bottom, -math.inf, log_cdf))
    log_sf = torch.where(bottom, 0.0, torch.where(top, -math.inf, log_sf))
    return log_cdf, log_sf


class _LogTails(torch.autograd.Function):
    """First derivatives only: in t by the density, in κ by the implicit derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, tilt: Tilt, dim: int
    ) -> tuple[Tensor, Tensor]:
        return in_chunks(functools.partial(_log_tails, tilt, dim), one_minus_t, one_plus_t, kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        one_minus_t, one_plus_t, kappa, ctx.tilt, ctx.dim = inputs
        ctx.save_for_backward(one_minus_t, one_plus_t, kappa, *output)

    @staticmethod
    def backward(ctx: Any, grad_cdf: Tensor, grad_sf: Tensor) -> tuple[Tensor | None, ...]:
        sources = *ctx.saved_tensors[:3], grad_cdf, grad_sf
        one_minus_t, one_plus_t, kappa, log_cdf, log_sf = (x.detach() for x in ctx.saved_tensors)
        log_pdf = _log_pdf(ctx.tilt, one_minus_t, one_plus_t, kappa, ctx.dim)
        inside = (one_plus_t > 0) & (one_minus_t > 0)
        hazard = grad_cdf * torch.exp(log_pdf - log_cdf) - grad_sf * torch.exp(log_pdf - log_sf)
        hazard = torch.where(inside, hazard, 0.0)
        flow = _implicit_gradient(ctx.tilt, one_minus_t, one_plus_t, kappa, ctx.dim)
        # The two distances move together: half the derivative of t goes to each, with its sign.
        grads = (-0.5 * hazard, 0.5 * hazard, -hazard * flow)
        return *(differentiable_no_further(x, *sources) for x in grads), None, None


def log_tails(
    tilt: Tilt, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """log P(T ≤ t) and log P(T > t), each to a relative error below 1e-10 of the probability.

    Args:
        tilt: the family.
        one_minus_t, one_plus_t: the distances of t from both ends, each to its own relative accuracy; t beyond an end
            counts as that end.
        kappa: concentration, of the same shape.
        dim: the ambient dimension.

    Computed in float64 and rounded to the dtype of the arguments, the widest of the three. Differentiable once.

    >>> from powerspherical.special import POWER_TILT
    >>> half = torch.tensor(0.5)  # t = ½ under the density (1+t)/2 at d = 3, κ = 1: cdf (3/4)²
    >>> log_cdf, log_sf = log_tails(POWER_TILT, half, 3 * half, torch.tensor(1.0), 3)
    >>> log_cdf.exp()
    tensor(0.5625)
    """
    dtype, arguments = _in_float64(one_minus_t, one_plus_t, kappa)
    log_cdf, log_sf = _LogTails.apply(*arguments, tilt, dim)
    return log_cdf.to(dtype), log_sf.to(dtype)


def _in_float64(*tensors: Tensor) -> tuple[torch.dtype, list[Tensor]]:
    """The widest dtype of the tensors, and all of them in float64."""
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    return dtype, [x.double() for x in tensors]


def _start_logit(tilt: Tilt, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """logit of (1+t)/2 for the Beta with the same mean and variance, by Abramowitz & Stegun 26.5.22."""
    rest = tilt.mean_cosine_complement(kappa, dim) / 2
    mean = 1 - rest
    total = mean * rest / (tilt.variance_cosine(kappa, dim) / 4) - 1
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


def _quantile(tilt: Tilt, dim: int, u: Tensor, complement: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method on the log of the smaller tail, in the logit of (1+t)/2, in which it is nearly linear."""
    below = u < complement
    side = torch.where(below, 1.0, -1.0).to(u.dtype)
    target = torch.log(torch.where(below, u, complement))
    law = _Law.of(tilt, kappa, dim)
    entropy = law.relative_entropy()
    logit = _start_logit(tilt, u, complement, kappa, dim)
    for step in range(1, _NEWTON_STEPS + 1):
        angle = _Angle.of(*_ends(logit))
        deviation = law.deviation(angle)
        mass, _ = _tail_integrals(law, angle, side, deviation)
        excess = law.log_density(angle, deviation, entropy) + torch.log(mass) - target
        slope = side * 0.5 * angle.sine / mass
        # Far out log P is a straight line in the logit, and large steps are right; at first they might not be.
        logit = logit - (excess / slope).clamp(-4 * step**2, 4 * step**2)
    one_minus_t, one_plus_t = _ends(logit)
    known = ~kappa.isnan()
    bottom, top = (u == 0) & known, (complement == 0) & known
    one_minus_t = torch.where(bottom, 2.0, torch.where(top, 0.0, one_minus_t))
    one_plus_t = torch.where(bottom, 0.0, torch.where(top, 2.0, one_plus_t))
    return one_minus_t, one_plus_t


class _Quantile(torch.autograd.Function):
    """First derivatives only: 1/density in u, the implicit derivative in κ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, complement: Tensor, kappa: Tensor, tilt: Tilt, dim: int) -> tuple[Tensor, Tensor]:
        return in_chunks(functools.partial(_quantile, tilt, dim), u, complement, kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        u, complement, kappa, ctx.tilt, ctx.dim = inputs
        ctx.save_for_backward(u, complement, kappa, *output)

    @staticmethod
    def backward(ctx: Any, grad_minus: Tensor, grad_plus: Tensor) -> tuple[Tensor | None, ...]:
        sources = *ctx.saved_tensors[:3], grad_minus, grad_plus
        _, _, kappa, one_minus_t, one_plus_t = (x.detach() for x in ctx.saved_tensors)
        log_pdf = _log_pdf(ctx.tilt, one_minus_t, one_plus_t, kappa, ctx.dim)
        grad = grad_plus - grad_minus
        flow = _implicit_gradient(ctx.tilt, one_minus_t, one_plus_t, kappa, ctx.dim)
        inside = (one_plus_t > 0) & (one_minus_t > 0)  # the ends stay where they are
        grad = torch.where(inside, grad, 0.0)
        along = 0.5 * grad * torch.exp(-torch.where(inside, log_pdf, 0.0))
        grads = (along, -along, grad * flow)
        return *(differentiable_no_further(x, *sources) for x in grads), None, None


def quantile(tilt: Tilt, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, given u and its complement 1-u (each accurate where it is small).

    Computed in float64 and rounded to the dtype of the arguments, the widest of the three; exact to rounding for
    probabilities down to 1e-60, and NaN outside [0, 1]. Differentiable once.

    >>> from powerspherical.special import POWER_TILT
    >>> u = torch.tensor(0.5625)  # the density (1+t)/2 at d = 3, κ = 1: cdf ((1+t)/2)²
    >>> quantile(POWER_TILT, u, 1 - u, torch.tensor(1.0), 3)
    (tensor(0.5000), tensor(1.5000))
    """
    dtype, arguments = _in_float64(u, complement, kappa)
    one_minus_t, one_plus_t = _Quantile.apply(*arguments, tilt, dim)
    return one_minus_t.to(dtype), one_plus_t.to(dtype)
