"""Tails and quantiles of a family by quadrature, and their derivatives in κ: what draws by inversion need.

A single tail is integrated from where it begins, over panels. For quantiles and draws the window of the rapidity
y = artanh t is cut into cells, and the mass below and above each edge is tabulated, once for equal κ. What a point then
needs is an integral over a part of one cell.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.modes import can_look
from powerspherical.families._quadrature import (
    FALL,
    FARTHEST,
    cosine_ends_of,
    falling_reach,
    log_partition,
    log_weight,
    once_for_each,
    window,
)
from powerspherical.special._quadrature import gauss_legendre

if TYPE_CHECKING:
    from powerspherical.families.base import Family

_PANEL_NODES = 32
_PANELS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0)  # of a tail, from where it begins
_TABLE_FALL = 90.0  # of the logarithm of the density, at the ends of the table
_HALF = 80  # cells on either side of the mode
_MARGIN = 20  # cells at either end, which are too near to the end for integrals that begin there
_NODES = 10  # in a cell
_NEWTON_STEPS = 40


class Tail(NamedTuple):
    """The tail that begins at y and leads away from the mode.

    Attributes:
        below: whether it lies below y.
        log_density: log of the density of y at its beginning, unnormalised.
        nodes, weights: a rule for integrals of the density over the tail, relative to its beginning.
    """

    below: Tensor
    log_density: Tensor
    nodes: Tensor
    weights: Tensor


@torch.no_grad()
def tail(family: Family, y: Tensor, kappa: Tensor, dim: int) -> Tail:
    """The tail at each y, however far out."""
    below = y < window(family, kappa, dim).mode
    direction = torch.where(below, -1.0, 1.0).to(y.dtype)

    def height(y: Tensor) -> Tensor:
        return log_weight(family, y, kappa.unsqueeze(-1), dim)

    here = log_weight(family, y, kappa, dim)
    change = (direction * falling_reach(height, y, here - FALL, direction)).unsqueeze(-1)
    unit, weights = gauss_legendre(_PANEL_NODES, y)
    places = torch.cat([a + (b - a) * unit for a, b in itertools.pairwise(_PANELS)])
    widths = torch.cat([(b - a) * weights for a, b in itertools.pairwise(_PANELS)])
    nodes = y.unsqueeze(-1) + change * places
    return Tail(below, here, nodes, torch.exp(height(nodes) - here.unsqueeze(-1)) * change.abs() * widths)


def log_near_tail(
    family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """log of the probability of the tail beyond t that does not contain the mode, and whether it lies below t."""
    found = tail(family, rapidity(one_minus_t, one_plus_t), kappa, dim)
    mass = found.log_density + torch.log(found.weights.sum(-1))
    return (mass - log_partition(family, kappa, dim)).clamp(max=0.0), found.below


def rapidity(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """artanh t."""
    ratio = torch.log(one_plus_t) - torch.log(one_minus_t)
    return (0.5 * ratio).clamp(-2 * FARTHEST, 2 * FARTHEST)


@tensor_constant
def _places() -> Numbers:
    """The edges of the cells on one side of the mode, as fractions of the way."""
    return [j / _HALF for j in range(_HALF + 1)]


class _Table:
    """Integrals of the density of y below and above the edges of cells; values without derivatives.

    Attributes:
        mode: where the density is largest.
        edges: of the cells, (…, cells + 1): half of the cells on either side of the mode.
        log_total: the logarithm of the integral of exp(log_weight).
        mean_score: E ∂ log_kernel/∂κ, if asked for.
        below, above: the integrals (…, cells + 1), accurate also in the tails. They are probabilities, or with
            ``score`` the integrals of the density times (score - its mean): derivatives of probabilities in κ.
    """

    def __init__(self, family: Family, kappa: Tensor, dim: int, *, score: bool = False) -> None:
        self.family, self.kappa, self.dim, self.score = family, kappa, dim, score
        found = once_for_each(self._tabulated, kappa)
        self.mode, self.edges, self.log_total, self.mean_score, self.below, self.above = found

    def _tabulated(self, kappa: Tensor) -> tuple[Tensor, ...]:
        low, mode, high = (x.unsqueeze(-1) for x in window(self.family, kappa, self.dim, _TABLE_FALL))
        places = _places(kappa)
        edges = torch.cat((low + (mode - low) * places, mode + (high - mode) * places[1:]), -1)
        unit, weights = gauss_legendre(_NODES, kappa)
        starts, widths = edges[..., :-1, None], edges.diff(dim=-1).unsqueeze(-1)
        y = (starts + widths * unit).flatten(-2)
        masses = log_weight(self.family, y, kappa.unsqueeze(-1), self.dim) + torch.log(
            widths * weights
        ).flatten(-2)
        log_total = torch.logsumexp(masses, -1)
        parts, mean = torch.softmax(masses, -1), torch.zeros_like(kappa)  # normalised to rounding
        if self.score:
            scores = self._scores(y, kappa)
            mean = (parts * scores).sum(-1)
            parts = parts * (scores - mean.unsqueeze(-1))
        cells = parts.unflatten(-1, (-1, _NODES)).sum(-1)
        nothing = torch.zeros_like(low)
        below = torch.cat((nothing, cells), -1).cumsum(-1)
        above = torch.cat((cells, nothing), -1).flip(-1).cumsum(-1).flip(-1)
        return mode.squeeze(-1), edges, log_total, mean, below, above

    def _scores(self, y: Tensor, kappa: Tensor) -> Tensor:
        return self.family.score(*cosine_ends_of(y), kappa.unsqueeze(-1).expand_as(y).contiguous(), self.dim)

    def edge(self, cell: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
        """Where an integral that comes from the lower or upper tail enters a cell, and its value there."""
        place = torch.where(lower, cell, cell + 1).unsqueeze(-1)
        values = torch.where(lower.unsqueeze(-1), self.below, self.above)
        return self.edges.gather(-1, place).squeeze(-1), values.gather(-1, place).squeeze(-1)

    def density(self, y: Tensor) -> Tensor:
        """The density of y, which has the shape of κ."""
        return torch.exp(log_weight(self.family, y, self.kappa, self.dim) - self.log_total)

    def between(self, start: Tensor, change: Tensor) -> Tensor:
        """The integral from ``start`` to ``start + change`` in either direction, within a cell."""
        unit, weights = gauss_legendre(_NODES, start)
        y = start.unsqueeze(-1) + change.unsqueeze(-1) * unit
        heights = log_weight(self.family, y, self.kappa.unsqueeze(-1), self.dim)
        values = torch.exp(heights - self.log_total.unsqueeze(-1))
        if self.score:
            values = values * (self._scores(y, self.kappa) - self.mean_score.unsqueeze(-1))
        return change.abs() * (values * weights).sum(-1)


def quantile(family: Family, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, by Newton's method within a cell of the table."""
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
    """dy/dκ at a fixed probability: minus the derivative of the tail over the density."""
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
    there = tail(family, y, kappa, dim)
    scores = family.score(
        *cosine_ends_of(there.nodes), kappa.unsqueeze(-1).expand_as(there.nodes).contiguous(), dim
    )
    relative = (there.weights * (scores - table.mean_score.unsqueeze(-1))).sum(-1)
    return torch.where(far, torch.where(lower, -1.0, 1.0) * relative, slope)
