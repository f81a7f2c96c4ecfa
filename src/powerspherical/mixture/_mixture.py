"""A mixture of distributions of one family, fitted by expectation–maximisation, as a scikit-learn estimator.

A maximisation step needs only sums over the rows, so the sums of blocks can be added in any order, on any machine. For
k components with responsibilities R they are, with pull, bend and score of ``derived.forces``,

    ΣR,    ΣR pull(t) x,    ΣR bend(t),    ΣR score(t),    Σ log p(x).

The matrices of a block are computed in the dtype of the rows, in place where possible: at a few hundred dimensions a
pass over such a matrix takes a tenth of the time of a matrix product. Sums over blocks are float64.
"""

from __future__ import annotations

import copyreg
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, check_scalar
from torch import Tensor

from powerspherical.distributions import RotationallySymmetric, distribution_named
from powerspherical.distributions.cosine_matrix import log_densities_, log_offset
from powerspherical.families import ExponentialFamily, Family, family_names, register_family
from powerspherical.families.derived import fisher_step, from_mean_score
from powerspherical.mixture._base import Search, SphericalEstimator, without_grad_or_autocast
from powerspherical.mixture._kmeans import Clusters, Lloyd
from powerspherical.mixture._rows import Block, Rows, Sums, argmax_, summed
from powerspherical.mixture._saving import SavedEstimator
from powerspherical.mixture._seeding import Seeder
from powerspherical.mixture._steps import point_sums_
from powerspherical.special import log_sphere_area

#: The largest concentration of an exponential family. κ multiplies the rounding errors of cosines.
_LARGEST_CONCENTRATION = {torch.float64: 1e9, torch.float32: 1e5}
_EMPTY = 0.1  # a component with less than this, in average rows, starts again
_SHORTEST_STEP = 2.0**-10  # as a fraction of the full step; band-shaped clusters may need 1/(d-1)
_CLUSTER_STEPS, _CLUSTER_TOL = 10, 1e-5  # of spherical k-means, before EM
_FORGETTING = 0.7  # exponent of the step size of partial_fit, in (½, 1]: Cappé & Moulines 2009


@dataclass(frozen=True)
class Parameters:
    """The parameters of k components, float64."""

    log_weights: Tensor  # (k,)
    directions: Tensor  # (k, d)
    concentrations: Tensor  # (k,)


@dataclass(frozen=True)
class Statistics(Sums):
    """The sums over rows that a maximisation step needs, float64."""

    count: Tensor  # (k,)
    pull: Tensor  # (k, d)
    bend: Tensor  # (k,)
    score: Tensor  # (k,)
    log_likelihood: Tensor  # ()
    weight: Tensor  # ()

    def __mul__(self, factor: float) -> Statistics:
        return Statistics(*(factor * a for a in vars(self).values()))

    def to(self, device: torch.device) -> Statistics:
        """Return the same sums on another device."""
        return Statistics(*(a.to(device) for a in vars(self).values()))

    def mean_log_likelihood(self) -> float:
        """Return the mean log-likelihood per row."""
        return float(self.log_likelihood / self.weight)


class Components(NamedTuple):
    """The components of a mixture in the rows' dtype."""

    family: Family
    directions: Tensor  # (k, d)
    kappa: Tensor  # the concentrations, (k, 1)
    offsets: Tensor  # the terms of the log weighted densities that do not depend on the row, (k, 1)

    def log_densities(self, block: Block) -> Tensor:
        """Return the logs of the weighted densities, (k, b)."""
        cosines, dim = block.cosines(self.directions), self.directions.shape[1]
        return log_densities_(self.family, cosines, self.kappa, self.offsets, dim, keep=False)[0]

    def statistics(self, blocks: Iterable[Block]) -> Statistics:
        """Return the sums over blocks of rows."""
        return summed(map(self.block_statistics, blocks))

    def block_statistics(self, block: Block) -> Statistics:
        """Return the sums over a block of rows."""
        cosines, dim = block.cosines(self.directions), self.directions.shape[1]
        shares, kept = log_densities_(self.family, cosines, self.kappa, self.offsets, dim, keep=True)
        log_densities = normalise_(shares, block.weight)
        sums = point_sums_(self.family, kept, shares, self.kappa, dim)
        pull = block.sums(sums.pulls)
        return Statistics(
            count=sums.total,
            bend=sums.bend,
            pull=pull if sums.factor == 1 else pull.mul_(sums.factor),
            score=sums.score,
            log_likelihood=block.weighted_sum(log_densities),
            weight=block.total_weight(),
        )


