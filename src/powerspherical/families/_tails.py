"""Tail probabilities and quantiles of the cosine, with their first derivatives: in t by the density, in κ implicitly.

The values are the family's, see ``Family.log_near_tail`` and ``Family.quantile_values``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.derivatives import differentiable_once, with_derivatives
from powerspherical.special.gamma import log_cosine_normalizer

if TYPE_CHECKING:
    from powerspherical.families.base import Family

Pair = tuple[Tensor, Tensor]


def _log_pdf(family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """log of the density of t; 0 at both ends, where no derivative is asked for."""
    inside = (one_minus_t > 0) & (one_plus_t > 0)
    minus, plus = (torch.where(inside, x, 1.0) for x in (one_minus_t, one_plus_t))
    log_sine = 0.5 * (torch.log(minus) + torch.log(plus))
    density = family.log_density(minus, plus, kappa, dim) + (dim - 3) * log_sine + log_cosine_normalizer(dim)
    return torch.where(inside, density, 0.0)


def _flow(family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """dt/dκ at a fixed probability."""

    def rows(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
        slope = family.implicit_slope(one_minus_t, one_plus_t, kappa, dim)
        return slope * one_minus_t * one_plus_t

    return in_chunks(rows, one_minus_t, one_plus_t, kappa)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x ≤ 0."""
    close = x > -math.log(2)
    near = torch.log(-torch.expm1(torch.where(close, x, -1.0)))
    return torch.where(close, near, torch.log1p(-torch.exp(torch.where(close, -1.0, x))))


def _hazards(tails: Pair, ends: Pair, kappa: Tensor, family: Family, dim: int) -> Pair:
    """The derivatives of log P(T ≤ t) and log P(T > t) in t; 0 at both ends."""
    tails, (one_minus_t, one_plus_t) = _detached(tails), _detached(ends)
    log_pdf = _log_pdf(family, one_minus_t, one_plus_t, kappa.detach(), dim)
    inside = (one_minus_t > 0) & (one_plus_t > 0)
    below, above = (torch.where(inside, torch.exp(log_pdf - tail), 0.0) for tail in tails)
    return below, -above


def _detached(pair: Pair) -> Pair:
    return pair[0].detach(), pair[1].detach()


def _once(pair: Pair, *sources: Tensor) -> Pair:
    return differentiable_once(pair[0], *sources), differentiable_once(pair[1], *sources)


def _tails_in_one_minus_t(
    tails: Pair, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int
) -> Pair:
    # The two distances move together: half the derivative of t goes to each, with its sign.
    below, above = _hazards(tails, (one_minus_t, one_plus_t), kappa, family, dim)
    return _once((-0.5 * below, -0.5 * above), *tails, one_minus_t, one_plus_t, kappa)


def _tails_in_one_plus_t(
    tails: Pair, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int
) -> Pair:
    below, above = _hazards(tails, (one_minus_t, one_plus_t), kappa, family, dim)
    return _once((0.5 * below, 0.5 * above), *tails, one_minus_t, one_plus_t, kappa)


def _tails_in_kappa(
    tails: Pair, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int
) -> Pair:
    below, above = _hazards(tails, (one_minus_t, one_plus_t), kappa, family, dim)
    flow = _flow(family, one_minus_t.detach(), one_plus_t.detach(), kappa.detach(), dim)
    return _once((-flow * below, -flow * above), *tails, one_minus_t, one_plus_t, kappa)


@with_derivatives(_tails_in_one_minus_t, _tails_in_one_plus_t, _tails_in_kappa, from_output=True)
def log_tails(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
    """log P(T ≤ t) and log P(T > t); float64 tensors of one shape."""

    def rows(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Pair:
        near, below = family.log_near_tail(one_minus_t, one_plus_t, kappa, dim)
        far = _log1mexp(near)
        log_cdf, log_sf = torch.where(below, near, far), torch.where(below, far, near)
        known = ~kappa.isnan()
        bottom, top = (one_plus_t <= 0) & known, (one_minus_t <= 0) & known
        log_cdf = torch.where(top, 0.0, torch.where(bottom, -math.inf, log_cdf))
        log_sf = torch.where(bottom, 0.0, torch.where(top, -math.inf, log_sf))
        return log_cdf, log_sf

    return in_chunks(rows, one_minus_t, one_plus_t, kappa)


def _quantile_in_u(
    ends: Pair, u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int
) -> Pair:
    minus, plus = _detached(ends)
    inside = (minus > 0) & (plus > 0)  # the ends stay where they are
    slope = 0.5 * torch.exp(-_log_pdf(family, minus, plus, kappa.detach(), dim))
    slope = torch.where(inside, slope, 0.0)
    return _once((-slope, slope), *ends, u, complement, kappa)


def _quantile_in_complement(
    ends: Pair, u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int
) -> Pair:
    minus, plus = _quantile_in_u(ends, u, complement, kappa, family, dim)
    return plus, minus


def _quantile_in_kappa(
    ends: Pair, u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int
) -> Pair:
    minus, plus = _detached(ends)
    inside = (minus > 0) & (plus > 0)
    flow = torch.where(inside, _flow(family, minus, plus, kappa.detach(), dim), 0.0)
    return _once((-flow, flow), *ends, u, complement, kappa)


@with_derivatives(_quantile_in_u, _quantile_in_complement, _quantile_in_kappa, from_output=True)
def quantile(u: Tensor, complement: Tensor, kappa: Tensor, family: Family, dim: int) -> Pair:
    """1-t and 1+t with P(T ≤ t) = u; float64 tensors of one shape."""

    def rows(u: Tensor, complement: Tensor, kappa: Tensor) -> Pair:
        one_minus_t, one_plus_t = family.quantile_values(u, complement, kappa, dim)
        known = ~kappa.isnan()
        bottom, top = (u == 0) & known, (complement == 0) & known
        one_minus_t = torch.where(bottom, 2.0, torch.where(top, 0.0, one_minus_t))
        one_plus_t = torch.where(bottom, 0.0, torch.where(top, 2.0, one_plus_t))
        return one_minus_t, one_plus_t

    return in_chunks(rows, u, complement, kappa)
