"""Spherical k-means: k-means++ for a start, then Lloyd's algorithm with cosines (Dhillon & Modha 2001)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import ClusterMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.random import sample_without_replacement
from torch import Tensor

from powerspherical._torch.rows import row_lengths, shared_tensor
from powerspherical.mixture._base import (
    Report,
    SphericalEstimator,
    require_integer,
    without_grad_or_autocast,
)
from powerspherical.mixture._rows import (
    Block,
    Matrix,
    Rows,
    Sums,
    add_by_label_,
    argmax_,
    products,
    require_positive,
    scaled,
    summed,
)
from powerspherical.mixture._saving import require_directions, require_number

#: From the directions that are kept, (j, d), and a count m to m new directions for empty clusters, (m, d).
Reseed = Callable[[Tensor, int], Tensor]

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
        array = check_array(array, dtype=np.float64, input_name="init")
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


@dataclass(frozen=True)
class Clusters(Sums):
    """Sums over the rows of each cluster, float64."""

    count: Tensor  # of the weights of the rows, (k,)
    sums: Tensor  # of the weighted unit vectors, (k, d)
    cosine: Tensor  # of the weighted cosines of all rows with their nearest direction, ()
    weight: Tensor  # of all weights, ()

    def distance(self) -> float:
        """Return the weighted mean of 1-t over rows."""
        return max(float(1 - self.cosine / self.weight), 0.0)

    def inertia(self) -> float:
        """Return the weighted sum of the squared distances 2-2t."""
        return 2 * self.distance() * float(self.weight)


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
        add_by_label_(sums, labels, scaled(block.rows, block.weighted_scale()))
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


def _clusters_by_products(directions: Tensor, block: Block) -> Clusters:
    """Sum on CUDA by matrix products. Adding many rows to one is slow there; a product with many zeros is not."""
    cosine, labels = argmax_(block.cosines(directions))
    ones = torch.ones_like(cosine)
    shares = cosine.new_zeros(len(directions), len(cosine))
    shares.scatter_(0, labels.unsqueeze(0), (ones if block.weight is None else block.weight).unsqueeze(0))
    count = torch.mv(shares, ones).double()
    return Clusters(count, block.sums(shares), block.weighted_sum(cosine), block.total_weight())


def clusters_around(rows: Rows, directions: Tensor) -> Clusters:
    """Return the sums over all rows, in one pass."""
    found = rows.total(partial(clusters_of, directions.to(rows.dtype)), len(directions))
    require_positive(found.weight)
    return found


class KMeansRun(NamedTuple):
    """The result of ``lloyd``: directions (k, d), their clusters, the number of steps, and whether it converged."""

    directions: Tensor
    clusters: Clusters
    steps: int
    converged: bool


def lloyd(
    rows: Rows,
    directions: Tensor,
    *,
    tol: float,
    max_iter: int,
    reseed: Reseed,
    report: Report,
) -> KMeansRun:
    """Run spherical k-means from (k, d) ``directions`` until the mean of 1-t falls by less than ``tol`` of itself."""
    clusters = clusters_around(rows, directions)
    for step in range(1, max_iter + 1):
        before = clusters.distance()
        directions = _moved(directions, clusters, reseed)
        clusters = clusters_around(rows, directions)
        report(step, clusters.distance())
        if before - clusters.distance() <= tol * clusters.distance():
            return KMeansRun(directions, clusters, step, True)
    return KMeansRun(directions, clusters, max_iter, False)


def _moved(directions: Tensor, clusters: Clusters, reseed: Reseed) -> Tensor:
    """Return the directions of the clusters' sums. Empty clusters get new ones; where a sum vanishes, none moves."""
    lengths = torch.linalg.vector_norm(clusters.sums, dim=1, keepdim=True)
    short = lengths <= torch.finfo(torch.float64).tiny
    moved = torch.where(short, directions, clusters.sums / torch.where(short, 1.0, lengths))
    empty = clusters.count == 0
    if empty.any():
        moved[empty] = reseed(moved[~empty], int(empty.sum()))
    return moved