def components_of(family: Family, parameters: Parameters, dtype: torch.dtype) -> Components:
    """Convert the parameters for a pass over rows of this dtype."""
    kappa, dim = parameters.concentrations, parameters.directions.shape[1]
    offsets = parameters.log_weights + log_offset(family, kappa, dim) - log_sphere_area(dim)
    columns = (column.unsqueeze(1).to(dtype) for column in (kappa, offsets))
    return Components(family, parameters.directions.to(dtype), *columns)


def normalise_(log_densities: Tensor, weight: Tensor | None = None) -> Tensor:
    """Turn (k, b) log densities into responsibilities times ``weight``, in place; return the log-sum-exp, (b,)."""
    largest = log_densities.amax(0)
    sums = log_densities.sub_(largest).exp_().sum(0)
    if weight is None:
        log_densities.div_(sums)
    else:
        log_densities.mul_(weight / sums)
    return largest.add_(sums.log_())


def statistics_of(rows: Rows, family: Family, parameters: Parameters) -> Statistics:
    """Return the statistics of all rows: the expectation step, in one pass."""
    components = components_of(family, parameters, rows.dtype)
    return rows.total(components.statistics, len(parameters.directions))


@lru_cache
def largest_concentration(family: Family, dim: int, dtype: torch.dtype) -> float:
    """Return the largest concentration that rows of this dtype can resolve.

    Outside of exponential families it is the one whose mean cosine is that of the limit for exponential families.
    """
    limit = _LARGEST_CONCENTRATION[dtype]
    if isinstance(family, ExponentialFamily):
        return limit
    complement = torch.tensor(min(0.5, (dim - 1) / (2 * limit)), dtype=torch.float64)
    return float(family.from_mean_cosine(1 - complement, complement, dim))


def from_clusters(family: Family, directions: Tensor, clusters: Clusters, dtype: torch.dtype) -> Parameters:
    """Return a start for EM: the weights of the clusters, and one concentration from their mean cosine."""
    share = clusters.count + 1e-3 * clusters.weight / len(directions)  # an empty cluster gets some weight
    cosine = (clusters.cosine / clusters.weight).clamp(1e-6, 1 - 1e-9)
    dim = directions.shape[1]
    kappa = family.from_mean_cosine(cosine, 1 - cosine, dim)
    kappa = kappa.clamp(max=largest_concentration(family, dim, dtype)).expand(len(directions)).clone()
    return Parameters((share / share.sum()).log(), directions, kappa)


def maximised(
    family: Family,
    statistics: Statistics,
    before: Parameters,
    tied: bool,
    dtype: torch.dtype,
    fraction: float,
) -> Parameters:
    """Return the parameters after a maximisation step, for the statistics of rows of ``dtype``.

    Directions move only a ``fraction`` of the full step. So does κ, except in an exponential family, where the new κ is
    the exact maximum.
    """
    count, dim = statistics.count, before.directions.shape[1]
    # Newton's step for rows that are symmetric around the direction, see ``distributions.fit``.
    target = statistics.pull + (statistics.bend / (dim - 1)).unsqueeze(1) * before.directions
    lengths = torch.linalg.vector_norm(target, dim=1, keepdim=True)
    lost = lengths <= 1e-12 * count.unsqueeze(1)
    directions = torch.where(lost, before.directions, target / torch.where(lost, 1.0, lengths))
    if fraction < 1:
        directions = torch.lerp(before.directions, directions, fraction)
        directions = torch.nn.functional.normalize(directions, dim=1)
    scores, kappa = statistics.score, before.concentrations
    if family.linear:
        scores = torch.linalg.vector_norm(statistics.pull, dim=1) - count  # T = t-1 at the new directions
    means = scores.sum() / count.sum() if tied else scores / count
    largest = largest_concentration(family, dim, dtype)
    if isinstance(family, ExponentialFamily):
        fitted = from_mean_score(family, means.clamp(max=-1e-12), dim)
        fitted = fitted.clamp(max=largest).expand_as(kappa)
    else:
        fitted = fisher_step(family, means, kappa[0] if tied else kappa, dim)
        fitted = torch.lerp(kappa, fitted.clamp(max=largest).expand_as(kappa), fraction)
    kappa = fitted.clone() if tied else torch.where(count > 0, fitted, kappa)
    return Parameters((count / count.sum()).log(), directions, kappa)


