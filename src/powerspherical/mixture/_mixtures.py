"""Mixtures of distributions on the sphere, as scikit-learn estimators."""

from __future__ import annotations

import math
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

from powerspherical.distributions import (
    PowerSpherical,
    RotationallySymmetric,
    SphericalCauchy,
    VonMisesFisher,
)
from powerspherical.mixture._base import ConvergenceWarning, SphericalEstimator, enough_rows, exactly, whole
from powerspherical.mixture._components import (
    Block,
    Components,
    Parameters,
    Statistics,
    best_,
    components_of,
    normalise_,
    places,
)
from powerspherical.mixture._em import (
    EMRun,
    expectation_maximisation,
    from_clusters,
    maximised,
    rounding,
    statistics_of,
)
from powerspherical.mixture._lloyd import Reseed
from powerspherical.mixture._rows import Rows
from powerspherical.mixture._saving import (
    TOLERANCE,
    entry,
    require_directions,
    require_number,
    require_numbers,
)
from powerspherical.mixture._seeding import sample_of, spread_directions

_CLUSTER_STEPS = 10  # of spherical k-means, before EM
_FORGETTING = 0.7  # exponent of the step size of partial_fit, in (½, 1]: Cappé & Moulines 2009


class SphericalMixture(DensityMixin, SphericalEstimator):
    """The base of the mixtures: a family of components is all that they differ in."""

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


class PowerSphericalMixture(SphericalMixture):
    r"""A mixture of Power Spherical distributions, fitted by EM.

    .. math:: p(x) = \sum_k \pi_k \frac{(1 + \mu_k^\top x)^{\kappa_k}}{N(\kappa_k, d)}.

    Rows of ``X`` (n, d), d ≥ 2, are normalised on the way, not copied; a row of zeros has t = 0 to every direction.
    They may be a NumPy array, a SciPy sparse matrix (which stays sparse), a CPU or CUDA tensor, or a Dask array of
    either of the first two. float64 and float32 are computed in themselves, half precision in float32, NumPy's integers
    in float64. What is fitted or predicted is of the same kind, in the dtype of the computation, on the same device
    (with Dask, what there is for each row stays lazy). Memory beyond ``X`` is that of a block of rows for each thread,
    of 32,768 rows (or 32 k) to choose directions from, and of n norms where rows are not unit vectors.

    Args:
        n_components: the number of components k.
        concentration_type: ``"tied"``, one κ for all, or ``"free"``, one for each. Tied components cluster better: as
            in k-means, a row then goes by direction alone (and weight). Free ones fit better, and take differences in
            spread for clusters.
        n_init: the number of starts; the run with the highest likelihood is kept. ``"auto"``: 10 for ``init="random"``,
            else 1, as in scikit-learn's ``KMeans``.
        init: ``"k-means++"``, ``"random"`` (rows), both followed by a few steps of spherical k-means, or an array of
            directions (k, d) to start from.
        tol: EM ends when the log-likelihood of a row rises by no more than this, in nats.
        max_iter: or after so many steps, with scikit-learn's ``ConvergenceWarning``.
        warm_start: whether ``fit`` goes on from the last fit, with the same number of components.
        random_state: a seed, or NumPy's ``RandomState``; it decides the starts and what ``sample`` draws.
        verbose: whether to print the log-likelihood after each step, or a function to give each such line to.
        concentration: the former name of ``concentration_type``.

    Attributes:
        weights_: π, (k,).
        mean_directions_: μ, (k, d).
        concentrations_: κ, (k,); all alike if tied. At most 1e5 in float32 and 1e9 in float64.
        converged_: whether ``tol`` was reached.
        n_iter_: the number of steps, each a pass over the rows (after ``partial_fit``: of batches).
        lower_bound_: the log-likelihood of a row, as ``score`` gives it for the same rows.
        lower_bounds_: the same after each step that was kept; it never falls. A step that would lower it is taken
            back and halved.

    ``transform`` gives the soft assignments of ``predict_proba``, with ``set_output`` as a DataFrame.

    A component that is left with less than a tenth of a row starts again far from the others, once.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(100, 3)) + 4 * np.eye(3)[i] for i in (0, 1)])
    >>> mixture = PowerSphericalMixture(2, random_state=0).fit(X)
    >>> mixture.weights_.round(1), mixture.mean_directions_.shape
    (array([0.5, 0.5]), (2, 3))
    >>> len(set(mixture.predict(X[:100])))
    1
    """

    distribution = PowerSpherical


class VonMisesFisherMixture(SphericalMixture):
    r"""A mixture of von Mises–Fisher distributions, fitted by EM (Banerjee et al., 2005).

    .. math:: p(x) = \sum_k \pi_k C_d(\kappa_k) e^{\kappa_k \mu_k^\top x},

    with concentrations exact in any dimension, by the inverse of the ratio of Bessel functions. Arguments, attributes
    and the kinds of rows are those of :class:`PowerSphericalMixture`.

    >>> import torch
    >>> from powerspherical import VonMisesFisher
    >>> _ = torch.manual_seed(0)
    >>> X = VonMisesFisher(torch.eye(64)[:3], 200.0).sample((500,)).reshape(-1, 64)
    >>> mixture = VonMisesFisherMixture(3, random_state=0).fit(X)
    >>> (mixture.concentrations_ / 200).round(decimals=1)
    tensor([1., 1., 1.])
    """

    distribution = VonMisesFisher


class SphericalCauchyMixture(SphericalMixture):
    r"""A mixture of spherical Cauchy distributions, fitted by EM: heavy tails, which outliers hardly move.

    .. math:: p(x) = \sum_k \pi_k \frac{\Gamma(d/2)}{2 \pi^{d/2}}
              \left( \frac{1 - \rho_k^2}{\lVert x - \rho_k \mu_k \rVert^2} \right)^{d-1}, \qquad
              \rho_k = \frac{\kappa_k}{\kappa_k + 2}.

    Arguments, attributes and the kinds of rows are those of :class:`PowerSphericalMixture`.

    >>> import torch
    >>> from powerspherical import SphericalCauchy
    >>> _ = torch.manual_seed(0)
    >>> X = SphericalCauchy(torch.eye(8)[:3], 10.0).sample((500,)).reshape(-1, 8)
    >>> mixture = SphericalCauchyMixture(3, random_state=0).fit(X)
    >>> (mixture.concentrations_ / 10).round(decimals=1)
    tensor([1., 1., 1.])
    """

    distribution = SphericalCauchy
