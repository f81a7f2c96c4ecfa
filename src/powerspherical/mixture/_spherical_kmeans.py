"""Spherical k-means as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from sklearn.base import ClusterMixin
from sklearn.utils._param_validation import Interval
from torch import Tensor

from powerspherical.mixture._base import ConvergenceWarning, SphericalEstimator, enough_rows, exactly, whole
from powerspherical.mixture._blocks import Block
from powerspherical.mixture._lloyd import KMeansRun, clusters_of, nearest, weighty
from powerspherical.mixture._saving import require_directions, require_number


class SphericalKMeans(ClusterMixin, SphericalEstimator):
    """k-means by direction: each row belongs to the centre of largest cosine, centres are unit vectors.

    It is what :class:`PowerSphericalMixture` with one tied, growing concentration tends to, and takes the same kinds of
    rows; the interface is that of scikit-learn's ``KMeans``.

    Args:
        n_clusters: the number of clusters k.
        init: ``"k-means++"``, ``"random"`` (rows), or an array of directions (k, d).
        n_init: the number of starts; the run with the lowest inertia is kept. ``"auto"``: 10 for ``init="random"``,
            else 1, as in scikit-learn's ``KMeans``.
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
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SphericalEstimator._parameter_constraints,
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: int | str = "auto",
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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Cluster the directions of the rows of ``X`` (n, d), with ``sample_weight`` (n,) if given."""
        self._validate_params()
        count, tol = self.n_clusters, self.tol
        rows = self._rows(X, sample_weight, reset=True)
        enough_rows(rows, "n_clusters", count)
        random = self._random()
        best: KMeansRun | None = None
        with exactly(rows.device):
            for run in range(self._n_starts()):
                report = self._reporter(f"run {run}", "mean distance 1 - t")
                found, _ = self._clustered(rows, count, random, tol, self.max_iter, report)
                # Runs that end within the tolerance have found the same: which is kept is not left to rounding.
                if best is None or found.clusters.distance() < (1 - tol) * best.clusters.distance():
                    best = found
            assert best is not None
            self.labels_ = rows.each(partial(nearest, best.directions), count, dtype=torch.int64)
        self.cluster_centers_ = rows.result(best.directions.to(rows.dtype))
        self.inertia_ = 2 * best.clusters.distance() * float(best.clusters.weight)
        self.n_iter_ = best.steps
        if not best.converged:
            warnings.warn(
                f"the clusters still changed after {self.max_iter} steps: raise max_iter or tol",
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
            clusters = weighty(rows.total(partial(clusters_of, directions.to(rows.dtype)), len(directions)))
        return -2 * clusters.distance() * float(clusters.weight)

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def _check_fitted(self) -> None:
        require_directions("cluster_centers_", self.cluster_centers_)
        require_number("inertia_", self.inertia_, least=0)
        whole("n_iter_", self.n_iter_, 0)

    def _directions(self, device: torch.device) -> Tensor:
        return torch.as_tensor(self.cluster_centers_).to(device=device, dtype=torch.float64)


def _distances(directions: Tensor, block: Block) -> Tensor:
    cosines = block.cosines(directions.to(block.rows.dtype))
    return cosines.neg_().add_(1).clamp_(min=0).mul_(2).sqrt_().T.contiguous()