class ExpectationMaximisation(Search[Parameters, Statistics]):
    """EM from given parameters. The objective is the mean log-likelihood per row.

    Unless the family is linear in t, the step in the directions is not an exact maximum. It is too long for clusters
    that spread more in some directions than in others. A step that lowers the likelihood by more than rounding is
    rejected, and this and all later steps are half as long. An empty component gets one new start, which is rejected
    if it lowers the likelihood.
    """

    unsettled = "the likelihood still rose"

    def __init__(self, rows: Rows, seeder: Seeder, start: Parameters, family: Family, tied: bool) -> None:
        super().__init__(rows, seeder, start)
        self._family, self._tied = family, tied
        self._fraction = 1.0
        self._had_a_restart = torch.zeros_like(start.log_weights, dtype=torch.bool)

    def pass_over_rows(self, model: Parameters) -> Statistics:
        return statistics_of(self.rows, self._family, model)

    def step(self) -> Parameters:
        dtype = self.rows.dtype
        proposed = maximised(self._family, self.sums, self.model, self._tied, dtype, self._fraction)
        empty = (self.sums.count < _EMPTY * self.sums.weight / self.rows.count) & ~self._had_a_restart
        self.restarted = bool(empty.any())
        if not self.restarted:
            return proposed
        self._had_a_restart |= empty
        return _reseeded(proposed, empty, self.seeder)

    def objective(self, sums: Statistics) -> float:
        return sums.mean_log_likelihood()

    def shown(self, sums: Statistics) -> str:
        return f"mean log-likelihood per row {sums.mean_log_likelihood():.8g}"

    def accepts(self, gain: float) -> bool:
        return gain >= 0

    def retries(self, gain: float) -> bool:
        if self.restarted:
            return True  # without the new starts
        too_long = gain < -self.rounding() and self._fraction > _SHORTEST_STEP
        self._fraction /= 2 if too_long else 1
        return too_long


def _reseeded(parameters: Parameters, empty: Tensor, seeder: Seeder) -> Parameters:
    """Start empty components again, far from the others, with the mean concentration and little weight."""
    directions, kappa = parameters.directions.clone(), parameters.concentrations.clone()
    directions[empty] = seeder.reseed(directions[~empty], int(empty.sum()))
    kappa[empty] = kappa[~empty].mean()
    weights = parameters.log_weights.exp()
    weights[empty] = 1e-3 / len(weights)
    return Parameters((weights / weights.sum()).log(), directions, kappa)


#: The mixture class of each family, by the family's name.
_MIXTURES: dict[str, type[SphericalMixture]] = {}


def mixture_named(name: str) -> type[SphericalMixture]:
    """Return the mixture class of the family registered under this name, such as "power_spherical".

    If nobody wrote a mixture class for the family, one is made.

    >>> mixture_named("von_mises_fisher")(n_components=3)
    VonMisesFisherMixture(n_components=3)
    """
    distribution = distribution_named(name)  # raises if there is no such family
    if name not in _MIXTURES:
        members = {"distribution": distribution, "__module__": __name__}
        copyreg.pickle(type(f"{distribution.__name__}Mixture", (SphericalMixture,), members), _reduced)
    return _MIXTURES[name]


