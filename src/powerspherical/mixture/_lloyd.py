"""Spherical k-means: Lloyd's algorithm with cosines (Dhillon & Modha 2001)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from powerspherical.mixture._components import Block, best_, places
from powerspherical.mixture._matrices import add_by_label_, scaled, weighted_sums
from powerspherical.mixture._rows import Rows, summed

#: From the directions so far to others for the clusters without rows, of which it is given the number.
Reseed = Callable[[Tensor, int], Tensor]


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
