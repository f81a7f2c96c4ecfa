"""A mixture of distributions of one family, as a scikit-learn estimator."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import fields
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils._param_validation import Hidden, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from powerspherical.distributions import RotationallySymmetric, distribution_named
from powerspherical.families import family_names
from powerspherical.mixture._base import ConvergenceWarning, SphericalEstimator, enough_rows, exactly, whole
from powerspherical.mixture._blocks import Block, best_, places
from powerspherical.mixture._em import (
    Components,
    EMRun,
    Parameters,
    Statistics,
    components_of,
    expectation_maximisation,
    from_clusters,
    maximised,
    normalise_,
    rounding,
    statistics_of,
)
from powerspherical.mixture._lloyd import Reseed, sample_of, spread_directions
from powerspherical.mixture._rows import Rows
from powerspherical.mixture._saving import (
    TOLERANCE,
    SavedEstimator,
    entry,
    require_directions,
    require_number,
    require_numbers,
)

_CLUSTER_STEPS = 10  # of spherical k-means, before EM
_FORGETTING = 0.7  # exponent of the step size of partial_fit, in (½, 1]: Cappé & Moulines 2009

#: The mixture of each family, by the family's name.
_MIXTURES: dict[str, type[SphericalMixture]] = {}


def mixture_named(name: str) -> type[SphericalMixture]:
    """The class of mixtures of the family that is registered under this name, such as "power_spherical".

    A family that nobody wrote a mixture for gets one here.
    """
    distribution = distribution_named(name)  # raises where there is no such family
    if name not in _MIXTURES:
        type(f"{distribution.__name__}Mixture", (SphericalMixture,), {"distribution": distribution})
    return _MIXTURES[name]


def load(path: str | os.PathLike[str]) -> SavedEstimator:
    """The estimator that its ``save`` wrote, of whichever class it is.

    Raises ``FileNotFoundError`` if there is no file, and ``CheckpointError`` if it is damaged, or if a field is missing
    or wrong.

    >>> import tempfile
    >>> from powerspherical.mixture import SphericalKMeans, load
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "kmeans.safetensors"
    >>> _ = SphericalKMeans(2, random_state=0).fit(np.eye(2)).save(path)
    >>> load(path)
    SphericalKMeans(n_clusters=2, random_state=0)
    """
    for name in family_names():
        mixture_named(name)  # now there is a class for each of them
    return SavedEstimator.load(path)


class SphericalMixture(DensityMixin, SphericalEstimator):
    """The base of the mixtures. A subclass names the ``distribution`` of its components, and has the rest from here.

    Arguments, attributes and the kinds of rows are those of :class:`PowerSphericalMixture`. A distribution of one's own
    has its mixture by ``class MyMixture(SphericalMixture): distribution = MyDistribution``.
    """

    #: The distribution of the components.
    distribution: ClassVar[type[RotationallySymmetric]]
    _saved = ("mean_directions_", "weights_", "concentrations_", "converged_", "n_iter_", "lower_bound_")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SphericalEstimator._parameter_constraints,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "concentration_type": [StrOptions({"tied", "free"})],
        "warm_start": ["boolean"],
        "concentration": [StrOptions({"tied", "free"}), Hidden(StrOptions({"deprecated"}))],
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
        concentration: str = "deprecated",
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
        self.concentration = concentration

    def _is_tied(self) -> bool:
        """Whether all components share one concentration."""
        if self.concentration != "deprecated":
            warnings.warn(
                "the parameter concentration is called concentration_type now, as covariance_type is in "
                "scikit-learn; the old name will go in version 0.3",
                FutureWarning,
                stacklevel=3,
            )
            return self.concentration == "tied"
        return self.concentration_type == "tied"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture to the directions of the rows of ``X`` (n, d), with ``sample_weight`` (n,) if given."""
        self._validate_params()
        count, tied, tol = self.n_components, self._is_tied(), self.tol
        rows = self._rows(X, sample_weight, reset=True)
        enough_rows(rows, "n_components", count)
        random = self._random()
        again = self.warm_start and hasattr(self, "mean_directions_")
        best: EMRun | None = None
        with exactly(rows.device):
            for run in range(1 if again else self._n_starts()):
                start, reseed = self._start(rows, count, random, again)
                found = expectation_maximisation(
                    rows,
                    self.distribution.family,
                    start,
                    tied=tied,
                    tol=tol,
                    max_iter=self.max_iter,
                    reseed=reseed,
                    report=self._reporter(f"run {run}", "log-likelihood of a row"),
                )
                # Runs that end within the tolerance have found the same: which is kept is not left to rounding.
                if best is None or found.scores[-1] > best.scores[-1] + tol + rounding(rows, best.scores[-1]):
                    best = found
        assert best is not None
        self._averages = best.statistics * (1 / float(best.statistics.weight))
        self._seen = rows.count
        self._show(rows, best.parameters)
        self.converged_, self.n_iter_ = best.converged, best.steps
        self.lower_bound_, self.lower_bounds_ = best.scores[-1], best.scores
        if not best.converged:
            warnings.warn(
                f"the likelihood still rose after {self.max_iter} steps: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch of rows: a step of online EM (Cappé & Moulines, 2009).

        The first batch chooses the directions, so it should have many rows per component. Running averages of the
        statistics then move towards those of each batch of b rows, by the fraction (1 + n/b)^-0.7 after n rows.
        """
        self._validate_params()
        count, tied = self.n_components, self._is_tied()
        first = not hasattr(self, "mean_directions_")
        rows = self._rows(X, sample_weight, reset=first)
        if first:
            enough_rows(rows, "n_components", count)
        with exactly(rows.device):
            start = self._start(rows, count, self._random(), not first)[0]
            batch = statistics_of(rows, self.distribution.family, start)
            batch = batch * (1 / float(batch.weight))
            if not hasattr(self, "_averages"):  # nor are there any where the attributes were set from outside
                self._averages, self._seen, self.n_iter_ = batch, 0, 0
            step = (1 + self._seen / rows.count) ** -_FORGETTING
            self._averages = self._averages.to(rows.device) * (1 - step) + batch * step
            family = self.distribution.family
            self._show(rows, maximised(family, self._averages, start, tied=tied, dtype=rows.dtype))
        self._seen += rows.count
        self.n_iter_ += 1
        self.lower_bound_, self.converged_ = self._averages.mean_log_likelihood(), False
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit, and the likeliest component of each row."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def predict(self, X: Any) -> Any:
        """The likeliest component of each row, (n,)."""
        return self._each(X, _likeliest, dtype=torch.int64)

    def predict_proba(self, X: Any) -> Any:
        """The probability of each component given the row, (n, n_components)."""
        check_is_fitted(self)
        return self._each(X, _responsibilities, columns=len(self.weights_))

    def transform(self, X: Any) -> Any:
        """The soft assignments that ``predict_proba`` gives, (n, n_components)."""
        return self.predict_proba(X)

    def score_samples(self, X: Any) -> Any:
        """The log density of each row's direction with respect to the area of the sphere, (n,)."""
        return self._each(X, _log_density)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean log density of the rows' directions."""
        return self._score(self._rows(X, sample_weight))

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion; lower is better."""
        rows = self._rows(X)
        return -2 * self._score(rows) * rows.count + self._n_parameters() * math.log(rows.count)

    def aic(self, X: Any) -> float:
        """The Akaike information criterion; lower is better."""
        rows = self._rows(X)
        return -2 * self._score(rows) * rows.count + 2 * self._n_parameters()

    def sample(self, n_samples: int = 1) -> tuple[Any, Any]:
        """Directions drawn from the mixture, (n_samples, d), and the component of each; sorted by component."""
        check_is_fitted(self)
        whole("n_samples", n_samples, 1)
        random = self._random()
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
    def _n_features_out(self) -> int:
        return len(self.weights_)

    def _check_fitted(self) -> None:
        count, dim = require_directions("mean_directions_", self.mean_directions_)
        total = float(require_numbers("weights_", self.weights_, (count,), least=0).double().sum())
        if abs(total - 1) > TOLERANCE:
            raise ValueError(f"weights_ must add up to one, got {total:g}")
        require_numbers("concentrations_", self.concentrations_, (count,), least=0)
        whole("n_iter_", self.n_iter_, 0)
        require_number("lower_bound_", self.lower_bound_)
        if not isinstance(self.converged_, bool):
            raise ValueError(f"converged_ must be True or False, got {self.converged_!r}")
        for bound in getattr(self, "lower_bounds_", []):
            require_number("lower_bounds_", bound)
        if hasattr(self, "_averages"):
            whole("the number of rows seen", self._seen, 0)
            for name, value in vars(self._averages).items():
                shape = {"pull": (count, dim), "log_likelihood": (), "weight": ()}.get(name, (count,))
                require_numbers(f"the statistic {name}", value, shape)

    @classmethod
    def _from(cls, state: dict[str, Any]) -> Self:
        return super()._from(_with_present_names(state))

    def _fitted(self) -> dict[str, Any]:
        fitted = super()._fitted()
        if hasattr(self, "lower_bounds_"):
            fitted["lower_bounds_"] = self.lower_bounds_
        if hasattr(self, "_averages"):  # what ``partial_fit`` goes on from
            fitted |= {"seen": self._seen, "averages": vars(self._averages)}
        return fitted

    def _restore(self, fitted: dict[str, Any]) -> None:
        super()._restore(fitted)
        if "lower_bounds_" in fitted:
            self.lower_bounds_ = entry(fitted, "lower_bounds_", list)
        if "averages" in fitted:
            averages, names = entry(fitted, "averages", dict), [field.name for field in fields(Statistics)]
            self._averages = Statistics(*(entry(averages, name, Tensor) for name in names))
            self._seen = entry(fitted, "seen", int)

    def _start(
        self, rows: Rows, count: int, random: np.random.RandomState, again: bool
    ) -> tuple[Parameters, Reseed]:
        """Where EM starts, and what finds directions for components that run empty."""
        if again:
            start = self._parameters(rows.device)
            if start.directions.shape != (count, rows.dim):
                raise ValueError(
                    f"the fit to go on from has {len(start.directions)} components in {start.directions.shape[1]} "
                    f"dimensions, not {count} in {rows.dim}: set warm_start=False or make a new estimator"
                )
            return start, lambda kept, wanted: spread_directions(
                sample_of(rows, count, random), kept, wanted, random
            )
        steps = _CLUSTER_STEPS if isinstance(self.init, str) else 0
        report = self._reporter("start", "mean distance 1 - t")
        run, reseed = self._clustered(rows, count, random, 1e-5, steps, report)
        return from_clusters(self.distribution.family, run.directions, run.clusters, rows.dtype), reseed

    def _show(self, rows: Rows, parameters: Parameters) -> None:
        """Set the fitted attributes, in the dtype and as the kind of array that the rows came in."""
        self.weights_ = rows.result(parameters.log_weights.exp().to(rows.dtype))
        self.mean_directions_ = rows.result(parameters.directions.to(rows.dtype))
        self.concentrations_ = rows.result(parameters.concentrations.to(rows.dtype))

    def _score(self, rows: Rows) -> float:
        with exactly(rows.device):
            found = statistics_of(rows, self.distribution.family, self._parameters(rows.device))
        return found.mean_log_likelihood()

    def _parameters(self, device: torch.device | None = None) -> Parameters:
        """The fitted attributes, as the steps of EM take them."""
        weights, directions, concentrations = (
            torch.as_tensor(value).to(device=device, dtype=torch.float64)
            for value in (self.weights_, self.mean_directions_, self.concentrations_)
        )
        return Parameters(weights.log(), directions, concentrations)

    def _each(self, X: Any, function: Any, **what: Any) -> Any:
        rows = self._rows(X)
        with exactly(rows.device):
            components = components_of(self.distribution.family, self._parameters(rows.device), rows.dtype)
            return rows.each(partial(function, components), len(components.directions), **what)

    def _n_parameters(self) -> int:
        components, dim = self.mean_directions_.shape
        concentrations = 1 if self._is_tied() else components
        return components - 1 + components * (dim - 1) + concentrations


def _likeliest(components: Components, block: Block) -> Tensor:
    return best_(components.log_densities(block), places(components.directions))[1]


def _responsibilities(components: Components, block: Block) -> Tensor:
    shares = components.log_densities(block)
    normalise_(shares)
    return shares.T.contiguous()


def _log_density(components: Components, block: Block) -> Tensor:
    return normalise_(components.log_densities(block))


def _with_present_names(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a file, which may have been written when two of its entries had other names."""
    parameters, fitted = dict(entry(state, "parameters", dict)), dict(entry(state, "fitted", dict))
    if "concentration_type" not in parameters and parameters.get("concentration") in ("tied", "free"):
        parameters |= {"concentration_type": parameters["concentration"], "concentration": "deprecated"}
    averages = fitted.get("averages")
    if isinstance(averages, dict) and "statistic" in averages:
        fitted["averages"] = {"score" if name == "statistic" else name: averages[name] for name in averages}
    return state | {"parameters": parameters, "fitted": fitted}
