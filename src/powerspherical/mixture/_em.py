"""Expectation–maximisation: its two steps, and the loop that never lets the likelihood fall.

All that a maximisation step needs of the rows are sums over them, so the sums over blocks may be added up in any
order, on any machine. For k components with responsibilities R they are, with pull, bend and score of ``Family``,

    ΣR,    ΣR pull(t) x,    ΣR bend(t),    ΣR score(t),    Σ log p(x).

Matrices of a block are computed in the dtype of the rows, and in place, since at a few hundred dimensions a pass over
such a matrix costs as much as a tenth of a product. Sums over blocks are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.families import ExponentialFamily, Family
from powerspherical.mixture._blocks import Block
from powerspherical.mixture._lloyd import Clusters, Reseed, weighty
from powerspherical.mixture._rows import Rows, summed
from powerspherical.special.sphere import log_sphere_area

#: The largest concentration of an exponential family. Cosines have the rounding of the rows' dtype, which κ multiplies.
_LARGEST = {torch.float64: 1e9, torch.float32: 1e5}
_EMPTY = 0.1  # of the average row
_SHORTEST = 2.0**-10  # fraction of a step in the directions: where clusters are bands, 1/(d-1) may be needed


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


def _weighted_sum(values: Tensor, block: Block) -> Tensor:
    return (values if block.weight is None else values * block.weight).sum(dtype=torch.float64)


@lru_cache
def largest_concentration(family: Family, dim: int, dtype: torch.dtype) -> float:
    """The largest concentration that rows of this dtype can tell: at 1 - E t about (d-1)/2 over the limit for t."""
    limit = _LARGEST[dtype]
    if isinstance(family, ExponentialFamily):
        return limit
    complement = torch.tensor(min(0.5, (dim - 1) / (2 * limit)), dtype=torch.float64)
    return float(family.concentration_from_mean_cosine(1 - complement, complement, dim))


class EMRun(NamedTuple):
    """Parameters, the statistics under them, the log-likelihoods of a row up to then, the number of steps tried,
    and whether it settled.
    """

    parameters: Parameters
    statistics: Statistics
    scores: list[float]
    steps: int
    converged: bool


def from_clusters(family: Family, directions: Tensor, clusters: Clusters, dtype: torch.dtype) -> Parameters:
    """A start: the weights of clusters, and for all the concentration that their mean cosine calls for."""
    share = clusters.count + 1e-3 * clusters.weight / len(directions)  # none starts with nothing
    cosine = (clusters.cosine / clusters.weight).clamp(1e-6, 1 - 1e-9)
    dim = directions.shape[1]
    kappa = family.concentration_from_mean_cosine(cosine, 1 - cosine, dim)
    kappa = kappa.clamp(max=largest_concentration(family, dim, dtype)).expand(len(directions)).clone()
    return Parameters((share / share.sum()).log(), directions, kappa)


def statistics_of(rows: Rows, family: Family, parameters: Parameters) -> Statistics:
    """The expectation step: one pass over the rows."""
    components = components_of(family, parameters, rows.dtype)
    return weighty(rows.total(partial(statistics_of_blocks, components), len(parameters.directions)))


def statistics_of_blocks(components: Components, blocks: Iterable[Block]) -> Statistics:
    """Sum of the statistics over blocks."""
    return summed(components.statistics(block) for block in blocks)


def rounding(rows: Rows, score: float) -> float:
    """How far the log-likelihood of a row may be off."""
    return torch.finfo(rows.dtype).eps * max(1.0, abs(score))


def maximised(
    family: Family,
    statistics: Statistics,
    before: Parameters,
    *,
    tied: bool,
    dtype: torch.dtype,
    fraction: float = 1.0,
) -> Parameters:
    """The parameters that the statistics of rows of ``dtype`` call for; steps go only a ``fraction`` of the way.

    In an exponential family that concerns the directions alone: κ is exact for the statistics.
    """
    count = statistics.count
    dim = before.directions.shape[1]
    # Newton's step for rows that are symmetric around the direction, see ``distributions.fit``.
    target = statistics.pull + (statistics.bend / (dim - 1)).unsqueeze(1) * before.directions
    lengths = torch.linalg.vector_norm(target, dim=1, keepdim=True)
    lost = lengths <= 1e-12 * count.unsqueeze(1)
    directions = torch.where(lost, before.directions, target / torch.where(lost, 1.0, lengths))
    if fraction < 1:
        directions = torch.lerp(before.directions, directions, fraction)
        directions = torch.nn.functional.normalize(directions, dim=1)
    scores, exact, kappa = statistics.score, isinstance(family, ExponentialFamily), before.concentrations
    if family.linear:
        scores = torch.linalg.vector_norm(statistics.pull, dim=1) - count  # T = t-1 at the new directions
    means = scores.sum() / count.sum() if tied else scores / count
    fitted = family.fitted_concentration(
        means.clamp(max=-1e-12) if exact else means, kappa[0] if tied else kappa, dim
    )
    fitted = fitted.clamp(max=largest_concentration(family, dim, dtype)).expand_as(kappa)
    if not exact:
        fitted = torch.lerp(kappa, fitted, fraction)
    kappa = fitted.clone() if tied else torch.where(count > 0, fitted, kappa)
    return Parameters((count / count.sum()).log(), directions, kappa)


def expectation_maximisation(
    rows: Rows,
    family: Family,
    start: Parameters,
    *,
    tied: bool,
    tol: float,
    max_iter: int,
    reseed: Reseed,
    report: Callable[[int, float], None],
) -> EMRun:
    """EM from ``start``, until the log-likelihood of a row rises by less than ``tol``.

    Unless the family is linear in t, the step in the directions is not an exact maximum: it is too long for clusters
    that spread more in some directions than in others. If it lowers the likelihood by more than rounding, it is
    taken back, and this and all later steps are half as long.
    """
    maximise = partial(maximised, family, tied=tied, dtype=rows.dtype)
    now, statistics = start, statistics_of(rows, family, start)
    scores = [statistics.mean_log_likelihood()]
    fraction, reseeded = 1.0, torch.zeros_like(start.log_weights, dtype=torch.bool)
    for step in range(1, max_iter + 1):
        proposed = maximise(statistics, now, fraction=fraction)
        empty = (statistics.count < _EMPTY * statistics.weight / rows.count) & ~reseeded
        if empty.any():
            proposed, reseeded = _reseeded(proposed, empty, reseed), reseeded | empty
        after = statistics_of(rows, family, proposed)
        gain = after.mean_log_likelihood() - scores[-1]
        report(step, after.mean_log_likelihood())
        if gain < 0 and empty.any():
            continue  # without the new starts, which are tried once
        if gain < -rounding(rows, scores[-1]) and fraction > _SHORTEST:
            fraction /= 2
            continue
        if gain < 0:
            return EMRun(now, statistics, scores, step, True)
        now, statistics = proposed, after
        scores.append(after.mean_log_likelihood())
        if gain <= tol and not empty.any():
            return EMRun(now, statistics, scores, step, True)
    return EMRun(now, statistics, scores, max_iter, False)


def _reseeded(parameters: Parameters, empty: Tensor, reseed: Reseed) -> Parameters:
    """Components without rows start again, as an average one, somewhere far from the others."""
    directions, kappa = parameters.directions.clone(), parameters.concentrations.clone()
    directions[empty] = reseed(directions[~empty], int(empty.sum()))
    kappa[empty] = kappa[~empty].mean()
    weights = parameters.log_weights.exp()
    weights[empty] = 1e-3 / len(weights)
    return Parameters((weights / weights.sum()).log(), directions, kappa)
