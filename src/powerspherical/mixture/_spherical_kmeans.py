"""Spherical k-means as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Self

import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from powerspherical.mixture._base import SphericalEstimator, enough_rows, exactly, tolerance, whole
from powerspherical.mixture._families import Block
from powerspherical.mixture._lloyd import KMeansRun, clusters_of, nearest
from powerspherical.mixture._saving import require_directions, require_number


class SphericalKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, SphericalEstimator):
    """k-means by direction: each row belongs to the centre of largest cosine, centres are unit vectors.

    It is what :class:`PowerSphericalMixture` with one tied, growing concentration tends to, and takes the same kinds of
    rows; the interface is that of scikit-learn's ``KMeans``.

    Args:
        n_clusters: the number of clusters k.
        init: ``"k-means++"``, ``"random"`` (rows), or an array of directions (k, d).
        n_init: how often to start; the run with the lowest inertia is kept.
        max_iter: the most steps; scikit-learn's ``ConvergenceWarning`` says when they were not enough.
        tol: it ends when the inertia falls by no more than this, as a fraction.
        random_state: a seed, or NumPy's ``RandomState``.
        verbose: whether to print the mean of 1 - t after each step, or a function to give each such line to.

    Attributes:
        cluster_centers_: unit vectors, (k, d).
        labels_: the index of the nearest centre for each row, (n,).
        inertia_: the sum over rows of the squared distance 2 - 2t from the nearest centre, times their weights.
        n_iter_: the number of steps.

    A cluster that is left without rows starts again far from the others.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(100, 3)) + 4 * np.eye(3)[i] for i in (0, 1)])
    >>> kmeans = SphericalKMeans(2, random_state=0).fit(X)
    >>> np.bincount(kmeans.labels_)
    array([100, 100])
    """

    _saved = ("cluster_centers_", "inertia_", "n_iter_")

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-5,
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Cluster the directions of the rows of ``X`` (n, d), with ``sample_weight`` (n,) if given."""
        count, runs, max_iter, tol = self._check_parameters()
        rows = self._rows(X, sample_weight, reset=True)
        enough_rows(rows, "n_clusters", count)
        random = self._random()
        best: KMeansRun | None = None
        with exactly(rows.device):
            for run in range(runs if isinstance(self.init, str) else 1):
                report = self._reporter(f"run {run}", "mean distance 1 - t")
                found, _ = self._clustered(rows, count, random, tol, max_iter, report)
                # Runs that end within the tolerance have found the same: which is kept is not left to rounding.
                if best is None or found.clusters.distance() < (1 - tol) * best.clusters.distance():
                    best = found
            assert best is not None
            self.labels_ = rows.each(partial(nearest, best.directions), count, dtype=torch.int64)
        self.cluster_centers_ = rows.result(best.directions.to(rows.dtype))
        self.inertia_ = 2 * best.clusters.distance() * float(best.clusters.weight)
        self.n_iter_, self._n_features_out = best.steps, count
        if not best.converged:
            warnings.warn(
                f"the clusters still changed after {max_iter} steps: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def predict(self, X: Any) -> Any:
        """The index of the nearest direction for each row, (n,)."""
        rows = self._rows(X)
        with exactly(rows.device):
            directions = self._directions(rows.device)
            return rows.each(partial(nearest, directions), len(directions), dtype=torch.int64)

    def transform(self, X: Any) -> Any:
        """The distance √(2-2t) of each row's direction from each centre, (n, n_clusters)."""
        rows = self._rows(X)
        with exactly(rows.device):
            directions = self._directions(rows.device)
            return rows.each(partial(_distances, directions), len(directions), columns=len(directions))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the ``inertia_`` that the rows of X have with these centres."""
        rows = self._rows(X, sample_weight)
        with exactly(rows.device):
            directions = self._directions(rows.device)
            clusters = rows.total(partial(clusters_of, directions.to(rows.dtype)), len(directions))
        return -2 * clusters.distance() * float(clusters.weight)

    def _check_parameters(self) -> tuple[int, int, int, float]:
        """The number of clusters, of starts and of steps, and the tolerance."""
        self._check_start()
        return (
            whole("n_clusters", self.n_clusters, 1),
            whole("n_init", self.n_init, 1),
            whole("max_iter", self.max_iter, 1),
            tolerance("tol", self.tol),
        )

    def _check_fitted(self) -> None:
        require_directions("cluster_centers_", self.cluster_centers_)
        require_number("inertia_", self.inertia_, least=0)
        whole("n_iter_", self.n_iter_, 0)

    def _restore(self, fitted: dict[str, Any]) -> None:
        super()._restore(fitted)
        self._n_features_out = len(self.cluster_centers_)

    def _directions(self, device: torch.device) -> Tensor:
        return torch.as_tensor(self.cluster_centers_).to(device=device, dtype=torch.float64)


def _distances(directions: Tensor, block: Block) -> Tensor:
    cosines = block.cosines(directions.to(block.rows.dtype))
    return cosines.neg_().add_(1).clamp_(min=0).mul_(2).sqrt_().T.contiguous()
