"""Spherical k-means: k-means++ for a start, then Lloyd's algorithm with cosines (Dhillon & Modha 2001)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from sklearn.utils.random import sample_without_replacement
from torch import Tensor

from powerspherical.mixture._blocks import (
    Block,
    Matrix,
    add_by_label_,
    best_,
    places,
    products,
    scaled,
    weighted_sums,
)
from powerspherical.mixture._rows import Rows, summed

#: From the directions so far to others for the clusters without rows, of which it is given the number.
Reseed = Callable[[Tensor, int], Tensor]

#: Directions are chosen among so many rows at most (or 32 for each component, if that is more): what k-means++ gains
#: from more rows is little, and they have to lie in memory.
_LEAST, _EACH = 1 << 15, 32


@dataclass(frozen=True)
class Clusters:
    """Sums over rows by their nearest direction: weights (k,), unit vectors (k, d), cosines (), all weights ()."""

    count: Tensor
    sums: Tensor
    cosine: Tensor
    weight: Tensor

    def __add__(self, other: Clusters) -> Clusters:
        return Clusters(
            self.count + other.count,
            self.sums + other.sums,
            self.cosine + other.cosine,
            self.weight + other.weight,
        )

    def distance(self) -> float:
        """The mean of 1-t over rows; 2 Σ w (1-t) is the sum of squared distances."""
        return max(float(1 - self.cosine / self.weight), 0.0)


class KMeansRun(NamedTuple):
    """Directions (k, d), what they divide the rows into, the number of steps, and whether they settled."""

    directions: Tensor
    clusters: Clusters
    steps: int
    converged: bool


def clusters_of(directions: Tensor, blocks: Iterable[Block]) -> Clusters:
    """The sums over blocks, for directions of their dtype."""
    if directions.is_cuda:
        return summed(_by_products(directions, block) for block in blocks)
    return _by_labels(directions, blocks)


def _by_labels(directions: Tensor, blocks: Iterable[Block]) -> Clusters:
    """With few operations: where several threads go through blocks, one may wait for another before each."""
    order, sums = places(directions), torch.zeros_like(directions, dtype=torch.float64)
    found, weights = [], []
    for block in blocks:
        cosine, labels = best_(block.cosines(directions), order)
        add_by_label_(sums, labels, scaled(block.rows, _factors(block)))
        found.append((cosine, labels))
        if block.weight is not None:
            weights.append(block.weight)
    cosine, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    weight = torch.cat(weights) if weights else None
    count = torch.bincount(labels, None if weight is None else weight.double(), minlength=len(directions))
    return Clusters(
        count.double(),
        sums,
        (cosine if weight is None else cosine * weight).sum(dtype=torch.float64),
        count.sum(dtype=torch.float64),
    )


def _by_products(directions: Tensor, block: Block) -> Clusters:
    """With products only: on CUDA, additions of many rows to one are slow, and these, with many zeros, are not."""
    cosine, labels = best_(block.cosines(directions), places(directions))
    ones, factors = torch.ones_like(cosine), _factors(block)
    shares = torch.zeros(len(directions), len(cosine), dtype=cosine.dtype, device=cosine.device)
    shares.scatter_(0, labels.unsqueeze(0), ones.unsqueeze(0))
    count = torch.mv(shares, ones if block.weight is None else block.weight)
    sums = weighted_sums(shares if factors is None else shares.mul_(factors), block.rows)
    return Clusters(
        count.double(),
        sums.double(),
        (cosine if block.weight is None else cosine * block.weight).sum(dtype=torch.float64),
        block.total_weight(),
    )


def _factors(block: Block) -> Tensor | None:
    """What makes unit vectors of the rows, times their weights."""
    if block.scale is None or block.weight is None:
        return block.weight if block.scale is None else block.scale
    return block.scale * block.weight


def nearest(directions: Tensor, block: Block) -> Tensor:
    """The index of the nearest direction for each row of a block."""
    directions = directions.to(block.rows.dtype)
    return best_(block.cosines(directions), places(directions))[1]


class _Weighed(Protocol):
    @property
    def weight(self) -> Tensor: ...


W = TypeVar("W", bound=_Weighed)


def weighty(sums: W) -> W:
    """The sums over all rows, once it is known that these have any weight."""
    if not sums.weight > 0:
        raise ValueError("sample_weight must have a positive sum: all weights are zero")
    return sums


def lloyd(
    rows: Rows,
    directions: Tensor,
    *,
    tol: float,
    max_iter: int,
    reseed: Reseed,
    report: Callable[[int, float], None],
) -> KMeansRun:
    """Spherical k-means from (k, d) ``directions``, until the mean distance falls by less than ``tol`` of itself."""
    width = len(directions)
    clusters = weighty(rows.total(partial(clusters_of, directions.to(rows.dtype)), width))
    for step in range(1, max_iter + 1):
        proposed = _moved(directions, clusters, reseed)
        after = rows.total(partial(clusters_of, proposed.to(rows.dtype)), width)
        report(step, after.distance())
        gain = clusters.distance() - after.distance()
        directions, clusters = proposed, after
        if gain <= tol * clusters.distance():
            return KMeansRun(directions, clusters, step, True)
    return KMeansRun(directions, clusters, max_iter, False)


def _moved(directions: Tensor, clusters: Clusters, reseed: Reseed) -> Tensor:
    """The directions of the sums; where there is no row, others; where the sum vanishes, as they were."""
    lengths = torch.linalg.vector_norm(clusters.sums, dim=1, keepdim=True)
    short = lengths <= torch.finfo(torch.float64).tiny
    moved = torch.where(short, directions, clusters.sums / torch.where(short, 1.0, lengths))
    empty = clusters.count == 0
    if empty.any():
        moved[empty] = reseed(moved[~empty], int(empty.sum()))
    return moved


class Sample(NamedTuple):
    """Unit vectors (m, d) drawn from the rows, or all of them, and their weights (m,); rows of zeros have none."""

    rows: Matrix
    weight: Tensor


def sample_of(rows: Rows, components: int, random: np.random.RandomState) -> Sample:
    """Rows to choose directions from."""
    wanted = max(_LEAST, _EACH * components)
    if rows.count <= wanted:
        return Sample(*rows.take(None))
    indices = sample_without_replacement(rows.count, wanted, random_state=random)
    return Sample(*rows.take(np.sort(indices)))


def spread_directions(sample: Sample, chosen: Tensor, count: int, random: np.random.RandomState) -> Tensor:
    """``count`` rows of the sample, of shape (count, d), each far from those before it and from ``chosen`` (j, d).

    Greedy k-means++ (Arthur & Vassilvitskii 2007): of a few rows, drawn with probability proportional to the
    distance 1-t from the nearest direction so far, the one that leaves the least distance in total.
    """
    rows, weight = sample
    trials = 2 + int(math.log(len(chosen) + count))
    found: list[Tensor] = []
    if len(chosen):
        distance = 1 - products(chosen.to(rows.dtype), rows).amax(0)
    else:
        first = rows[_draw(weight, random.random_sample(1))]
        found.append(first[0])
        distance = 1 - products(first, rows)[0]
    distance.clamp_(min=0)
    while len(found) < count:
        candidates = rows[_draw(weight * distance, random.random_sample(trials))]
        remaining = torch.minimum(distance, (1 - products(candidates, rows)).clamp_(min=0))
        best = torch.argmin(torch.mv(remaining, weight))
        distance = remaining[best]
        found.append(candidates[best])
    return _with_directions(torch.stack(found).double(), random)


def random_directions(sample: Sample, count: int, random: np.random.RandomState) -> Tensor:
    """``count`` different rows of the sample at random."""
    weight = sample.weight.double().cpu().numpy()
    enough = np.count_nonzero(weight) >= count
    chosen = random.choice(len(weight), count, replace=False, p=weight / weight.sum() if enough else None)
    rows = sample.rows[torch.from_numpy(chosen).to(sample.rows.device)]
    return _with_directions(rows.double(), random)


def _with_directions(vectors: Tensor, random: np.random.RandomState) -> Tensor:
    """The vectors, and random ones for those that are zero, as where there are too few others to choose from."""
    zero = ~vectors.any(1)
    missing = int(zero.sum())
    if missing:
        anywhere = torch.from_numpy(random.standard_normal((missing, vectors.shape[1]))).to(vectors)
        vectors[zero] = torch.nn.functional.normalize(anywhere, dim=1)
    return vectors


def _draw(mass: Tensor, uniforms: np.ndarray) -> Tensor:
    """Indices drawn with probability proportional to ``mass``; the last one where there is none."""
    cumulative = torch.cumsum(mass, 0, dtype=torch.float64)
    targets = torch.from_numpy(uniforms).to(mass.device) * cumulative[-1]
    return torch.searchsorted(cumulative, targets, right=True).clamp_(max=len(mass) - 1)
