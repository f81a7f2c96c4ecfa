"""What an expectation step computes for one block of rows, family by family.

All that a maximisation step needs of the rows are sums over them, so the sums over blocks may be added up in any
order, on any machine. For k components with responsibilities R they are, with T the family's statistic (``Tilt``),

    ΣR,    ΣR T'(t) x,    ΣR bend(t),    ΣR T(t),    Σ log p(x).

Matrices of a block are components × rows: both matrix products are fastest so, and sums over components too. They
are computed in the dtype of the rows, and in place, since at a few hundred dimensions a pass over such a matrix
costs as much as a tenth of a product. Sums over blocks are float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from powerspherical.distributions import PowerSpherical, RotationallySymmetric, VonMisesFisher
from powerspherical.families import ExponentialFamily as Tilt
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
    """The parameters as a pass over rows takes them, in the rows' dtype: factors (k, d) and, as columns, κ and what,
    with κT, makes the log of a component's weighted density.
    """

    factors: Tensor
    kappa: Tensor
    offsets: Tensor

    def log_densities_(self, statistic: Tensor) -> Tensor:
        """κT + offset from T, (k, b), in its place."""
        return statistic.mul_(self.kappa).add_(self.offsets)


@dataclass(frozen=True)
class Statistics:
    """The sums over rows, float64, with (k,) or, for ``pull``, (k, d) entries, and () for those of the whole."""

    count: Tensor
    pull: Tensor
    bend: Tensor
    statistic: Tensor
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
        return self.count, self.pull, self.bend, self.statistic, self.log_likelihood, self.weight

    def score(self) -> float:
        """The log-likelihood of a row of weight one."""
        return float(self.log_likelihood / self.weight)


class Family(ABC):
    """How the components of one family meet a block of rows."""

    tilt: ClassVar[Tilt]
    distribution: ClassVar[type[RotationallySymmetric]]

    @classmethod
    def components(cls, parameters: Parameters, dtype: torch.dtype) -> Components:
        """The offset is log π + KL - κ E T - log(area): as T, its terms are small for points near the mode."""
        kappa, dim = parameters.concentrations, parameters.directions.shape[1]
        density = cls.tilt.relative_entropy(kappa, dim) - kappa * cls.tilt.mean_statistic(kappa, dim)
        offsets = parameters.log_weights + density - log_sphere_area(dim)
        columns = (column.unsqueeze(1).to(dtype) for column in (kappa, offsets))
        return Components(parameters.directions.to(dtype), *columns)

    @classmethod
    @abstractmethod
    def log_densities(cls, components: Components, block: Block) -> Tensor:
        """The logs of the weighted densities, (k, b)."""

    @classmethod
    @abstractmethod
    def statistics(cls, components: Components, block: Block) -> Statistics:
        """The additive statistics of a block."""

    @classmethod
    @abstractmethod
    def mean_statistic(cls, statistics: Statistics) -> Tensor:
        """ΣR T at the direction that the concentrations are fitted for."""


class PowerFamily(Family):
    """T = log((1+t)/2), T' = 1/(1+t), bend = (1-t)/(1+t)."""

    tilt = PowerSpherical.family
    distribution = PowerSpherical

    @classmethod
    def components(cls, parameters: Parameters, dtype: torch.dtype) -> Components:
        plain = super().components(parameters, dtype)
        return plain._replace(factors=0.5 * plain.factors)

    @classmethod
    def _halves(cls, components: Components, block: Block) -> Tensor:
        """(1+t)/2, and at an antipode, where it may round to less than zero, a rounding."""
        cosines = block.cosines(components.factors)
        return cosines.add_(0.5).clamp_(min=torch.finfo(cosines.dtype).eps)

    @classmethod
    def log_densities(cls, components: Components, block: Block) -> Tensor:
        return components.log_densities_(cls._halves(components, block).log_())

    @classmethod
    def statistics(cls, components: Components, block: Block) -> Statistics:
        halves = cls._halves(components, block)
        logs = halves.log()
        shares = torch.addcmul(components.offsets, logs, components.kappa)
        densities = normalise_(shares, block.weight)
        count, statistic = shares.sum(1).double(), logs.mul_(shares).sum(1).double()
        shares.div_(halves)
        return Statistics(
            count=count,
            bend=shares.sum(1).double() - count,
            pull=block.sums(shares).mul_(0.5),
            statistic=statistic,
            log_likelihood=_weighted_sum(densities, block),
            weight=block.total_weight(),
        )

    @classmethod
    def mean_statistic(cls, statistics: Statistics) -> Tensor:
        return statistics.statistic


class ExponentialFamily(Family):
    """T = t-1, T' = 1, bend = 0."""

    tilt = VonMisesFisher.family
    distribution = VonMisesFisher

    @classmethod
    def components(cls, parameters: Parameters, dtype: torch.dtype) -> Components:
        plain = super().components(parameters, dtype)
        return plain._replace(offsets=plain.offsets - plain.kappa)

    @classmethod
    def log_densities(cls, components: Components, block: Block) -> Tensor:
        return components.log_densities_(block.cosines(components.factors))

    @classmethod
    def statistics(cls, components: Components, block: Block) -> Statistics:
        shares = cls.log_densities(components, block)
        densities = normalise_(shares, block.weight)
        count = shares.sum(1).double()
        return Statistics(
            count=count,
            bend=torch.zeros_like(count),
            pull=block.sums(shares),
            statistic=torch.zeros_like(count),  # the pull says it all: T is linear
            log_likelihood=_weighted_sum(densities, block),
            weight=block.total_weight(),
        )

    @classmethod
    def mean_statistic(cls, statistics: Statistics) -> Tensor:
        # At the new direction, that of the pull itself.
        return torch.linalg.vector_norm(statistics.pull, dim=1) - statistics.count


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
