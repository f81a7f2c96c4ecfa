"""Spherical k-means: Lloyd's algorithm with cosines (Dhillon & Modha 2001)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from sklearn.base import ClusterMixin
from torch import Tensor

from powerspherical.mixture._base import AT_LEAST_ONE, Search, SphericalEstimator, without_grad_or_autocast
from powerspherical.mixture._rows import Block, Rows, Sums, argmax_, summed
from powerspherical.mixture._seeding import Seeder


@dataclass(frozen=True)
class Clusters(Sums):
    """Sums over the rows of each cluster. The objective is minus the weighted mean of 1-t over rows."""

    count: Tensor  # of the weights of the rows, (k,)
    sums: Tensor  # of the weighted unit vectors, (k, d)
    cosine: Tensor  # of the weighted cosines of all rows with their nearest direction, ()
    weight: Tensor  # of all weights, ()

    def objective(self) -> float:
        return -max(float(1 - self.cosine / self.weight), 0.0)

    def __str__(self) -> str:
        return f"mean distance 1 - t {-self.objective():.8g}"

    def inertia(self, weight_unit: float) -> float:
        """Return the sum of the squared distances 2-2t, with the user's weights."""
        return -2 * self.objective() * float(self.weight) * weight_unit


def clusters_of(directions: Tensor, blocks: Iterable[Block]) -> Clusters:
    """Return the sums over blocks, for (k, d) ``directions`` in the dtype of the blocks."""
    if directions.is_cuda:
        return summed(_clusters_by_products(directions, block) for block in blocks)
    return _clusters_by_labels(directions, blocks)


def _clusters_by_labels(directions: Tensor, blocks: Iterable[Block]) -> Clusters:
    """Sum on a CPU with few operations: each one may make threads wait for each other."""
    sums = torch.zeros_like(directions, dtype=torch.float64)
    found, weights = [], []
    for block in blocks:
        cosine, labels = argmax_(block.cosines(directions))
        block.add_by_label_(sums, labels)
        found.append((cosine, labels))
        if block.weight is not None:
            weights.append(block.weight)
    cosine, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    weight = torch.cat(weights) if weights else None
    count = torch.bincount(labels, None if weight is None else weight.double(), minlength=len(directions))
    total = (cosine if weight is None else cosine * weight).sum(dtype=torch.float64)
    return Clusters(count.double(), sums, total, count.sum(dtype=torch.float64))


def _clusters_by_products(directions: Tensor, block: Block) -> Clusters:
    """Sum on CUDA by matrix products. Adding many rows to one is slow there; a product with many zeros is not."""
    cosine, labels = argmax_(block.cosines(directions))
    ones = torch.ones_like(cosine)
    shares = cosine.new_zeros(len(directions), len(cosine))
    shares.scatter_(0, labels.unsqueeze(0), (ones if block.weight is None else block.weight).unsqueeze(0))
    count = torch.mv(shares, ones).double()
    return Clusters(count, block.sums(shares), block.weighted_sum(cosine), block.weighted_sum(ones))


def directions_of(sums: Tensor, before: Tensor, vanishing: Tensor | float) -> Tensor:
    """Return the directions of sums (k, d). Where a sum is no longer than ``vanishing``, it is that ``before``."""
    lengths = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
    lost = lengths <= vanishing
    return torch.where(lost, before, sums / torch.where(lost, 1.0, lengths))


class Lloyd(Search[Tensor, Clusters]):
    """Spherical k-means from directions (k, d)."""

    unsettled = "the clusters still changed"

    def pass_over_rows(self, model: Tensor) -> Clusters:
        return self.rows.total(partial(clusters_of, model.to(self.rows.dtype)), len(model))

    def step(self) -> Tensor:
        """Return the directions of the sums. Empty clusters get new ones; where a sum vanishes, none moves."""
        moved = directions_of(self.sums.sums, self.model, torch.finfo(torch.float64).tiny)
        empty = self.sums.count == 0
        if empty.any():
            moved[empty] = self.seeder.reseed(moved[~empty], int(empty.sum()))
        return moved

    def tolerance(self, tol: float) -> float:
        return tol * abs(self.objectives[-1])


