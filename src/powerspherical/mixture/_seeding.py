"""Directions to start from: greedy k-means++ or random rows, among a sample of the rows."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.random import sample_without_replacement
from torch import Tensor

from powerspherical._torch.rows import row_lengths, shared_tensor
from powerspherical.mixture._rows import Block, Rows

#: Directions are chosen from a sample of at most this many rows and numbers, or of so many rows per component if that
#: is more. k-means++ gains little from more rows, and the sample has to fit in memory.
_SAMPLE_ROWS, _SAMPLE_NUMBERS, _SAMPLE_ROWS_PER_COMPONENT = 1 << 15, 1 << 23, 32


class Seeder:
    """Chooses directions among the rows: ``count`` to start from, and new ones for clusters that run empty."""

    def __init__(self, rows: Rows, count: int, random: np.random.RandomState) -> None:
        self._rows, self._count, self._random = rows, count, random

    @cached_property
    def _sample(self) -> Block:
        """Some of the rows, or all if they are few."""
        most = min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // self._rows.numbers_per_row)
        wanted = max(most, _SAMPLE_ROWS_PER_COMPONENT * self._count)
        if self._rows.count <= wanted:
            return self._rows.take(None)
        indices = sample_without_replacement(self._rows.count, wanted, random_state=self._random)
        return self._rows.take(np.sort(indices))

    @cached_property
    def _weight(self) -> Tensor:
        """The weights of the sample (m,), 0 for rows of zeros."""
        rows, scale, weight = self._sample
        if weight is None:
            weight = torch.ones(rows.shape[0], dtype=self._rows.dtype, device=self._rows.device)
        return weight if scale is None else weight * (scale > 0)

    def start(self, init: Any) -> Tensor:
        """Return the directions (count, d) that the parameter ``init`` of an estimator asks for."""
        wanted = (self._count, self._rows.dim)
        if isinstance(init, str):
            return self._any_rows() if init == "random" else self.reseed(torch.empty(0, wanted[1]), wanted[0])
        array = init.detach().cpu().numpy() if isinstance(init, Tensor) else init
        array = check_array(array, dtype=np.float64, ensure_all_finite=False, input_name="init")
        if array.shape != wanted:
            raise ValueError(f"init must have the shape {wanted}, one direction per row, got {array.shape}")
        return (shared_tensor(array) / row_lengths(array, "init").unsqueeze(1)).to(self._rows.device)

    def reseed(self, kept: Tensor, count: int) -> Tensor:
        """Return ``count`` rows of the sample, (count, d), each far from those before it and from ``kept`` (j, d).

        Greedy k-means++ (Arthur & Vassilvitskii 2007): a few candidates are drawn with probability proportional to the
        distance 1-t from the nearest direction so far. The one that leaves the smallest total distance is chosen.
        """
        sample, weight = self._sample, self._weight
        trials = 2 + int(math.log(len(kept) + count))
        found: list[Tensor] = []
        if len(kept):
            distance = 1 - sample.cosines(kept.to(weight.dtype)).amax(0)
        else:
            first = self._drawn(weight, 1)
            found.append(first[0])
            distance = 1 - sample.cosines(first)[0]
        distance.clamp_(min=0)
        while len(found) < count:
            candidates = self._drawn(weight * distance, trials)
            remaining = torch.minimum(distance, (1 - sample.cosines(candidates)).clamp_(min=0))
            best = torch.argmin(torch.mv(remaining, weight))
            distance = remaining[best]
            found.append(candidates[best])
        return self._without_zeros(torch.stack(found).double())

    def _any_rows(self) -> Tensor:
        """Return different rows of the sample, chosen at random."""
        mass = self._weight.double().cpu().numpy()
        shares = mass / mass.sum() if np.count_nonzero(mass) >= self._count else None
        chosen = self._random.choice(len(mass), self._count, replace=False, p=shares)
        return self._without_zeros(self._sample.unit_rows(torch.from_numpy(chosen)).double())

    def _drawn(self, mass: Tensor, count: int) -> Tensor:
        """Return rows of the sample drawn with probability proportional to ``mass``; the last if all mass is zero."""
        cumulative = torch.cumsum(mass, 0, dtype=torch.float64)
        uniforms = self._random.random_sample(count)
        targets = torch.from_numpy(uniforms).to(mass.device) * cumulative[-1]
        indices = torch.searchsorted(cumulative, targets, right=True).clamp_(max=len(mass) - 1)
        return self._sample.unit_rows(indices)

    def _without_zeros(self, vectors: Tensor) -> Tensor:
        """Replace zero vectors by random directions. They occur if too few other rows could be chosen."""
        zero = ~vectors.any(1)
        if missing := int(zero.sum()):
            normals = self._random.standard_normal((missing, vectors.shape[1]))
            vectors[zero] = torch.nn.functional.normalize(torch.from_numpy(normals), dim=1).to(vectors)
        return vectors
