"""Expectation–maximisation for mixtures of one family.

A maximisation step needs only sums over the rows, so the sums of blocks can be added in any order, on any machine. For
k components with responsibilities R they are, with pull, bend and score of ``derived.forces``,

    ΣR,    ΣR pull(t) x,    ΣR bend(t),    ΣR score(t),    Σ log p(x).

The matrices of a block are computed in the dtype of the rows, in place where possible. Sums over blocks are float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.distributions.matrix import log_densities_
from powerspherical.families import POWER_SPHERICAL, ExponentialFamily, Family
from powerspherical.families.derived import fisher_step, forces, from_mean_score
from powerspherical.mixture._base import Search
from powerspherical.mixture._kmeans import Clusters, directions_of
from powerspherical.mixture._rows import Block, Rows, Sums, argmax_, summed
from powerspherical.mixture._seeding import Seeder
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special import log_sphere_area

#: The largest concentration of an exponential family. κ multiplies the rounding errors of cosines.
_LARGEST_CONCENTRATION = {torch.float64: 1e9, torch.float32: 1e5}
_EMPTY = 0.1  # a component with less than this, in average rows, starts again
_SHORTEST_STEP = 2.0**-10  # as a fraction of the full step; band-shaped clusters may need 1/(d-1)


@dataclass(frozen=True)
class Statistics(Sums):
    """The sums over rows that a maximisation step needs. The objective is the mean log-likelihood per row."""

    count: Tensor  # (k,)
    pull: Tensor  # (k, d)
    bend: Tensor  # (k,)
    score: Tensor  # (k,)
    log_likelihood: Tensor  # ()
    weight: Tensor  # ()

    def objective(self) -> float:
        return float(self.log_likelihood / self.weight)

    def __str__(self) -> str:
        return f"mean log-likelihood per row {self.objective():.8g}"


class Components(NamedTuple):
    """The components of a mixture in the rows' dtype, for passes over blocks of b rows."""

    family: Family
    directions: Tensor  # (k, d)
    kappa: Tensor  # the concentrations, (k, 1)
    offsets: Tensor  # the terms of the log weighted densities that do not depend on the row, (k, 1)

    def log_densities(self, block: Block, keep: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the logs of the weighted densities, (k, b), and with ``keep`` what ``statistics`` needs."""
        cosines, dim = block.cosines(self.directions), self.directions.shape[1]
        kept = log_densities_(self.family, cosines, self.kappa, self.offsets, dim, keep=keep)
        return cosines, kept

    def likeliest(self, block: Block) -> Tensor:
        """Return the index of the likeliest component of each row, (b,)."""
        return argmax_(self.log_densities(block)[0])[1]

    def responsibilities(self, block: Block) -> Tensor:
        """Return the probability of each component given each row, (b, k)."""
        shares, _ = self.log_densities(block)
        normalise_(shares)
        return shares.T.contiguous()

    def log_density(self, block: Block) -> Tensor:
        """Return the log-density of the mixture at each row, (b,)."""
        return normalise_(self.log_densities(block)[0])

    def statistics(self, blocks: Iterable[Block]) -> Statistics:
        return summed(map(self.block_statistics, blocks))

    def block_statistics(self, block: Block) -> Statistics:
        shares, kept = self.log_densities(block, keep=True)
        log_densities = normalise_(shares, block.weight)
        count = shares.sum(1).double()
        if self.family.linear:
            pull, bend = block.sums(shares), torch.zeros_like(count)
            score = bend  # not needed: it follows from the pull
        elif self.family is POWER_SPHERICAL:  # the general case below, with fewer passes over the matrix
            halves, logs = kept
            score = logs.mul_(shares).sum(1).double()
            pulls = shares.div_(halves)
            bend = pulls.sum(1).double() - count
            pull = block.sums(pulls).mul_(0.5)
        else:
            t, dim = Cosine(*kept), self.directions.shape[1]
            pulls, bends = forces(self.family, t, self.kappa.expand_as(t.minus), dim)
            bend = (shares * bends).sum(1).double()
            score = (shares * self.family.score(t, self.kappa, dim)).sum(1).double()
            pull = block.sums(shares * pulls)
        sums = (block.weighted_sum(values) for values in (log_densities, torch.ones_like(log_densities)))
        return Statistics(count, pull, bend, score, *sums)


def normalise_(log_densities: Tensor, weight: Tensor | None = None) -> Tensor:
    """Turn (k, b) log densities into responsibilities times ``weight``, in place; return the log-sum-exp, (b,)."""
    largest = log_densities.amax(0)
    sums = log_densities.sub_(largest).exp_().sum(0)
    if weight is None:
        log_densities.div_(sums)
    else:
        log_densities.mul_(weight / sums)
    return largest.add_(sums.log_())


@dataclass(frozen=True)
class Parameters:
    """The parameters of k components of one family, float64."""

    family: Family
    log_weights: Tensor  # (k,)
    directions: Tensor  # (k, d)
    concentrations: Tensor  # (k,)

    def components(self, dtype: torch.dtype) -> Components:
        """Convert the parameters for a pass over rows of this dtype."""
        kappa, dim = self.concentrations, self.directions.shape[1]
        offsets = self.log_weights + self.family.offset(kappa, dim) - log_sphere_area(dim)
        columns = (column.unsqueeze(1).to(dtype) for column in (kappa, offsets))
        return Components(self.family, self.directions.to(dtype), *columns)

    def statistics(self, rows: Rows) -> Statistics:
        """Return the statistics of all rows: the expectation step, in one pass."""
        return rows.total(self.components(rows.dtype).statistics, len(self.directions))

    def maximised(
        self, statistics: Statistics, tied: bool, dtype: torch.dtype, fraction: float = 1.0
    ) -> Parameters:
        """Return the parameters after a ``fraction`` of a maximisation step, for the statistics of rows of ``dtype``.

        In an exponential family the new κ is always the exact maximum.
        """
        family, count, kappa = self.family, statistics.count, self.concentrations
        dim = self.directions.shape[1]
        # Newton's step for rows that are symmetric around the direction, see ``distributions.fit``.
        target = statistics.pull + (statistics.bend / (dim - 1)).unsqueeze(1) * self.directions
        directions = directions_of(target, self.directions, 1e-12 * count.unsqueeze(1))
        if fraction < 1:
            directions = torch.lerp(self.directions, directions, fraction)
            directions = torch.nn.functional.normalize(directions, dim=1)
        scores = statistics.score
        if family.linear:
            scores = torch.linalg.vector_norm(statistics.pull, dim=1) - count  # T = t-1 at the new directions
        means = scores.sum() / count.sum() if tied else scores / count
        largest = largest_concentration(family, dim, dtype)
        if isinstance(family, ExponentialFamily):
            fitted = from_mean_score(family, means.clamp(max=-1e-12), dim)
            fitted = fitted.clamp(max=largest).expand_as(kappa)
        else:
            fitted = fisher_step(family, means, kappa[0] if tied else kappa, dim)
            fitted = torch.lerp(kappa, fitted.clamp(max=largest).expand_as(kappa), fraction)
        kappa = fitted.clone() if tied else torch.where(count > 0, fitted, kappa)
        return Parameters(family, (count / count.sum()).log(), directions, kappa)

    def reseeded(self, empty: Tensor, seeder: Seeder) -> Parameters:
        """Start empty components again, far from the others, with the mean concentration and little weight."""
        directions, kappa = self.directions.clone(), self.concentrations.clone()
        weights = self.log_weights.exp()
        directions[empty] = seeder.reseed(directions[~empty], int(empty.sum()))
        kappa[empty] = kappa[~empty].mean()
        weights[empty] = 1e-3 / len(weights)
        return Parameters(self.family, (weights / weights.sum()).log(), directions, kappa)


@lru_cache
def largest_concentration(family: Family, dim: int, dtype: torch.dtype) -> float:
    """Return the largest concentration that rows of this dtype can resolve.

    Outside of exponential families it is the one whose mean cosine is that of the limit for exponential families.
    """
    limit = _LARGEST_CONCENTRATION[dtype]
    if isinstance(family, ExponentialFamily):
        return limit
    complement = torch.tensor(min(0.5, (dim - 1) / (2 * limit)), dtype=torch.float64)
    return float(family.from_mean_cosine(1 - complement, complement, dim))


def from_clusters(family: Family, directions: Tensor, clusters: Clusters, dtype: torch.dtype) -> Parameters:
    """Return a start for EM: the weights of the clusters, and one concentration from their mean cosine."""
    share = clusters.count + 1e-3 * clusters.weight / len(directions)  # an empty cluster gets some weight
    cosine = (clusters.cosine / clusters.weight).clamp(1e-6, 1 - 1e-9)
    dim = directions.shape[1]
    kappa = family.from_mean_cosine(cosine, 1 - cosine, dim)
    kappa = kappa.clamp(max=largest_concentration(family, dim, dtype)).expand(len(directions)).clone()
    return Parameters(family, (share / share.sum()).log(), directions, kappa)


class ExpectationMaximisation(Search[Parameters, Statistics]):
    """EM from given parameters.

    Unless the family is linear in t, the step in the directions is too long for clusters that spread more in some
    directions than in others. A step that lowers the likelihood by more than rounding is rejected, and all later steps
    are half as long. An empty component gets one new start, which is rejected if it lowers the likelihood.
    """

    unsettled = "the likelihood still rose"

    def __init__(self, rows: Rows, seeder: Seeder, start: Parameters, tied: bool) -> None:
        super().__init__(rows, seeder, start)
        self._tied, self._fraction = tied, 1.0
        self._had_a_restart = torch.zeros_like(start.log_weights, dtype=torch.bool)

    def pass_over_rows(self, model: Parameters) -> Statistics:
        return model.statistics(self.rows)

    def step(self) -> Parameters:
        proposed = self.model.maximised(self.sums, self._tied, self.rows.dtype, self._fraction)
        empty = (self.sums.count < _EMPTY * self.sums.weight / self.rows.count) & ~self._had_a_restart
        self.restarted = bool(empty.any())
        self._had_a_restart |= empty
        return proposed.reseeded(empty, self.seeder) if self.restarted else proposed

    def accepts(self, gain: float) -> bool:
        return gain >= 0

    def retries(self, gain: float) -> bool:
        if self.restarted:
            return True  # without the new starts
        too_long = gain < -self.rounding() and self._fraction > _SHORTEST_STEP
        self._fraction /= 2 if too_long else 1
        return too_long
