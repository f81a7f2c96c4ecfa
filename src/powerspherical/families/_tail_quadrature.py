"""Default tails and quantiles of a family and their derivatives in κ, by quadrature over the rapidity y = artanh t.

A single tail is integrated over panels from its start. For quantiles and draws we cut the window of y into cells and
tabulate the mass below and above each edge, once per distinct κ. Each point then takes an integral over part of a cell.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.modes import can_look
from powerspherical.families._quadrature import (
    FALL,
    FARTHEST,
    cosine_ends_of,
    equidistant,
    falling_reach,
    log_partition,
    log_weight,
    on_distinct,
    windows,
)
from powerspherical.special.quadrature import gauss_legendre

if TYPE_CHECKING:
    from powerspherical.families.base import Family

_PANEL_NODES = 32
_PANELS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0)  # ends of the panels, as fractions of the tail
_TABLE_FALL = 90.0  # by how much the log-density falls from the mode to the ends of the table
_HALF = 80  # cells on either side of the mode
_MARGIN = 20  # outermost cells on either side, where mass beyond the table would matter
_NODES = 10  # per cell
_NEWTON_STEPS = 40


class Tail(NamedTuple):
    """The tail from y away from the mode.

    Attributes:
        below: whether the tail lies below y.
        log_density: the unnormalised log-density at y.
        nodes, weights: a rule (…, nodes) for integrals over the tail against density(·)/density(y).
    """

    below: Tensor
    log_density: Tensor
    nodes: Tensor
    weights: Tensor


@torch.no_grad()
def tail(family: Family, y: Tensor, kappa: Tensor, dim: int) -> Tail:
    """Return the tail at each y, however far from the mode."""
    (window,) = windows(family, kappa, dim, FALL)
    below = y < window.mode
    direction = torch.where(below, -1.0, 1.0).to(y.dtype)

    def height(y: Tensor) -> Tensor:
        return log_weight(family, y, kappa.unsqueeze(-1), dim)

    start = log_weight(family, y, kappa, dim)
    change = (direction * falling_reach(height, y, start - FALL, direction)).unsqueeze(-1)
    unit, weights = gauss_legendre(_PANEL_NODES, y)
    places = torch.cat([a + (b - a) * unit for a, b in itertools.pairwise(_PANELS)])
    widths = torch.cat([(b - a) * weights for a, b in itertools.pairwise(_PANELS)])
    nodes = y.unsqueeze(-1) + change * places
    densities = torch.exp(height(nodes) - start.unsqueeze(-1))
    return Tail(below, start, nodes, densities * change.abs() * widths)


def log_near_tail(
    family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the tail at t that does not contain the mode, and whether it lies below t."""
    found = tail(family, rapidity(one_minus_t, one_plus_t), kappa, dim)
    mass = found.log_density + torch.log(found.weights.sum(-1))
    return (mass - log_partition(family, kappa, dim)).clamp(max=0.0), found.below


