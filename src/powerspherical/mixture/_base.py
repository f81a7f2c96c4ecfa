"""The base class of the estimators: parameters, input, and the fit, which keeps the best of several searches."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from numbers import Integral, Real
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import sklearn.exceptions
import torch
from scipy.sparse import issparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from typing_extensions import Self

import powerspherical
from powerspherical._torch.precision import has_float64
from powerspherical._torch.rows import shared_tensor
from powerspherical.mixture._rows import Block, Rows, RowsInMemory, Sums, weight_unit
from powerspherical.mixture._saving import SavedEstimator
from powerspherical.mixture._seeding import Seeder

Model = TypeVar("Model")
Found = TypeVar("Found", bound=Sums)

#: Number of starts for ``n_init="auto"``, as in scikit-learn's ``KMeans``.
_AUTO_STARTS = {"k-means++": 1, "random": 10}

#: dtypes of NumPy arrays that are converted block by block. Others, such as objects, are converted to float64 at once.
_DENSE_DTYPES = [np.dtype(code) for code in ("d", "f", "e", "?", *"bhilqBHILQ")]

AT_LEAST_ONE = Interval(Integral, 1, None, closed="left")


class ConvergenceWarning(sklearn.exceptions.ConvergenceWarning, powerspherical.ConvergenceWarning):
    """A fit stopped before it converged. Filters for scikit-learn's warning and for this package's both catch it."""


class Search(ABC, Generic[Model, Found]):
    """One search for the best model of the rows, in steps that each need sums over all rows."""

    #: What a search does that stopped too early.
    unsettled: ClassVar[str]
    #: Whether the last step gave a component a new start. It then has yet to find its rows.
    restarted = False

    sums: Found  # over the rows, under the model
    objectives: list[float]  # at the start and after each step that was kept
    steps: int  # the number of steps tried
    converged: bool

    def __init__(self, rows: Rows, seeder: Seeder, model: Model) -> None:
        self.rows, self.seeder, self.model = rows, seeder, model

    @abstractmethod
    def pass_over_rows(self, model: Model) -> Found:
        """Return the sums over all rows under the model."""

    @abstractmethod
    def step(self) -> Model:
        """Return the next model."""

    def accepts(self, gain: float) -> bool:
        """Return whether a step is kept."""
        return True

    def retries(self, gain: float) -> bool:
        """Return whether to try again after a step that was not kept."""
        return False

    def tolerance(self, tol: float) -> float:
        """Return the gain up to which the objective counts as unchanged."""
        return tol

    def rounding(self) -> float:
        """Return the rounding error of the objective, a mean over rows."""
        return torch.finfo(self.rows.dtype).eps * max(1.0, abs(self.objectives[-1]))

    def run(self, tol: float, max_iter: int, report: Callable[[int, Sums], None]) -> Self:
        """Take steps until the gain is within the tolerance, report each with its number, and return the search."""
        self.sums = self.pass_over_rows(self.model)
        self.objectives, self.steps, self.converged = [self.sums.objective()], 0, False
        while self.steps < max_iter and not self.converged:
            self.steps += 1
            model = self.step()
            sums = self.pass_over_rows(model)
            report(self.steps, sums)
            gain = sums.objective() - self.objectives[-1]
            if self.accepts(gain):
                self.model, self.sums = model, sums
                self.objectives.append(sums.objective())
                self.converged = gain <= self.tolerance(tol) and not self.restarted
            else:
                self.converged = not self.retries(gain)
        return self

    def beats(self, other: Self, tol: float) -> bool:
        """Return whether the result is better than the other's by more than the tolerance and rounding."""
        return self.objectives[-1] - other.objectives[-1] > other.tolerance(tol) + other.rounding()