class SphericalKMeans(ClusterMixin, SphericalEstimator):
    """k-means by direction: centres are unit vectors, and each row belongs to the centre of largest cosine.

    It is the limit of :class:`PowerSphericalMixture` as one tied concentration grows, and takes the same kinds of rows.
    The interface is that of scikit-learn's ``KMeans``.

    Args:
        n_clusters: the number of clusters k.
        init: ``"k-means++"``, ``"random"`` (rows), or an array of directions (k, d).
        n_init: the number of starts. The run with the lowest inertia is kept. ``"auto"``: 10 for ``init="random"``,
            else 1, as in scikit-learn's ``KMeans``.
        max_iter: the maximum number of steps. If they are not enough, ``fit`` warns with a ``ConvergenceWarning``.
        tol: ``fit`` stops when the inertia falls by no more than this fraction.
        random_state: a seed, or a NumPy ``RandomState``.
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

    _saved = ("cluster_centers_", "inertia_", "n_iter_")
    _count_parameter = "n_clusters"
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
        """Cluster the directions of rows, and return the estimator.

        Args:
            X: rows (n, d), n ≥ ``n_clusters``.
            y: ignored.
            sample_weight: weights ≥ 0 of the rows, (n,). Default: equal weights.
        """
        self._validate_params()
        rows = self._rows(X, sample_weight, reset=True)
        random = check_random_state(self.random_state)
        best: KMeansRun | None = None
        with without_grad_or_autocast(rows.device):
            for run in range(self._n_starts()):
                seeder = Seeder(rows, self.n_clusters, random)
                found = lloyd(
                    rows,
                    seeder.start(self.init),
                    tol=self.tol,
                    max_iter=self.max_iter,
                    reseed=seeder.reseed,
                    report=self._reporter(f"run {run}", "mean distance 1 - t"),
                )
                # Runs within the tolerance count as equal, so that rounding does not choose among them.
                if best is None or found.clusters.distance() < (1 - self.tol) * best.clusters.distance():
                    best = found
            assert best is not None
            directions = best.directions.to(rows.dtype)
            self.labels_ = rows.each(partial(_nearest, directions), self.n_clusters, dtype=torch.int64)
        self.cluster_centers_ = rows.to_user_array(directions)
        self.inertia_ = best.clusters.inertia()
        self.n_iter_ = best.steps
        if not best.converged:
            self._warn_of_max_iter("the clusters still changed")
        return self

    def predict(self, X: Any) -> Any:
        """Return the index of the nearest centre for each row of ``X`` (n, d), (n,)."""
        return self._each(X, _nearest, dtype=torch.int64)

    def transform(self, X: Any) -> Any:
        """Return the distance √(2-2t) of each row's direction from each centre, (n, n_clusters), for ``X`` (n, d)."""
        return self._each(X, _distances, per_component=True)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return minus the inertia of rows ``X`` (n, d), weighted by ``sample_weight`` (n,) if given."""
        rows = self._rows(X, sample_weight)
        with without_grad_or_autocast(rows.device):
            return -clusters_around(rows, self._model(rows)).inertia()

    def _model(self, rows: Rows) -> Tensor:
        """Return the centres in the dtype and on the device of the rows."""
        return torch.as_tensor(self.cluster_centers_).to(rows.device, rows.dtype)

    def _check_fitted(self) -> None:
        require_directions("cluster_centers_", self.cluster_centers_)
        require_number("inertia_", self.inertia_, least=0)
        require_integer("n_iter_", self.n_iter_, 0)


def _nearest(directions: Tensor, block: Block) -> Tensor:
    return argmax_(block.cosines(directions))[1]


def _distances(directions: Tensor, block: Block) -> Tensor:
    return block.cosines(directions).neg_().add_(1).clamp_(min=0).mul_(2).sqrt_().T.contiguous()
