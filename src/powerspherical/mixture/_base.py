"""The base class of the estimators: parameters, input, progress reports."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import sklearn.exceptions
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

import powerspherical
from powerspherical.mixture._rows import ArrayRows, Block, Rows, SparseRows, TensorRows
from powerspherical.mixture._saving import SavedEstimator

#: Called after each step with its number and the value of the objective.
Report = Callable[[int, float], None]

#: Number of starts for ``n_init="auto"``, as in scikit-learn's ``KMeans``.
_AUTO_STARTS = {"k-means++": 1, "random": 10}


class ConvergenceWarning(sklearn.exceptions.ConvergenceWarning, powerspherical.ConvergenceWarning):
    """A fit stopped before it converged. Filters for scikit-learn's warning and for this package's both catch it."""


class SphericalEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SavedEstimator):
    """Base of estimators that use only the directions of rows and ``transform`` them to one column per component."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(_AUTO_STARTS)), "array-like"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose", callable],
    }

    #: The parameter that is the number of components.
    _count_parameter: ClassVar[str]

    n_features_in_: int
    n_init: Any
    init: Any
    max_iter: int
    random_state: Any
    verbose: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _rows(self, X: Any, sample_weight: Any = None, *, reset: bool = False) -> Rows:
        """Return the checked rows of ``X``. ``reset`` says that they are to be fitted from scratch."""
        if not reset:
            check_is_fitted(self)
        if isinstance(X, Tensor):
            self._check_shape(X, reset)
            if X.layout != torch.strided:
                raise ValueError(
                    f"X must be a dense tensor, got {X.layout}: use a SciPy sparse matrix, or X.to_dense()"
                )
            if not X.is_floating_point():
                raise ValueError(f"X must have a floating-point dtype, got {X.dtype}: use X.float()")
            weight = None if sample_weight is None else torch.as_tensor(sample_weight, device=X.device)
            rows: Rows = TensorRows(X, weight)
        elif type(X).__module__.partition(".")[0] == "dask":
            from powerspherical.mixture._dask import DaskRows

            self._check_shape(X, reset)
            rows = DaskRows(X, sample_weight)
        else:
            X = validate_data(
                self,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype=np.float32 if getattr(X, "dtype", None) == np.float16 else [np.float64, np.float32],
                order="C",
                ensure_min_features=2 if reset else 1,
            )
            if sample_weight is not None:
                options = {"ensure_2d": False, "ensure_all_finite": False, "input_name": "sample_weight"}
                sample_weight = check_array(sample_weight, dtype=X.dtype, **options)
            rows = (ArrayRows if isinstance(X, np.ndarray) else SparseRows)(X, sample_weight)
        count = getattr(self, self._count_parameter)
        if reset and rows.count < count:
            raise ValueError(f"n_samples={rows.count} should be >= {self._count_parameter}={count}")
        return rows

    def _check_shape(self, X: Any, reset: bool) -> None:
        """Check the shape of rows that scikit-learn cannot convert. ``reset`` also sets ``n_features_in_``."""
        if X.ndim != 2 or X.shape[1] < 2 or X.shape[0] == 0:
            raise ValueError(f"X must have the shape (n, d) with n ≥ 1 and d ≥ 2, got {tuple(X.shape)}")
        validate_data(self, X, reset=reset, skip_check_array=True)

    def _n_starts(self) -> int:
        """Return the number of runs: one if ``init`` holds directions, else ``n_init``."""
        if not isinstance(self.init, str):
            return 1
        return _AUTO_STARTS[self.init] if self.n_init == "auto" else self.n_init

    @property
    def _n_features_out(self) -> int:
        """The number of components, for scikit-learn."""
        return len(getattr(self, self._saved[0]))

    @abstractmethod
    def _model(self, rows: Rows) -> Any:
        """Return the fitted components in the dtype and on the device of the rows."""

    def _each(
        self,
        X: Any,
        function: Callable[[Any, Block], Tensor],
        *,
        per_component: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Return ``function(model, block)`` for all rows of ``X``, with one column or one ``per_component``."""
        rows = self._rows(X)
        count = self._n_features_out
        with without_grad_or_autocast(rows.device):
            task = partial(function, self._model(rows))
            return rows.each(task, count, columns=count if per_component else None, dtype=dtype)

    def _warn_of_max_iter(self, what: str) -> None:
        """Warn the caller of ``fit`` that ``max_iter`` was too small."""
        message = f"{what} after {self.max_iter} steps: raise max_iter or tol"
        warnings.warn(message, ConvergenceWarning, stacklevel=3)

    def _reporter(self, stage: str, objective: str) -> Report:
        """Return a function that prints the ``objective`` after each step, or passes it on, as ``verbose`` says."""

        def report(step: int, value: float) -> None:
            if self.verbose:
                line = f"{type(self).__name__}: {stage}, step {step}: {objective} {value:.8g}"
                self.verbose(line) if callable(self.verbose) else print(line, flush=True)

        return report


@contextmanager
def without_grad_or_autocast(device: torch.device) -> Iterator[None]:
    """Record no gradients, and keep the caller's autocast away from matrix products."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def require_integer(name: str, value: Any, least: int) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is an integer ≥ ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}")
    return int(value)
