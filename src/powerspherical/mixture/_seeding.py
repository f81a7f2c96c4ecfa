"""Directions to start from: greedy k-means++ or random rows, among a sample of the rows."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.random import sample_without_replacement
from torch import Tensor

from powerspherical._torch.rows import row_lengths, shared_tensor
from powerspherical.mixture._rows import Matrix, Rows, products

#: Directions are chosen from a sample of this many rows, or of so many per component if that is more. k-means++ gains
#: little from more rows, and the sample has to fit in memory.
_SAMPLE_ROWS, _SAMPLE_ROWS_PER_COMPONENT = 1 << 15, 32


class Sample(NamedTuple):
    """Unit vectors (m, d) drawn from the rows, and their weights (m,), 0 for rows of zeros."""

    rows: Matrix
    weight: Tensor


class Seeder:
    """Chooses directions among the rows: ``count`` to start from, and new ones for clusters that run empty."""

    def __init__(self, rows: Rows, count: int, random: np.random.RandomState) -> None:
        self._rows, self._count, self._random = rows, count, random

    @cached_property
    def _sample(self) -> Sample:
        """Some of the rows, or all if they are few: one pass over them, made when first needed."""
        wanted = max(_SAMPLE_ROWS, _SAMPLE_ROWS_PER_COMPONENT * self._count)
        if self._rows.count <= wanted:
            return Sample(*self._rows.take(None))
        indices = sample_without_replacement(self._rows.count, wanted, random_state=self._random)
        return Sample(*self._rows.take(np.sort(indices)))

    def start(self, init: Any) -> Tensor:
        """Return the directions (count, d) that the parameter ``init`` of an estimator asks for."""
        if isinstance(init, str):
            if init == "random":
                return random_directions(self._sample, self._count, self._random)
            return self.reseed(torch.empty(0, self._rows.dim), self._count)
        array = init.detach().cpu().numpy() if isinstance(init, Tensor) else init
        array = check_array(array, dtype=np.float64, ensure_all_finite=False, input_name="init")
        wanted = (self._count, self._rows.dim)
        if array.shape != wanted:
            raise ValueError(f"init must have the shape {wanted}, one direction per row, got {array.shape}")
        lengths = row_lengths(array, "init").unsqueeze(1)
        return (shared_tensor(array) / lengths).to(self._rows.device)

    def reseed(self, kept: Tensor, wanted: int) -> Tensor:
        """Return ``wanted`` directions far from each other and from ``kept`` (j, d)."""
        return spread_directions(self._sample, kept, wanted, self._random)


def spread_directions(sample: Sample, kept: Tensor, count: int, random: np.random.RandomState) -> Tensor:
    """Return ``count`` rows of the sample, (count, d), each far from those before it and from ``kept`` (j, d).

    Greedy k-means++ (Arthur & Vassilvitskii 2007): a few candidates are drawn with probability proportional to the
    distance 1-t from the nearest direction so far. The one that leaves the smallest total distance is chosen.
    """
    rows, weight = sample
    trials = 2 + int(math.log(len(kept) + count))
    found: list[Tensor] = []
    if len(kept):
        distance = 1 - products(kept.to(rows.dtype), rows).amax(0)
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
    return _without_zeros(torch.stack(found).double(), random)


def random_directions(sample: Sample, count: int, random: np.random.RandomState) -> Tensor:
    """Return ``count`` different rows of the sample, chosen at random."""
    weight = sample.weight.double().cpu().numpy()
    enough = np.count_nonzero(weight) >= count
    chosen = random.choice(len(weight), count, replace=False, p=weight / weight.sum() if enough else None)
    rows = sample.rows[torch.from_numpy(chosen).to(sample.rows.device)]
    return _without_zeros(rows.double(), random)


def _without_zeros(vectors: Tensor, random: np.random.RandomState) -> Tensor:
    """Replace zero vectors by random directions. They occur if too few other rows could be chosen."""
    zero = ~vectors.any(1)
    missing = int(zero.sum())
    if missing:
        anywhere = torch.from_numpy(random.standard_normal((missing, vectors.shape[1]))).to(vectors)
        vectors[zero] = torch.nn.functional.normalize(anywhere, dim=1)
    return vectors


def _draw(mass: Tensor, uniforms: np.ndarray) -> Tensor:
    """Return indices drawn with probability proportional to ``mass``; the last index if all mass is zero."""
    cumulative = torch.cumsum(mass, 0, dtype=torch.float64)
    targets = torch.from_numpy(uniforms).to(mass.device) * cumulative[-1]
    return torch.searchsorted(cumulative, targets, right=True).clamp_(max=len(mass) - 1)
