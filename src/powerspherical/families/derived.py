"""What follows for every family from its methods: densities, tail probabilities and quantiles with derivatives, κ.

Tensors broadcast unless a function says otherwise.

Power Spherical at d = 3, where the density of t is ∝ (1+t)^κ:

    >>> from powerspherical.families import POWER_SPHERICAL as p
    >>> t, kappa = Cosine(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0])
    >>> log_density(p, t, kappa, 3).exp()  # (κ+1)((1+t)/2)^κ
    tensor([1., 3.])
    >>> mean_score(p, kappa, 3), information(p, kappa, 3)  # -1/(κ+1), 1/(κ+1)²
    (tensor([-0.5000, -0.3333]), tensor([0.2500, 0.1111]))
    >>> log_partition(p, kappa, 3).exp(), antipode_power(p, kappa, 3)  # 2^κ/(κ+1), κ
    (tensor([1.0000, 1.3333]), tensor([1., 2.]))
    >>> forces(p, t, kappa, 3)  # 1/(1+t), (1-t)/(1+t)
    (tensor([1.0000, 0.5000]), tensor([1., 0.]))
    >>> from_mean_score(p, torch.tensor([-2.0, -0.4]), 3), fisher_step(p, mean_score(p, kappa, 3), kappa, 3)
    (tensor([0.0000, 1.5000]), tensor([1., 2.]))
    >>> from_relative_entropy(p, p.relative_entropy(kappa, 3), 3)
    tensor([1., 2.])
    >>> log_cdf, log_sf = log_tails(p, t, kappa, 3)
    >>> log_cdf.exp(), log_sf.exp()  # u = ((1+t)/2)^{κ+1}, 1-u
    (tensor([0.2500, 1.0000]), tensor([0.7500, 0.0000]))
    >>> quantile(p, log_cdf.exp(), log_sf.exp(), kappa, 3)
    Cosine(minus=tensor([1., 0.]), plus=tensor([1., 2.]))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerspherical._torch.derivatives import Differentiable, with_derivatives
from powerspherical._torch.elementary import expm1, log1p
from powerspherical._torch.modes import differentiates_through_functions
from powerspherical._torch.precision import needs_float64
from powerspherical.quadrature.cosine import Cosine, dtype_of
from powerspherical.special import curves
from powerspherical.special.gamma import log_cosine_normalizer

if TYPE_CHECKING:
    from powerspherical.families.base import Family

Pair = tuple[Tensor, Tensor]

#: A function of 1-t, 1+t, κ, family and dim.
PointFunction = Callable[[Tensor, Tensor, Tensor, "Family", int], Tensor]


def log_density(family: Family, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """Return the log of the density at t, relative to the uniform distribution."""
    return family.log_kernel(t, kappa, dim) + family.offset(kappa, dim)


def mean_score(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return E ∂log_kernel/∂κ, in the shape of ``kappa``. In an exponential family it is E T."""
    return -curves.value(kappa, family.key, "score_loss", dim)


