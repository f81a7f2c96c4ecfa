"""Where to start: rows that lie far from each other (k-means++), and more of them when a component has run empty."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from sklearn.utils.random import sample_without_replacement
from torch import Tensor

from powerspherical.mixture._matrices import Matrix, products
from powerspherical.mixture._rows import Rows

#: Directions are chosen among so many rows at most (or 32 for each component, if that is more): what k-means++ gains
#: from more rows is little, and they have to lie in memory.
_LEAST, _EACH = 1 << 15, 32


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