@dataclass(eq=False, repr=False)
class SphericalKMeans(ClusterMixin, SphericalEstimator):
    """k-means by direction: centres are unit vectors, and each row belongs to the centre of largest cosine.

    It is the limit of :class:`PowerSphericalMixture` as one tied concentration grows, and takes the same kinds of rows.

    Args:
        n_clusters: the number of clusters k.
        init, n_init, max_iter, random_state: as for :class:`PowerSphericalMixture`. The run with the lowest inertia is
            kept.
        tol: ``fit`` stops when the inertia falls by no more than this fraction.
        verbose: whether to print the mean of 1 - t after each step, or a function that receives each such line.

    Attributes:
        cluster_centers_: unit vectors, (k, d).
        labels_: the index of the nearest centre for each row, (n,).
        inertia_: the weighted sum over rows of the squared distance 2 - 2t from the nearest centre.
        n_iter_: the number of steps.

    A cluster that loses all its rows starts again far from the others.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(100, 3)) + 4 * np.eye(3)[i] for i in (0, 1)])
    >>> kmeans = SphericalKMeans(2, random_state=0).fit(X)
    >>> np.bincount(kmeans.labels_)
    array([100, 100])
    >>> distances = kmeans.transform(X)
    >>> distances.shape, np.array_equal(distances.argmin(1), kmeans.predict(X))
    ((200, 2), True)
    >>> bool(np.isclose(kmeans.score(X), -kmeans.inertia_))
    True
    """

    n_clusters: int = 8
    _: KW_ONLY
    max_iter: int = 300
    tol: float = 1e-5

    _saved: ClassVar[dict[str, int]] = {"cluster_centers_": 2, "inertia_": 0, "n_iter_": 0}
    _directions = "cluster_centers_"
    _count_parameter = "n_clusters"
    _parameter_constraints = SphericalEstimator._parameter_constraints | {"n_clusters": [AT_LEAST_ONE]}

    def _search(self, rows: Rows, seeder: Seeder) -> Lloyd:
        return Lloyd(rows, seeder, seeder.start(self.init))

    def _set_fitted(self, search: Search[Tensor, Clusters]) -> None:
        rows, directions = search.rows, search.model.to(search.rows.dtype)
        self.cluster_centers_ = rows.to_user_array(directions)
        self.labels_ = rows.each(partial(_nearest, directions), self.n_clusters)
        self.inertia_ = search.sums.inertia(rows.weight_unit)

    def predict(self, X: Any) -> Any:
        """Return the index of the nearest centre for each row of ``X`` (n, d), (n,)."""
        return self._each(X, _nearest)

    def transform(self, X: Any) -> Any:
        """Return the distance √(2-2t) of each row's direction from each centre, (n, n_clusters), for ``X`` (n, d)."""
        return self._each(X, _distances)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return minus the inertia of rows ``X`` (n, d), weighted by ``sample_weight`` (n,) if given."""
        rows = self._rows(X, sample_weight)
        with without_grad_or_autocast(rows.device):
            found = rows.total(partial(clusters_of, self._model(rows)), self._n_features_out)
        return -found.inertia(rows.weight_unit)

    def _model(self, rows: Rows) -> Tensor:
        return torch.as_tensor(self.cluster_centers_).to(rows.device, rows.dtype)


def _nearest(directions: Tensor, block: Block) -> Tensor:
    return argmax_(block.cosines(directions))[1]


def _distances(directions: Tensor, block: Block) -> Tensor:
    return block.cosines(directions).neg_().add_(1).clamp_(min=0).mul_(2).sqrt_().T.contiguous()
