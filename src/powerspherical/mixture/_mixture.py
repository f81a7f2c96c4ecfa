"""A mixture of distributions of one family, fitted by expectation–maximisation, as a scikit-learn estimator."""

from __future__ import annotations

import copyreg
import math
import os
from dataclasses import KW_ONLY, dataclass
from functools import partial
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, check_scalar
from torch import Tensor
from typing_extensions import Self

from powerspherical.distributions import RotationallySymmetric, distribution_named
from powerspherical.families import Family, family_names
from powerspherical.mixture._base import AT_LEAST_ONE, SphericalEstimator, without_grad_or_autocast
from powerspherical.mixture._em import (
    Components,
    ExpectationMaximisation,
    Parameters,
    Statistics,
    from_clusters,
)
from powerspherical.mixture._kmeans import Lloyd
from powerspherical.mixture._rows import Rows
from powerspherical.mixture._saving import SavedEstimator
from powerspherical.mixture._seeding import Seeder

_CLUSTER_STEPS, _CLUSTER_TOL = 10, 1e-5  # of spherical k-means, before EM
_FORGETTING = 0.7  # exponent of the step size of partial_fit, in (½, 1]: Cappé & Moulines 2009

#: The mixture class of each family, by the family's name.
_MIXTURES: dict[str, type[SphericalMixture]] = {}


def mixture_named(name: str) -> type[SphericalMixture]:
    """Return the mixture class of the family registered under this name, and make one if there is none.

    >>> mixture_named("von_mises_fisher")(n_components=3)
    VonMisesFisherMixture(n_components=3)
    """
    distribution = distribution_named(name)  # raises if there is no such family
    if name not in _MIXTURES:
        members = {"distribution": distribution, "__module__": __name__}
        copyreg.pickle(type(f"{distribution.__name__}Mixture", (SphericalMixture,), members), _described)
    return _MIXTURES[name]


def _described(mixture: SphericalMixture) -> tuple[Any, ...]:
    """Describe an estimator of a class that ``mixture_named`` made to ``pickle``, which cannot import it."""
    return _restored, (mixture.distribution,), mixture.__getstate__()


def _restored(distribution: type[RotationallySymmetric]) -> SphericalMixture:
    return mixture_named(distribution.family.name)()


def load(path: str | os.PathLike[str]) -> SavedEstimator:
    """Return the estimator, of any class, that its ``save`` wrote to a file.

    Raises ``FileNotFoundError`` if there is no file, and ``CheckpointError`` if it is damaged or holds no estimator.

    >>> import tempfile
    >>> from powerspherical.mixture import SphericalKMeans
    >>> kmeans = SphericalKMeans(2, random_state=0).fit([[1, 0], [0, 1]])
    >>> load(kmeans.save(f"{tempfile.mkdtemp()}/kmeans.safetensors"))
    SphericalKMeans(n_clusters=2, random_state=0)
    """
    for name in family_names():
        mixture_named(name)  # makes the class, so that it is found
    return SavedEstimator.load(path)