def _reduced(mixture: SphericalMixture) -> tuple[Any, ...]:
    """Describe an estimator of a class that ``mixture_named`` made to ``pickle``, which cannot import it."""
    return _restored, (mixture.distribution.family,), mixture.__getstate__()


def _restored(family: Family) -> SphericalMixture:
    """Return an unfitted mixture. In a new process this registers the family."""
    return mixture_named(register_family(family).name)()


def load(path: str | os.PathLike[str]) -> SavedEstimator:
    """Return the estimator, of any class, that its ``save`` wrote to a file.

    Raises ``FileNotFoundError`` if there is no file, and ``CheckpointError`` if it is damaged or holds no estimator.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from powerspherical.mixture import SphericalKMeans, load
    >>> path = Path(tempfile.mkdtemp()) / "kmeans.safetensors"
    >>> _ = SphericalKMeans(2, random_state=0).fit(np.eye(2)).save(path)
    >>> load(path)
    SphericalKMeans(n_clusters=2, random_state=0)
    """
    for name in family_names():
        mixture_named(name)  # makes the class, so that it is found
    return SavedEstimator.load(path)


class SphericalMixture(DensityMixin, SphericalEstimator):
    """The base class of mixtures. A subclass only names the ``distribution`` of its components.

    Arguments, attributes and kinds of rows are those of :class:`PowerSphericalMixture`. For a distribution of your own:
    ``class MyMixture(SphericalMixture): distribution = MyDistribution``.

    >>> import numpy as np
    >>> from powerspherical.mixture import PowerSphericalMixture
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3)) + 4 * np.eye(3)[[0] * 60 + [1] * 40]
    >>> mixture = PowerSphericalMixture(2, random_state=0)
    >>> labels = mixture.fit_predict(X)
    >>> sorted(np.bincount(labels).tolist())
    [40, 60]
    >>> shares = mixture.predict_proba(X)
    >>> np.array_equal(shares.argmax(1), labels)
    True
    >>> np.array_equal(mixture.transform(X), shares)
    True
    >>> outlier = X[mixture.score_samples(X).argmin()]  # the row of lowest density
    >>> bool(np.isclose(mixture.score(X), mixture.score_samples(X).mean()))
    True
    >>> single = PowerSphericalMixture(1).fit(X)
    >>> mixture.bic(X) < single.bic(X), mixture.aic(X) < single.aic(X)
    (True, True)
    >>> draws, components = mixture.sample(5)
    >>> draws.shape, components.shape
    ((5, 3), (5,))
    """

    #: The distribution of the components.
    distribution: ClassVar[type[RotationallySymmetric]]
    _saved: ClassVar[dict[str, int]] = {
        **{"mean_directions_": 2, "weights_": 1, "concentrations_": 1},
        **{"converged_": 0, "n_iter_": 0, "lower_bound_": 0},
    }
    _directions = "mean_directions_"
    _count_parameter = "n_components"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SphericalEstimator._parameter_constraints,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "concentration_type": [StrOptions({"tied", "free"})],
        "warm_start": ["boolean"],
    }

    weights_: Any
    mean_directions_: Any
    concentrations_: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "distribution" in cls.__dict__:
            _MIXTURES.setdefault(cls.distribution.family.name, cls)

    def __init__(
        self,
        n_components: int = 1,
        *,
        concentration_type: str = "tied",
        n_init: int | str = "auto",
        init: Any = "k-means++",
        tol: float = 1e-4,
        max_iter: int = 200,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.concentration_type = concentration_type
        self.n_init = n_init
        self.init = init
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch of rows, a step of online EM (Cappé & Moulines, 2009), and return the estimator.

        The first batch chooses the directions, so it should have many rows per component. Running averages of the
        statistics then move towards those of each batch of b rows, by the fraction (1 + n/b)^-0.7 after n rows.

        Args:
            X: rows (b, d). Batches may differ in b.
            y: ignored.
            sample_weight: weights ≥ 0 of the rows, (b,). Default: equal weights.

        >>> import numpy as np
        >>> from powerspherical.mixture import PowerSphericalMixture
        >>> rng = np.random.default_rng(0)
        >>> mixture = PowerSphericalMixture(2, random_state=0)
        >>> for _ in range(10):
        ...     labels = rng.integers(2, size=100)
        ...     batch = rng.normal(size=(100, 3)) + 4 * np.eye(3)[labels]
        ...     _ = mixture.partial_fit(batch)
        >>> mixture.n_iter_, mixture.weights_.round(1)
        (10, array([0.5, 0.5]))
        """
        self._validate_params()
        resume = hasattr(self, "mean_directions_")
        rows = self._rows(X, sample_weight, reset=not resume)
        with without_grad_or_autocast(rows.device):
            start = self._start(rows, self._seeder(rows), resume)
            batch = statistics_of(rows, self._family, start)
            batch = batch * (1 / float(batch.weight))
            if not hasattr(self, "_averages"):  # first batch, or attributes that were set by hand
                self._averages, self._seen, self.n_iter_ = batch, 0, 0
            step = (1 + self._seen / rows.count) ** -_FORGETTING
            self._averages = self._averages.to(rows.device) * (1 - step) + batch * step
            tied = self.concentration_type == "tied"
            found = maximised(self._family, self._averages, start, tied, rows.dtype, 1.0)
            self._set_parameters(rows, found)
        self._seen += rows.count
        self.n_iter_ += 1
        self.lower_bound_, self.converged_ = self._averages.mean_log_likelihood(), False
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit to the rows of ``X`` (n, d), and return the likeliest component of each row, (n,)."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def predict(self, X: Any) -> Any:
        """Return the likeliest component of each row of ``X`` (n, d), as integers (n,)."""
        return self._each(X, _likeliest, dtype=torch.int64)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each component given each row of ``X`` (n, d), (n, n_components)."""
        return self._each(X, _responsibilities, per_component=True)

    def transform(self, X: Any) -> Any:
        """Return the soft assignments of ``predict_proba`` for the rows of ``X`` (n, d), (n, n_components)."""
        return self.predict_proba(X)

    def score_samples(self, X: Any) -> Any:
        """Return the log density at the direction of each row of ``X`` (n, d), (n,).

        It is a density with respect to the area of the sphere.
        """
        return self._each(X, _log_density)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean of ``score_samples`` over rows ``X`` (n, d), weighted by ``sample_weight`` (n,) if given."""
        return self._score(self._rows(X, sample_weight))

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion for the rows of ``X`` (n, d); lower is better."""
        rows = self._rows(X)
        return -2 * self._score(rows) * rows.count + self._n_parameters() * math.log(rows.count)

    def aic(self, X: Any) -> float:
        """Return the Akaike information criterion for the rows of ``X`` (n, d); lower is better."""
        rows = self._rows(X)
        return -2 * self._score(rows) * rows.count + 2 * self._n_parameters()

    def sample(self, n_samples: int = 1) -> tuple[Any, Any]:
        """Return directions drawn from the mixture, (n_samples, d), and their components, (n_samples,), sorted."""
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        random = check_random_state(self.random_state)
        parameters = self._parameters()
        share = parameters.log_weights.exp().cpu().numpy()
        counts = torch.from_numpy(random.multinomial(n_samples, share / share.sum()))
        device = parameters.directions.device
        labels = torch.repeat_interleave(torch.arange(len(share)), counts).to(device)
        components = self.distribution(
            torch.nn.functional.normalize(parameters.directions, dim=1)[labels],
            parameters.concentrations[labels],
            validate_args=False,
        )
        generator = torch.Generator(device).manual_seed(int(random.randint(np.iinfo(np.int32).max)))
        draws = components.sample(generator=generator)
        if isinstance(self.mean_directions_, Tensor):
            return draws.to(self.mean_directions_.dtype), labels
        return draws.numpy().astype(self.mean_directions_.dtype), labels.numpy()

    @property
    def _family(self) -> Family:
        """The family of the components."""
        if not hasattr(self, "distribution"):
            raise TypeError(
                f"{type(self).__name__} does not name a distribution: use PowerSphericalMixture or another subclass"
            )
        return self.distribution.family

    def _resumes(self) -> bool:
        """Return whether ``fit`` continues from the last fit."""
        return self.warm_start and hasattr(self, "mean_directions_")

    def _n_starts(self) -> int:
        return 1 if self._resumes() else super()._n_starts()

    def _search(self, rows: Rows, seeder: Seeder) -> ExpectationMaximisation:
        start = self._start(rows, seeder, self._resumes())
        return ExpectationMaximisation(rows, seeder, start, self._family, self.concentration_type == "tied")

    def _start(self, rows: Rows, seeder: Seeder, resume: bool) -> Parameters:
        """Return where EM starts: at the last fit, or after a few steps of spherical k-means."""
        if resume:
            start = self._parameters(rows.device)
            if start.directions.shape != (self.n_components, rows.dim):
                count, dim = start.directions.shape
                raise ValueError(
                    f"the previous fit has {count} components in {dim} dimensions, not {self.n_components} in "
                    f"{rows.dim}: set warm_start=False or make a new estimator"
                )
            return start
        lloyd = Lloyd(rows, seeder, seeder.start(self.init))
        steps = _CLUSTER_STEPS if isinstance(self.init, str) else 0
        lloyd.run(_CLUSTER_TOL, steps, self._reporter("start"))
        return from_clusters(self._family, lloyd.model, lloyd.sums, rows.dtype)

    def _set_fitted(self, search: Search[Parameters, Statistics]) -> None:
        self._set_parameters(search.rows, search.model)
        self._averages = search.sums * (1 / float(search.sums.weight))
        self._seen = search.rows.count
        self.converged_ = search.converged
        self.lower_bound_, self.lower_bounds_ = search.objectives[-1], search.objectives

    def _set_parameters(self, rows: Rows, parameters: Parameters) -> None:
        """Set the fitted parameters, as the kind of array and in the dtype of the rows."""
        self.weights_ = rows.to_user_array(parameters.log_weights.exp().to(rows.dtype))
        self.mean_directions_ = rows.to_user_array(parameters.directions.to(rows.dtype))
        self.concentrations_ = rows.to_user_array(parameters.concentrations.to(rows.dtype))

    def _parameters(self, device: torch.device | None = None) -> Parameters:
        """Return the fitted attributes as parameters of EM."""
        weights, directions, concentrations = (
            torch.as_tensor(value).to(device=device, dtype=torch.float64)
            for value in (self.weights_, self.mean_directions_, self.concentrations_)
        )
        return Parameters(weights.log(), directions, concentrations)

    def _score(self, rows: Rows) -> float:
        with without_grad_or_autocast(rows.device):
            found = statistics_of(rows, self._family, self._parameters(rows.device))
        return found.mean_log_likelihood()

    def _model(self, rows: Rows) -> Components:
        return components_of(self._family, self._parameters(rows.device), rows.dtype)

    def _n_parameters(self) -> int:
        """Return the number of free parameters."""
        components, dim = self.mean_directions_.shape
        concentrations = 1 if self.concentration_type == "tied" else components
        return components - 1 + components * (dim - 1) + concentrations

    def _fitted(self) -> dict[str, Any]:
        fitted = super()._fitted()
        if hasattr(self, "lower_bounds_"):
            fitted["lower_bounds_"] = self.lower_bounds_
        if hasattr(self, "_averages"):  # from which ``partial_fit`` continues
            fitted |= {"seen": self._seen, "averages": vars(self._averages)}
        return fitted

    def _restore(self, fitted: dict[str, Any]) -> None:
        super()._restore(fitted)
        if "lower_bounds_" in fitted:
            self.lower_bounds_ = fitted["lower_bounds_"]
        if "averages" in fitted:
            self._averages, self._seen = Statistics(**fitted["averages"]), fitted["seen"]


def _likeliest(components: Components, block: Block) -> Tensor:
    return argmax_(components.log_densities(block))[1]


def _responsibilities(components: Components, block: Block) -> Tensor:
    shares = components.log_densities(block)
    normalise_(shares)
    return shares.T.contiguous()


def _log_density(components: Components, block: Block) -> Tensor:
    return normalise_(components.log_densities(block))
