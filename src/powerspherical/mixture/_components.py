"""What an expectation step computes for one block of rows.

All that a maximisation step needs of the rows are sums over them, so the sums over blocks may be added up in any
order, on any machine. For k components with responsibilities R they are, with pull, bend and score of ``Family``,

    ΣR,    ΣR pull(t) x,    ΣR bend(t),    ΣR score(t),    Σ log p(x).

Matrices of a block are components × rows: both matrix products are fastest so, and sums over components too. They
are computed in the dtype of the rows, and in place, since at a few hundred dimensions a pass over such a matrix
costs as much as a tenth of a product. Sums over blocks are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.families import Family
from powerspherical.mixture._matrices import Matrix, products, weighted_sums
from powerspherical.special.sphere import log_sphere_area


class Block(NamedTuple):
    """Rows of shape (b, d), the factors (b,) that make unit vectors of them, and their weights (b,); None is one."""

    rows: Matrix
    scale: Tensor | None = None
    weight: Tensor | None = None

    def total_weight(self) -> Tensor:
        """The sum of the weights, float64."""
        if self.weight is None:
            # Made on the device: a copy of the host's number would wait for all that is queued there.
            return torch.full((), float(len(self.rows)), dtype=torch.float64, device=self.rows.device)
        return self.weight.sum(dtype=torch.float64)

    def cosines(self, directions: Tensor) -> Tensor:
        """The cosines of (k, d) ``directions`` of the rows' dtype with the rows, (k, b); for a zero row they are 0."""
        found = products(directions, self.rows)
        return found if self.scale is None else found.mul_(self.scale)

    def sums(self, shares: Tensor) -> Tensor:
        """Σ shares · x over the unit vectors x of the block, for ``shares`` (k, b), which it may overwrite."""
        return weighted_sums(shares if self.scale is None else shares.mul_(self.scale), self.rows).double()


@dataclass(frozen=True)
class Parameters:
    """A mixture of k components in float64: log weights (k,), directions (k, d), concentrations (k,)."""

    log_weights: Tensor
    directions: Tensor
    concentrations: Tensor


class Components(NamedTuple):
    """The components of a mixture, in the rows' dtype: directions (k, d) and, as columns, κ and the constants of the
    logarithms of their weighted densities.
    """

    family: Family
    directions: Tensor
    kappa: Tensor
    offsets: Tensor

    def log_densities(self, block: Block) -> Tensor:
        """The logarithms of the weighted densities, (k, b)."""
        return self._evaluated(block, keep=False)[0]

    def statistics(self, block: Block) -> Statistics:
        """What a block of rows adds to the statistics of the expectation step."""
        shares, kept = self._evaluated(block, keep=True)
        densities = normalise_(shares, block.weight)
        count = shares.sum(1).double()
        sums = self.family.point_sums_(kept, shares, self.kappa, self.directions.shape[1])
        pull = block.sums(sums.pulls)
        return Statistics(
            count=count,
            bend=sums.bend,
            pull=pull if sums.factor == 1 else pull.mul_(sums.factor),
            score=sums.score,
            log_likelihood=_weighted_sum(densities, block),
            weight=block.total_weight(),
        )

    def _evaluated(self, block: Block, *, keep: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        cosines, dim = block.cosines(self.directions), self.directions.shape[1]
        return self.family.log_densities_(cosines, self.kappa, self.offsets, dim, keep=keep)


@dataclass(frozen=True)
class Statistics:
    """The sums over rows, float64, with (k,) or, for ``pull``, (k, d) entries, and () for those of the whole."""

    count: Tensor
    pull: Tensor
    bend: Tensor
    score: Tensor
    log_likelihood: Tensor
    weight: Tensor

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(a + b for a, b in zip(self._fields(), other._fields(), strict=True)))

    def __mul__(self, factor: float) -> Statistics:
        return Statistics(*(factor * a for a in self._fields()))

    def to(self, device: torch.device) -> Statistics:
        """The same sums on another device."""
        return Statistics(*(a.to(device) for a in self._fields()))

    def _fields(self) -> tuple[Tensor, ...]:
        return self.count, self.pull, self.bend, self.score, self.log_likelihood, self.weight

    def mean_log_likelihood(self) -> float:
        """The log-likelihood of a row of weight one."""
        return float(self.log_likelihood / self.weight)


def components_of(family: Family, parameters: Parameters, dtype: torch.dtype) -> Components:
    """The parameters, as a pass over rows of this dtype takes them."""
    kappa, dim = parameters.concentrations, parameters.directions.shape[1]
    offsets = parameters.log_weights + family.log_offset(kappa, dim) - log_sphere_area(dim)
    columns = (column.unsqueeze(1).to(dtype) for column in (kappa, offsets))
    return Components(family, parameters.directions.to(dtype), *columns)


def normalise_(log_densities: Tensor, weight: Tensor | None = None) -> Tensor:
    """Turn (k, b) log densities into responsibilities, times ``weight``, in place; the log of their sums, (b,)."""
    largest = log_densities.amax(0)
    sums = log_densities.sub_(largest).exp_().sum(0)
    if weight is None:
        log_densities.div_(sums)
    else:
        log_densities.mul_(weight / sums)
    return largest.add_(sums.log_())


def places(directions: Tensor) -> Tensor:
    """The indices of (k, d) directions as a column of their dtype, for ``best_``."""
    return torch.arange(len(directions), dtype=directions.dtype, device=directions.device).unsqueeze(1)


def best_(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each column of (k, b) values, which it overwrites, and the first of the ``places`` where that is.

    It is ``values.max(0)`` in a quarter of the time: on the CPU, torch vectorises comparisons but not that.
    """
    largest = values.amax(0)
    # Other places come after all of those.
    return largest, torch.add(places, values.lt_(largest), alpha=len(values), out=values).amin(0).long()


def _weighted_sum(values: Tensor, block: Block) -> Tensor:
    return (values if block.weight is None else values * block.weight).sum(dtype=torch.float64)