def information(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return the Fisher information about κ, the variance of ∂log_kernel/∂κ, in the shape of ``kappa``."""
    return curves.value(kappa, family.key, "information", dim)


def log_partition(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return the log of the mean over uniform points of the customary density, such as (1+t)^κ or e^{κt}.

    The result has the shape of ``kappa``.
    """
    if curves.has(family.key, "log_partition", dim):
        return curves.value(kappa, family.key, "log_partition", dim)
    return kappa * family.peak - family.offset(kappa, dim)


def antipode_power(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return the exponent a of a density that behaves like (1+t)^a near t = -1; 0 if it is positive there."""
    # Not at the smallest number: log1p of torch 2.6 is infinite above a third of the largest.
    near, nearer = (torch.finfo(kappa.dtype).tiny ** power for power in (0.5, 0.9))
    first, second = (
        family.log_kernel(Cosine(torch.full_like(kappa, 2.0), torch.full_like(kappa, x)), kappa, dim)
        for x in (near, nearer)
    )
    return (first - second) / math.log(near / nearer)


def forces(family: Family, t: Cosine, kappa: Tensor, dim: int) -> Pair:
    """Return pull and bend of points at t: g'/κ and max(-(1-t²)g'', 0)/κ, for g = log_kernel.

    The pull is how strongly a point pulls the mean direction towards itself. The bend is how fast that pull falls off
    as the direction moves. All tensors have one shape.
    """
    first, second = family.derivatives(t, kappa, dim)
    scale = 1 / kappa.clamp(min=torch.finfo(kappa.dtype).tiny)
    return first * scale, (-t.minus * t.plus * second * scale).clamp(min=0)


# Concentrations


@needs_float64
def from_mean_score(family: Family, mean: Tensor, dim: int) -> Tensor:
    """Return the κ with E T = ``mean`` < 0 in an exponential family, or 0 if no κ > 0 has so small a mean.

    If ``mean`` is the mean of T over data, it is the maximum-likelihood estimate of κ. The result has the dtype and
    shape of ``mean``, and no derivative.
    """
    loss = -mean.detach().double()
    return curves.inverse(loss, family.key, "score_loss", dim).to(mean.dtype)


def fisher_step(family: Family, found: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Return κ after one step of Fisher scoring from ``kappa``, for data whose mean score there is ``found``.

    The scored parameter is log(1+κ), which a step changes by at most 2. Tensors have one shape, and the result too.
    """
    step = (found - mean_score(family, kappa, dim)) / information(family, kappa, dim) / (1 + kappa)
    return expm1(log1p(kappa) + step.clamp(-2.0, 2.0)).clamp(min=0.0)


@needs_float64
def from_relative_entropy(family: Family, nats: Tensor, dim: int) -> Tensor:
    """Return the κ ≥ 0 with KL(p‖U) = ``nats``, in the shape and dtype of ``nats``.

    It is differentiable for nats > 0. At 0 the derivative is +∞, because KL is ∝ κ² for small κ. If no finite κ of the
    dtype reaches ``nats``, the result is infinite.
    """
    # At 0 we use a root: it has the value 0 and an infinite derivative in forward mode, too, where 0·∞ would be NaN.
    zero = nats == 0
    root = torch.sqrt(torch.where(zero, nats, 1.0))
    # In float64, because e^{nats/d} magnifies the rounding of nats.
    target = torch.where(nats > 0, nats, torch.where(zero, 1.0, torch.nan)).double()
    return torch.where(zero, root, curves.inverse(target, family.key, "relative_entropy", dim).to(nats.dtype))


# Probabilities of t. Partial derivatives are 0 at t = ±1.


def _log_pdf(minus: Tensor, plus: Tensor, kappa: Tensor, family: Family, dim: int) -> Tensor:
    """Return the log-density of t for -1 < t < 1."""
    log_sine = 0.5 * (torch.log(minus) + torch.log(plus))
    density = log_density(family, Cosine(minus, plus), kappa, dim)
    return density + (dim - 3) * log_sine + log_cosine_normalizer(dim)


def _dt_dkappa(minus: Tensor, plus: Tensor, kappa: Tensor, family: Family, dim: int) -> Tensor:
    """Return dt/dκ at a fixed probability."""
    return family.slope(Cosine(minus, plus), None, kappa, dim) * minus * plus


def _log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - e^x) for x ≤ 0."""
    close = x > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(close, x, -1.0)))
    return torch.where(close, near, torch.log1p(-torch.exp(torch.where(close, -1.0, x))))


def _inside(minus: Tensor, plus: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return whether -1 < t < 1, and 1-t and 1+t detached, with t = 0 in place of the ends ±1."""
    inside = (minus > 0) & (plus > 0)
    return inside, torch.where(inside, minus.detach(), 1.0), torch.where(inside, plus.detach(), 1.0)


def _once(slope: Tensor, *sources: Tensor) -> Tensor:
    """Return a derivative unchanged. Differentiating it again with respect to ``sources`` raises."""
    if not torch.is_grad_enabled() or differentiates_through_functions():
        return slope
    refusal = "tail probabilities and quantiles are differentiable once, not twice"
    return Differentiable.apply(slope, 0, refusal, *sources)


def _tails_partial(dt: PointFunction) -> Callable[..., Pair]:
    """Return the partial derivative of ``_log_tails`` in an argument that changes t by ``dt``."""

    def partial(tails: Pair, end: Tensor, other_end: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
        inside, minus, plus = _inside(end, other_end)
        point = minus, plus, kappa.detach(), family, dim
        log_pdf, change = _log_pdf(*point), dt(*point)
        below, above = (torch.where(inside, change * torch.exp(log_pdf - x.detach()), 0.0) for x in tails)
        sources = *tails, end, other_end, kappa
        return _once(below, *sources), _once(-above, *sources)

    return partial


@with_derivatives(
    # 1-t and 1+t change together: each gets half the derivative in t.
    _tails_partial(lambda minus, plus, kappa, family, dim: torch.full_like(minus, -0.5)),
    _tails_partial(lambda minus, plus, kappa, family, dim: torch.full_like(minus, 0.5)),
    _tails_partial(lambda *point: -_dt_dkappa(*point)),
    from_output=True,
)
def _log_tails(minus: Tensor, plus: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
    near, below = family.log_tail(Cosine(minus, plus), kappa, dim)
    far = _log1mexp(near)
    log_cdf, log_sf = torch.where(below, near, far), torch.where(below, far, near)
    known = ~kappa.isnan()
    bottom, top = (plus <= 0) & known, (minus <= 0) & known
    log_cdf = torch.where(top, 0.0, torch.where(bottom, -math.inf, log_cdf))
    log_sf = torch.where(bottom, 0.0, torch.where(top, -math.inf, log_sf))
    return log_cdf, log_sf


@needs_float64
def log_tails(family: Family, t: Cosine, kappa: Tensor, dim: int) -> Pair:
    """Return log P(T ≤ t) and log P(T > t), computed in float64 and rounded to the promoted dtype of the arguments.

    A t outside [-1, 1] is treated as the nearer end. Differentiable once. The accuracy is that of ``Marginal``, for 1-t
    and 1+t down to 1e-270. Smaller ones may count as 1e-295.
    """
    dtype = torch.promote_types(dtype_of(t), kappa.dtype)
    tails = _log_tails(*torch.broadcast_tensors(*t.to(torch.float64), kappa.double()), family, dim)
    return tails[0].to(dtype), tails[1].to(dtype)


def _quantile_partial(dt: PointFunction) -> Callable[..., Pair]:
    """Return the partial derivative of ``_quantile`` in an argument that changes t by ``dt``."""

    def partial(ends: Pair, u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
        inside, minus, plus = _inside(*ends)
        change = torch.where(inside, dt(minus, plus, kappa.detach(), family, dim), 0.0)
        sources = *ends, u, complement, kappa
        return _once(-change, *sources), _once(change, *sources)

    return partial


@with_derivatives(
    # u and 1-u change together: each gets half the derivative in u.
    _quantile_partial(lambda *point: 0.5 * torch.exp(-_log_pdf(*point))),
    _quantile_partial(lambda *point: -0.5 * torch.exp(-_log_pdf(*point))),
    _quantile_partial(_dt_dkappa),
    from_output=True,
)
def _quantile(u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
    minus, plus = family.quantile(u, complement, kappa, dim)
    known = ~kappa.isnan()
    bottom, top = (u == 0) & known, (complement == 0) & known
    minus = torch.where(bottom, 2.0, torch.where(top, 0.0, minus))
    plus = torch.where(bottom, 0.0, torch.where(top, 2.0, plus))
    return minus, plus


@needs_float64
def quantile(family: Family, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Cosine:
    """Return the t with P(T ≤ t) = u, given u and ``complement`` = 1-u; NaN for u outside [0, 1].

    It is computed in float64 and rounded to the promoted dtype of the arguments. Differentiable once.
    """
    arguments = u, complement, kappa
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in arguments))
    doubles = torch.broadcast_tensors(*(x.double() for x in arguments))
    return Cosine(*_quantile(*doubles, family, dim)).to(dtype)
