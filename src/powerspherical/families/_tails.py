"""Tail probabilities and quantiles of the cosine, with first derivatives.

The family computes the values (``Family.log_near_tail``, ``Family.quantile_values``) and dt/dκ at a fixed probability
(``Family.implicit_slope``). The derivatives in t and in the probability are densities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.derivatives import differentiable_once, with_derivatives
from powerspherical.special.gamma import log_cosine_normalizer

if TYPE_CHECKING:
    from powerspherical.families.base import Family

Pair = tuple[Tensor, Tensor]

#: A function of 1-t, 1+t, κ, family and dim.
PointFunction = Callable[[Tensor, Tensor, Tensor, "Family", int], Tensor]


def _log_pdf(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int) -> Tensor:
    """Return the log-density of t for -1 < t < 1."""
    log_sine = 0.5 * (torch.log(one_minus_t) + torch.log(one_plus_t))
    log_density = family.log_density(one_minus_t, one_plus_t, kappa, dim)
    return log_density + (dim - 3) * log_sine + log_cosine_normalizer(dim)


def _dt_dkappa(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int) -> Tensor:
    """Return dt/dκ at a fixed probability."""

    def entries(minus: Tensor, plus: Tensor, kappa: Tensor) -> Tensor:
        return family.implicit_slope(minus, plus, kappa, dim) * minus * plus

    return in_chunks(entries, one_minus_t, one_plus_t, kappa)


def _log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - e^x) for x ≤ 0."""
    close = x > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(close, x, -1.0)))
    return torch.where(close, near, torch.log1p(-torch.exp(torch.where(close, -1.0, x))))


def _inside(one_minus_t: Tensor, one_plus_t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return whether -1 < t < 1, and 1-t and 1+t detached, with t = 0 in place of the ends ±1."""
    inside = (one_minus_t > 0) & (one_plus_t > 0)
    minus, plus = (torch.where(inside, x.detach(), 1.0) for x in (one_minus_t, one_plus_t))
    return inside, minus, plus


def _tails_partial(dt: PointFunction) -> Callable[..., Pair]:
    """Return the partial derivative of ``log_tails`` in an argument that changes t by ``dt``; 0 at t = ±1."""

    def partial(
        tails: Pair, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int
    ) -> Pair:
        inside, minus, plus = _inside(one_minus_t, one_plus_t)
        point = minus, plus, kappa.detach(), family, dim
        log_pdf, change = _log_pdf(*point), dt(*point)
        below, above = (torch.where(inside, change * torch.exp(log_pdf - x.detach()), 0.0) for x in tails)
        sources = *tails, one_minus_t, one_plus_t, kappa
        return differentiable_once(below, *sources), differentiable_once(-above, *sources)

    return partial


@with_derivatives(
    # 1-t and 1+t change together: each gets half the derivative in t.
    _tails_partial(lambda minus, plus, kappa, family, dim: torch.full_like(minus, -0.5)),
    _tails_partial(lambda minus, plus, kappa, family, dim: torch.full_like(minus, 0.5)),
    _tails_partial(lambda *point: -_dt_dkappa(*point)),
    from_output=True,
)
def log_tails(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
    """Return log P(T ≤ t) and log P(T > t), for float64 tensors of one shape."""

    def entries(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Pair:
        near, below = family.log_near_tail(one_minus_t, one_plus_t, kappa, dim)
        far = _log1mexp(near)
        log_cdf, log_sf = torch.where(below, near, far), torch.where(below, far, near)
        known = ~kappa.isnan()
        bottom, top = (one_plus_t <= 0) & known, (one_minus_t <= 0) & known
        log_cdf = torch.where(top, 0.0, torch.where(bottom, -math.inf, log_cdf))
        log_sf = torch.where(bottom, 0.0, torch.where(top, -math.inf, log_sf))
        return log_cdf, log_sf

    return in_chunks(entries, one_minus_t, one_plus_t, kappa)


def _quantile_partial(dt: PointFunction) -> Callable[..., Pair]:
    """Return the partial derivative of ``quantile`` in an argument that changes t by ``dt``; 0 at t = ±1."""

    def partial(ends: Pair, u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
        inside, minus, plus = _inside(*ends)
        change = torch.where(inside, dt(minus, plus, kappa.detach(), family, dim), 0.0)
        sources = *ends, u, complement, kappa
        return differentiable_once(-change, *sources), differentiable_once(change, *sources)

    return partial


@with_derivatives(
    # u and 1-u change together: each gets half the derivative in u.
    _quantile_partial(lambda *point: 0.5 * torch.exp(-_log_pdf(*point))),
    _quantile_partial(lambda *point: -0.5 * torch.exp(-_log_pdf(*point))),
    _quantile_partial(_dt_dkappa),
    from_output=True,
)
def quantile(u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
    """Return 1-t and 1+t with P(T ≤ t) = u, for float64 tensors of one shape."""
    one_minus_t, one_plus_t = family.quantile_values(u, complement, kappa, dim)
    known = ~kappa.isnan()
    bottom, top = (u == 0) & known, (complement == 0) & known
    one_minus_t = torch.where(bottom, 2.0, torch.where(top, 0.0, one_minus_t))
    one_plus_t = torch.where(bottom, 0.0, torch.where(top, 2.0, one_plus_t))
    return one_minus_t, one_plus_t
