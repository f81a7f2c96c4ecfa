"""Quantiles of a family and their derivatives in κ, by quadrature: what draws by inversion need.

The window of the rapidity y = artanh t is cut into cells, and the mass below and above each edge is tabulated, once for
equal κ. What a single point then needs is an integral over a part of one cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.modes import can_look
from powerspherical.families._quadrature import (
    FAR_FALL,
    cosine_ends_of,
    log_weight,
    once_for_each,
    rapidity,
    window,
)
from powerspherical.special._quadrature import gauss_legendre

if TYPE_CHECKING:
    from powerspherical.families.base import Family

_CELLS = 160
_NODES = 8  # in a cell
_NEWTON_STEPS = 40


@tensor_constant
def _indices(count: int) -> Numbers:
    return [float(j) for j in range(count)]


class _Table:
    """Integrals over the density of y below and above the edges of cells; values without derivatives.

    Attributes:
        mode: where the density is largest.
        low, width: where the first cell begins, and the width of each.
        log_total: the logarithm of the integral of exp(log_weight).
        mean_score: E ∂ log_kernel/∂κ, if asked for.
        below, above: probabilities (…, cells + 1), relative accuracy also in the tails; with ``score`` the integrals
            of (score - its mean) times the density instead.
    """

    def __init__(self, family: Family, kappa: Tensor, dim: int, *, score: bool = False) -> None:
        self.family, self.kappa, self.dim, self.score = family, kappa, dim, score
        found = once_for_each(self._tabulated, kappa)
        self.mode, self.low, self.width, self.log_total, self.mean_score, self.below, self.above = found

    def _tabulated(self, kappa: Tensor) -> tuple[Tensor, ...]:
        around = window(self.family, kappa, self.dim, FAR_FALL)
        width = (around.high - around.low) / _CELLS
        unit, weights = gauss_legendre(_NODES, kappa)
        steps = (_indices(kappa, _CELLS).unsqueeze(-1) + unit).flatten()
        y = around.low.unsqueeze(-1) + width.unsqueeze(-1) * steps
        heights = log_weight(self.family, y, kappa.unsqueeze(-1), self.dim)
        masses = torch.log(width.unsqueeze(-1) * weights.repeat(_CELLS)) + heights
        log_total = torch.logsumexp(masses, -1)
        probabilities = torch.exp(masses - log_total.unsqueeze(-1))
        densities = torch.exp(heights - log_total.unsqueeze(-1))
        mean = torch.zeros_like(kappa)
        if self.score:
            scores = self.family.score(
                *cosine_ends_of(y), kappa.unsqueeze(-1).expand_as(y).contiguous(), self.dim
            )
            mean = (probabilities * scores).sum(-1)
            deviations = scores - mean.unsqueeze(-1)
            probabilities, densities = probabilities * deviations, densities * deviations
        # Beyond the window the density goes on to fall exponentially.
        rise = ((heights[..., 1] - heights[..., 0]) / (y[..., 1] - y[..., 0])).clamp(min=0.1)
        fall = ((heights[..., -2] - heights[..., -1]) / (y[..., -1] - y[..., -2])).clamp(min=0.1)
        first, last = densities[..., :1] / rise.unsqueeze(-1), densities[..., -1:] / fall.unsqueeze(-1)
        cells = probabilities.unflatten(-1, (_CELLS, _NODES)).sum(-1)
        below = torch.cat((first, cells), -1).cumsum(-1)
        above = torch.cat((cells, last), -1).flip(-1).cumsum(-1).flip(-1)
        return around.mode, around.low, width, log_total, mean, below, above

    def edge(self, cell: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
        """Where an integral that begins in the lower or upper tail enters a cell, and what it has come to there."""
        place = torch.where(lower, cell, cell + 1)
        mass = torch.where(lower.unsqueeze(-1), self.below, self.above)
        return self.low + self.width * place, mass.gather(-1, place.unsqueeze(-1)).squeeze(-1)

    def density(self, y: Tensor) -> Tensor:
        """The density of y."""
        kappa, log_total = self.kappa, self.log_total
        if y.dim() > kappa.dim():
            kappa, log_total = kappa.unsqueeze(-1), log_total.unsqueeze(-1)
        return torch.exp(log_weight(self.family, y, kappa, self.dim) - log_total)

    def between(self, start: Tensor, change: Tensor) -> Tensor:
        """What the integrals grow by from ``start`` to ``start + change``, |change| at most one cell."""
        unit, weights = gauss_legendre(_NODES, start)
        y = start.unsqueeze(-1) + change.unsqueeze(-1) * unit
        values = self.density(y)
        if self.score:
            kappa = self.kappa.unsqueeze(-1).expand_as(y).contiguous()
            scores = self.family.score(*cosine_ends_of(y), kappa, self.dim)
            values = values * (scores - self.mean_score.unsqueeze(-1))
        return change.abs() * (values * weights).sum(-1)


def quantile(family: Family, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, by Newton's method within a cell of the table."""
    table = _Table(family, kappa, dim)
    lower = u < complement
    side = torch.where(lower, 1.0, -1.0).to(u.dtype)
    target = torch.where(lower, u, complement)
    masses = torch.where(lower.unsqueeze(-1), table.below, table.above)
    inside = (masses <= target.unsqueeze(-1)).sum(-1)
    cell = torch.where(lower, inside - 1, _CELLS - inside).clamp(0, _CELLS - 1)
    start, mass = table.edge(cell, lower)
    low, high = torch.zeros_like(u), table.width
    step = 0.5 * table.width
    for _ in range(_NEWTON_STEPS):
        excess = mass + table.between(start, side * step) - target
        low, high = torch.where(excess > 0, low, step), torch.where(excess > 0, step, high)
        newton = step - excess / table.density(start + side * step)
        step = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if can_look() and not bool((excess.abs() > 1e-13 * target).any()):
            break
    return cosine_ends_of(start + side * step)


def implicit_slope(
    family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> Tensor:
    """dy/dκ at a fixed probability: minus the derivative of the tail over the density."""
    table = _Table(family, kappa, dim, score=True)
    y = rapidity(one_minus_t, one_plus_t)
    y = torch.minimum(torch.maximum(y, table.low), table.low + _CELLS * table.width)
    cell = ((y - table.low) / table.width).nan_to_num().long().clamp(0, _CELLS - 1)
    lower = y < table.mode
    start, derivative = table.edge(cell, lower)
    derivative = derivative + table.between(start, y - start)
    return torch.where(lower, -1.0, 1.0) * derivative / table.density(y)