def rapidity(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """Return artanh t."""
    ratio = torch.log(one_plus_t) - torch.log(one_minus_t)
    return (0.5 * ratio).clamp(-2 * FARTHEST, 2 * FARTHEST)


class _Table:
    """Integrals of the density of y below and above the edges of cells, without derivatives.

    With ``score`` the integrand is the density times (score - E score), where score = ∂ log_kernel/∂κ. The integrals
    are then derivatives of probabilities in κ.

    Attributes:
        mode: (…), the mode of the density.
        edges: (…, cells + 1), with half of the cells on either side of the mode.
        log_total: (…), the log of the integral of exp(log_weight).
        mean_score: (…), E score, or zero without ``score``.
        below, above: (…, cells + 1), the integrals below and above each edge, accurate also in the tails.
    """

    def __init__(self, family: Family, kappa: Tensor, dim: int, *, score: bool = False) -> None:
        self.family, self.kappa, self.dim, self.score = family, kappa, dim, score
        found = on_distinct(self._tabulate, kappa)
        self.mode, self.edges, self.log_total, self.mean_score, self.below, self.above = found

    def _tabulate(self, kappa: Tensor) -> tuple[Tensor, ...]:
        (window,) = windows(self.family, kappa, self.dim, _TABLE_FALL)
        low, mode, high = (x.unsqueeze(-1) for x in window)
        fractions = equidistant(kappa, _HALF + 1)
        edges = torch.cat((low + (mode - low) * fractions, mode + (high - mode) * fractions[1:]), -1)
        unit, weights = gauss_legendre(_NODES, kappa)
        starts, widths = edges[..., :-1, None], edges.diff(dim=-1).unsqueeze(-1)
        y = (starts + widths * unit).flatten(-2)
        log_weights = torch.log(widths * weights).flatten(-2)
        log_masses = log_weight(self.family, y, kappa.unsqueeze(-1), self.dim) + log_weights
        log_total = torch.logsumexp(log_masses, -1)
        parts, mean = torch.softmax(log_masses, -1), torch.zeros_like(kappa)  # the sum is 1 up to rounding
        if self.score:
            scores = self._scores(y, kappa)
            mean = (parts * scores).sum(-1)
            parts = parts * (scores - mean.unsqueeze(-1))
        cells = parts.unflatten(-1, (-1, _NODES)).sum(-1)
        zero = torch.zeros_like(low)
        below = torch.cat((zero, cells), -1).cumsum(-1)
        above = torch.cat((cells, zero), -1).flip(-1).cumsum(-1).flip(-1)
        return mode.squeeze(-1), edges, log_total, mean, below, above

    def _scores(self, y: Tensor, kappa: Tensor) -> Tensor:
        return self.family.score(*cosine_ends_of(y), kappa.unsqueeze(-1).expand_as(y).contiguous(), self.dim)

    def edge(self, cell: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edge of a cell that faces the lower or the upper tail, and the integral over the tail up to it."""
        place = torch.where(lower, cell, cell + 1).unsqueeze(-1)
        values = torch.where(lower.unsqueeze(-1), self.below, self.above)
        return self.edges.gather(-1, place).squeeze(-1), values.gather(-1, place).squeeze(-1)

    def density(self, y: Tensor) -> Tensor:
        """Return the density at y, which has the shape of κ."""
        return torch.exp(log_weight(self.family, y, self.kappa, self.dim) - self.log_total)

    def between(self, start: Tensor, change: Tensor) -> Tensor:
        """Return the integral between ``start`` and ``start + change``, which lie in one cell."""
        unit, weights = gauss_legendre(_NODES, start)
        y = start.unsqueeze(-1) + change.unsqueeze(-1) * unit
        heights = log_weight(self.family, y, self.kappa.unsqueeze(-1), self.dim)
        values = torch.exp(heights - self.log_total.unsqueeze(-1))
        if self.score:
            values = values * (self._scores(y, self.kappa) - self.mean_score.unsqueeze(-1))
        return change.abs() * (values * weights).sum(-1)


def quantile(family: Family, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return 1-t and 1+t with P(T ≤ t) = u, by Newton's method within a cell of the table."""
    table = _Table(family, kappa, dim)
    lower = u < complement
    side = torch.where(lower, 1.0, -1.0).to(u.dtype)
    target = torch.where(lower, u, complement)
    masses = torch.where(lower.unsqueeze(-1), table.below, table.above)
    inside = (masses <= target.unsqueeze(-1)).sum(-1)
    cell = torch.where(lower, inside - 1, 2 * _HALF - inside).clamp(0, 2 * _HALF - 1)
    start, mass = table.edge(cell, lower)
    low, high = torch.zeros_like(u), table.edges.diff(dim=-1).gather(-1, cell.unsqueeze(-1)).squeeze(-1)
    step = 0.5 * high
    for _ in range(_NEWTON_STEPS):
        excess = mass + table.between(start, side * step) - target
        low, high = torch.where(excess > 0, low, step), torch.where(excess > 0, step, high)
        newton = step - excess / table.density(start + side * step)
        step = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if can_look() and not bool((excess.abs() > 1e-13 * target).any()):
            break
    return cosine_ends_of(torch.where(table.log_total.isnan(), torch.nan, start + side * step))


def implicit_slope(
    family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> Tensor:
    """Return dy/dκ at a fixed probability: minus the κ-derivative of the cdf over the density."""
    table = _Table(family, kappa, dim, score=True)
    y = rapidity(one_minus_t, one_plus_t)
    cell = (table.edges <= y.unsqueeze(-1)).sum(-1) - 1
    far = (cell < _MARGIN) | (cell >= 2 * _HALF - _MARGIN)
    cell, lower = cell.clamp(0, 2 * _HALF - 1), y < table.mode
    start, derivative = table.edge(cell, lower)
    derivative = derivative + table.between(start, y - start)
    slope = torch.where(lower, -1.0, 1.0) * derivative / table.density(y)
    if can_look() and not bool(far.any()):
        return slope
    # Far out we integrate the tail itself.
    far_tail = tail(family, y, kappa, dim)
    column = kappa.unsqueeze(-1).expand_as(far_tail.nodes).contiguous()
    scores = family.score(*cosine_ends_of(far_tail.nodes), column, dim)
    relative = (far_tail.weights * (scores - table.mean_score.unsqueeze(-1))).sum(-1)
    return torch.where(far, torch.where(lower, -1.0, 1.0) * relative, slope)