@dataclass(eq=False, repr=False)
class SphericalMixture(DensityMixin, SphericalEstimator):
    """The base class of mixtures. A subclass only names the ``distribution`` of its components.

    Arguments, attributes and kinds of rows are those of :class:`PowerSphericalMixture`. For a distribution of your own:
    ``class MyMixture(SphericalMixture): distribution = MyDistribution``.

    >>> from powerspherical.mixture import PowerSphericalMixture
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 3)) + 4 * np.eye(3)[[0] * 60 + [1] * 40]
    >>> mixture = PowerSphericalMixture(2, random_state=0)
    >>> labels = mixture.fit_predict(X)
    >>> sorted(np.bincount(labels).tolist())
    [40, 60]
    >>> shares = mixture.predict_proba(X)
    >>> np.array_equal(shares.argmax(1), labels), np.array_equal(mixture.transform(X), shares)
    (True, True)
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

    n_components: int = 1
    _: KW_ONLY
    concentration_type: str = "tied"
    warm_start: bool = False

    #: The distribution of the components.
    distribution: ClassVar[type[RotationallySymmetric]]
    _saved: ClassVar[dict[str, int]] = {
        **{"mean_directions_": 2, "weights_": 1, "concentrations_": 1},
        **{"converged_": 0, "n_iter_": 0, "lower_bound_": 0},
    }
    _directions = "mean_directions_"
    _count_parameter = "n_components"
    _parameter_constraints = SphericalEstimator._parameter_constraints | {
        "n_components": [AT_LEAST_ONE],
        "concentration_type": [StrOptions({"tied", "free"})],
        "warm_start": ["boolean"],
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "distribution" in cls.__dict__:
            _MIXTURES.setdefault(cls.distribution.family.name, cls)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch of rows, a step of online EM (Cappé & Moulines, 2009), and return the estimator.

        The first batch chooses the directions, so it should have many rows per component. After n rows a batch of b
        rows moves the averages of the statistics by the fraction (1 + n/b)^-0.7.

        Args:
            X, y, sample_weight: as for ``fit``, rows (b, d) and weights (b,). Batches may differ in b.

        >>> from powerspherical.mixture import PowerSphericalMixture
        >>> rng = np.random.default_rng(0)
        >>> mixture = PowerSphericalMixture(2, random_state=0)
        >>> for _ in range(10):
        ...     batch = rng.normal(size=(100, 3)) + 4 * np.eye(3)[rng.integers(2, size=100)]
        ...     _ = mixture.partial_fit(batch)
        >>> mixture.n_iter_, mixture.weights_.round(1)
        (10, array([0.5, 0.5]))
        """
        self._validate_params()
        resume = hasattr(self, "mean_directions_")
        rows = self._rows(X, sample_weight, reset=not resume)
        with without_grad_or_autocast(rows.device):
            start = self._start(rows, self._seeder(rows), resume)
            batch = _averages(start.statistics(rows))
            if not hasattr(self, "_averages"):  # first batch, or attributes that were set by hand
                self._averages, self._seen, self.n_iter_ = batch, 0, 0
            step = (1 + self._seen / rows.count) ** -_FORGETTING
            past = self._averages.map(lambda a: a.to(rows.device) * (1 - step))
            self._averages = past + batch.map(lambda a: a * step)
            tied = self.concentration_type == "tied"
            self._set_parameters(rows, start.maximised(self._averages, tied, rows.dtype))
        self._seen += rows.count
        self.n_iter_ += 1
        self.lower_bound_, self.converged_ = self._averages.objective(), False
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit to the rows of ``X`` (n, d), and return the likeliest component of each row, (n,)."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def predict(self, X: Any) -> Any:
        """Return the likeliest component of each row of ``X`` (n, d), as integers (n,)."""
        return self._each(X, Components.likeliest)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each component given each row of ``X`` (n, d), (n, n_components)."""
        return self._each(X, Components.responsibilities)

    def transform(self, X: Any) -> Any:
        """Return the soft assignments of ``predict_proba`` for the rows of ``X`` (n, d), (n, n_components)."""
        return self.predict_proba(X)

    def score_samples(self, X: Any) -> Any:
        """Return the log density, per area of the sphere, at the direction of each row of ``X`` (n, d), (n,)."""
        return self._each(X, Components.log_density)

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
        labels = torch.repeat_interleave(counts).to(device)
        loc = torch.nn.functional.normalize(parameters.directions, dim=1)[labels]
        components = self.distribution(loc, parameters.concentrations[labels], validate_args=False)
        generator = torch.Generator(device).manual_seed(int(random.randint(np.iinfo(np.int32).max)))
        draws = components.sample(generator=generator)
        if isinstance(self.mean_directions_, Tensor):
            return draws.to(self.mean_directions_.dtype), labels
        return draws.numpy().astype(self.mean_directions_.dtype), labels.numpy()

    @property
    def _family(self) -> Family:
        if not hasattr(self, "distribution"):
            raise TypeError(
                f"{type(self).__name__} does not name a distribution: use PowerSphericalMixture or another subclass"
            )
        return self.distribution.family

    def _resumes(self) -> bool:
        return self.warm_start and hasattr(self, "mean_directions_")

    def _n_starts(self) -> int:
        return 1 if self._resumes() else super()._n_starts()

    def _search(self, rows: Rows, seeder: Seeder) -> ExpectationMaximisation:
        start = self._start(rows, seeder, self._resumes())
        return ExpectationMaximisation(rows, seeder, start, self.concentration_type == "tied")

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
        steps = _CLUSTER_STEPS if isinstance(self.init, str) else 0
        lloyd = Lloyd(rows, seeder, seeder.start(self.init))
        lloyd.run(_CLUSTER_TOL, steps, partial(self._report, "start"))
        return from_clusters(self._family, lloyd.model, lloyd.sums, rows.dtype)

    def _set_fitted(self, search: Any) -> None:
        self._set_parameters(search.rows, search.model)
        self._averages, self._seen = _averages(search.sums), search.rows.count
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
        return Parameters(self._family, weights.log(), directions, concentrations)

    def _score(self, rows: Rows) -> float:
        with without_grad_or_autocast(rows.device):
            return self._parameters(rows.device).statistics(rows).objective()

    def _model(self, rows: Rows) -> Components:
        return self._parameters(rows.device).components(rows.dtype)

    def _n_parameters(self) -> int:
        components, dim = self.mean_directions_.shape
        concentrations = 1 if self.concentration_type == "tied" else components
        return components - 1 + components * (dim - 1) + concentrations

    def _restore(self, fitted: dict[str, Any]) -> None:
        super()._restore(fitted)
        if "averages" in fitted:  # from which ``partial_fit`` continues
            self._averages, self._seen = Statistics(**fitted["averages"]), fitted["seen"]


def _averages(sums: Statistics) -> Statistics:
    """Return the statistics over the total weight."""
    factor = 1 / float(sums.weight)
    return sums.map(lambda a: factor * a)
