"""What an expectation step computes for one block of rows, family by family.

All that a maximisation step needs of the rows are sums over them, so the sums over blocks may be added up in any
order, on any machine. For k components with responsibilities R they are, with T the family's statistic (``Tilt``),

    ΣR,    ΣR T'(t) x,    ΣR bend(t),    ΣR T(t),    Σ log p(x).

Matrices of a block are components × rows: both matrix products are fastest so, and sums over components too. They
are computed in the dtype of the rows, and in place, since at a few hundred dimensions a pass over such a matrix
costs as much as a tenth of a product. Sums over blocks are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from powerspherical.distributions import PowerSpherical, RotationallySymmetric, VonMisesFisher
from powerspherical.special.sphere import log_sphere_area
from powerspherical.special.tilt import Tilt


class Block(NamedTuple):
    """Rows of shape (b, d), the factors (b,) that make unit vectors of them, and their weights (b,); None is one."""

    rows: Tensor
    scale: Tensor | None = None
    weight: Tensor | None = None

    def total_weight(self) -> Tensor:
        """The sum of the weights, float64."""
        if self.weight is None:
            return torch.tensor(float(len(self.rows)), dtype=torch.float64, device=self.rows.device)
        return self.weight.sum(dtype=torch.float64)

    def cosines(self, directions: Tensor) -> Tensor:
        """The cosines of (k, d) ``directions`` with the rows, (k, b); a zero row is at right angles to all."""
        products = torch.mm(directions.to(self.rows.dtype), self.rows.T)
        return products if self.scale is None else products.mul_(self.scale)

    def sums(self, shares: Tensor) -> Tensor:
        """Σ shares · x over the unit vectors x of the block, for ``shares`` (k, b), which it may overwrite."""
        return torch.mm(shares if self.scale is None else shares.mul_(self.scale), self.rows).double()


@dataclass(frozen=True)
class Parameters:
    """A mixture of k components in float64: log weights (k,), directions (k, d), concentrations (k,)."""

    log_weights: Tensor
    directions: Tensor
    concentrations: Tensor


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

    def _fields(self) -> tuple[Tensor, ...]:
        return self.count, self.pull, self.bend, self.statistic, self.log_likelihood, self.weight

    def score(self) -> float:
        """The log-likelihood of a row of weight one."""
        return float(self.log_likelihood / self.weight)


class Family:
    """How the components of one family meet a block of rows."""

    tilt: ClassVar[Tilt]
    distribution: ClassVar[type[RotationallySymmetric]]

    @classmethod
    def offsets(cls, parameters: Parameters) -> Tensor:
        """What, with κT, makes the log of the weighted density: log π + KL - κ E T - log(area), as a column."""
        kappa, dim = parameters.concentrations, parameters.directions.shape[1]
        density = cls.tilt.relative_entropy(kappa, dim) - kappa * cls.tilt.mean_statistic(kappa, dim)
        return (parameters.log_weights + density - log_sphere_area(dim)).unsqueeze(1)

    @classmethod
    def log_densities(cls, parameters: Parameters, block: Block) -> Tensor:
        """The logs of the weighted densities, (k, b)."""
        raise NotImplementedError

    @classmethod
    def statistics(cls, parameters: Parameters, block: Block) -> Statistics:
        """The additive statistics of a block."""
        raise NotImplementedError

    @classmethod
    def mean_statistic(cls, statistics: Statistics) -> Tensor:
        """ΣR T at the direction that the concentrations are fitted for."""
        raise NotImplementedError


class PowerFamily(Family):
    """T = log((1+t)/2), T' = 1/(1+t), bend = (1-t)/(1+t)."""

    tilt = PowerSpherical._tilt
    distribution = PowerSpherical

    @classmethod
    def _halves(cls, parameters: Parameters, block: Block) -> Tensor:
        """(1+t)/2, and at an antipode, where it may round to less than zero, a rounding."""
        cosines = block.cosines(0.5 * parameters.directions)
        return cosines.add_(0.5).clamp_(min=torch.finfo(cosines.dtype).eps)

    @classmethod
    def log_densities(cls, parameters: Parameters, block: Block) -> Tensor:
        return _affine(cls._halves(parameters, block).log_(), parameters, cls.offsets(parameters))

    @classmethod
    def statistics(cls, parameters: Parameters, block: Block) -> Statistics:
        halves = cls._halves(parameters, block)
        logs = halves.log()
        shares = logs.clone()
        densities = normalise_(_affine(shares, parameters, cls.offsets(parameters)), block.weight)
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

    tilt = VonMisesFisher._tilt
    distribution = VonMisesFisher

    @classmethod
    def log_densities(cls, parameters: Parameters, block: Block) -> Tensor:
        offsets = cls.offsets(parameters) - parameters.concentrations.unsqueeze(1)
        return _affine(block.cosines(parameters.directions), parameters, offsets)

    @classmethod
    def statistics(cls, parameters: Parameters, block: Block) -> Statistics:
        shares = cls.log_densities(parameters, block)
        densities = normalise_(shares, block.weight)
        count = shares.sum(1).double()
        pull = block.sums(shares)
        return Statistics(
            count=count,
            bend=torch.zeros_like(count),
            pull=pull,
            statistic=(pull * parameters.directions).sum(1) - count,
            log_likelihood=_weighted_sum(densities, block),
            weight=block.total_weight(),
        )

    @classmethod
    def mean_statistic(cls, statistics: Statistics) -> Tensor:
        # At the new direction, that of the pull itself: T is linear.
        return torch.linalg.vector_norm(statistics.pull, dim=1) - statistics.count


def _affine(statistic: Tensor, parameters: Parameters, offsets: Tensor) -> Tensor:
    """κT + offset, in place."""
    kappa = parameters.concentrations.unsqueeze(1)
    return statistic.mul_(kappa.to(statistic.dtype)).add_(offsets.to(statistic.dtype))


def normalise_(log_densities: Tensor, weight: Tensor | None = None) -> Tensor:
    """Turn (k, b) log densities into responsibilities, times ``weight``, in place; the log of their sums, (b,)."""
    largest = log_densities.amax(0)
    sums = log_densities.sub_(largest).exp_().sum(0)
    if weight is None:
        log_densities.div_(sums)
    else:
        log_densities.mul_(weight / sums)
    return largest.add_(sums.log_())


def _weighted_sum(values: Tensor, block: Block) -> Tensor:
    return (values if block.weight is None else values * block.weight).sum(dtype=torch.float64)