@dataclass(kw_only=True, eq=False, repr=False)
class SphericalEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SavedEstimator):
    """Base of estimators that use only the directions of rows and ``transform`` them to one column per component."""

    init: Any = "k-means++"
    n_init: int | str = "auto"
    max_iter: int = 200
    tol: float = 1e-4
    random_state: Any = None
    verbose: Any = 0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "init": [StrOptions(set(_AUTO_STARTS)), "array-like"],
        "n_init": [StrOptions({"auto"}), AT_LEAST_ONE],
        "max_iter": [AT_LEAST_ONE],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose", callable],
    }

    #: The parameter that is the number of components.
    _count_parameter: ClassVar[str]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to the directions of rows, and return the estimator.

        Args:
            X: rows (n, d), at least as many as components.
            y: ignored.
            sample_weight: weights ≥ 0 of the rows, (n,). Default: equal weights.
        """
        self._validate_params()
        rows = self._rows(X, sample_weight, reset=True)
        seeder = self._seeder(rows)
        with without_grad_or_autocast(rows.device):
            reports = (partial(self._report, f"run {run}") for run in range(self._n_starts()))
            searches = (self._search(rows, seeder).run(self.tol, self.max_iter, report) for report in reports)
            best = reduce(lambda best, other: other if other.beats(best, self.tol) else best, searches)
            self._set_fitted(best)
        self.n_iter_ = best.steps
        if not best.converged:
            message = f"{best.unsettled} after {self.max_iter} steps: raise max_iter or tol"
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        return self

    @abstractmethod
    def _search(self, rows: Rows, seeder: Seeder) -> Search[Any, Any]:
        """Return a search at its start."""

    @abstractmethod
    def _set_fitted(self, search: Search[Any, Any]) -> None:
        """Set the fitted attributes from the result of a search."""

    @abstractmethod
    def _model(self, rows: Rows) -> Any:
        """Return the fitted components in the dtype and on the device of the rows."""

    def _seeder(self, rows: Rows) -> Seeder:
        return Seeder(rows, getattr(self, self._count_parameter), check_random_state(self.random_state))

    def _rows(self, X: Any, sample_weight: Any = None, *, reset: bool = False) -> Rows:
        """Return the checked rows of ``X``. ``reset`` says that they are to be fitted from scratch."""
        if not reset:
            check_is_fitted(self)
        lazy = hasattr(X, "__dask_graph__")
        if lazy and not hasattr(X, "rechunk"):
            kind = f"a Dask {type(X).__name__}"
            raise ValueError(f"X must be a Dask array, got {kind}: use X.to_dask_array(lengths=True)")
        if lazy or isinstance(X, Tensor):  # which scikit-learn cannot check
            if X.ndim != 2 or X.shape[1] < 2 or X.shape[0] == 0:
                raise ValueError(f"X must have the shape (n, d) with n ≥ 1 and d ≥ 2, got {tuple(X.shape)}")
            validate_data(self, X, reset=reset, skip_check_array=True)
        if lazy:
            from powerspherical.mixture._dask import DaskRows

            rows: Rows = DaskRows(X, sample_weight)
        else:
            rows = self._rows_in_memory(X, sample_weight, reset)
        count = getattr(self, self._count_parameter)
        if reset and rows.count < count:
            raise ValueError(f"n_samples={rows.count} should be >= {self._count_parameter}={count}")
        return rows

    def _rows_in_memory(self, X: Any, sample_weight: Any, reset: bool) -> Rows:
        if not isinstance(X, Tensor):
            dtypes = [np.float64, np.float32] if issparse(X) else _DENSE_DTYPES
            least = 2 if reset else 1
            # Whether rows are finite is checked with their lengths, by an error that names the row.
            options = {"accept_sparse": "csr", "ensure_all_finite": False, "ensure_min_features": least}
            X = validate_data(self, X, reset=reset, dtype=dtypes, **options)
        elif X.layout != torch.strided:
            raise ValueError(f"X must be a dense tensor, got {X.layout}: use X.to_dense() or a SciPy matrix")
        elif not has_float64(X.device):
            raise ValueError(f"X is on {X.device}, which has no float64: use X.cpu()")
        elif not X.is_floating_point():
            raise ValueError(f"X must have a floating-point dtype, got {X.dtype}: use X.float()")
        if sample_weight is None:
            return RowsInMemory(X)
        if not isinstance(sample_weight, Tensor):
            array = check_array(sample_weight, dtype=np.float64, ensure_2d=False, ensure_all_finite=False)
            sample_weight = shared_tensor(array)
        if sample_weight.shape != (X.shape[0],):
            shape = tuple(sample_weight.shape)
            raise ValueError(f"sample_weight must have the shape {(X.shape[0],)}, got {shape}")
        weight = sample_weight.detach().double()
        unit = weight_unit(*weight.aminmax())
        return RowsInMemory(X, weight / unit, unit)

    def _n_starts(self) -> int:
        """Return the number of runs: one if ``init`` holds directions, else ``n_init``."""
        if not isinstance(self.init, str):
            return 1
        return _AUTO_STARTS[self.init] if self.n_init == "auto" else int(self.n_init)

    @property
    def _n_features_out(self) -> int:
        """The number of components, for scikit-learn."""
        return len(getattr(self, self._directions))

    def _each(self, X: Any, function: Callable[[Any, Block], Tensor]) -> Any:
        """Return ``function(model, block)`` for all rows of ``X``."""
        rows = self._rows(X)
        with without_grad_or_autocast(rows.device):
            return rows.each(partial(function, self._model(rows)), self._n_features_out)

    def _report(self, stage: str, step: int, sums: Sums) -> None:
        """Print the objective after a step, or pass it on, as ``verbose`` says."""
        if self.verbose:
            line = f"{type(self).__name__}: {stage}, step {step}: {sums}"
            self.verbose(line) if callable(self.verbose) else print(line, flush=True)


@contextmanager
def without_grad_or_autocast(device: torch.device) -> Iterator[None]:
    """Record no gradients, and keep the caller's autocast away from matrix products."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield
