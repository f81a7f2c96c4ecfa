"""What the estimators share: how rows come in, how they are gone through, and what a wrong argument is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import sklearn.exceptions
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

import powerspherical
from powerspherical.mixture._lloyd import (
    KMeansRun,
    Reseed,
    Sample,
    lloyd,
    random_directions,
    sample_of,
    spread_directions,
)
from powerspherical.mixture._rows import ArrayRows, Rows, SparseRows, TensorRows, shared, usable_weight
from powerspherical.mixture._saving import SavedEstimator

Report = Callable[[int, float], None]


def _spread(sample: Sample, count: int, random: np.random.RandomState) -> Tensor:
    return spread_directions(sample, torch.empty(0, sample.rows.shape[1]), count, random)


#: The values of ``init`` that are names, as functions of a sample, the number of directions, and randomness.
_CHOICES = {"k-means++": _spread, "random": random_directions}


#: Starts for ``n_init="auto"``, as in scikit-learn's ``KMeans``.
_STARTS = {"k-means++": 1, "random": 10}


class ConvergenceWarning(sklearn.exceptions.ConvergenceWarning, powerspherical.ConvergenceWarning):
    """A fit ended before it settled: caught by filters for scikit-learn's warning and for this package's."""


class SphericalEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SavedEstimator):
    """An estimator for rows of which only the direction counts, with a ``transform`` to one column per direction."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(_CHOICES)), "array-like"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose", callable],
    }

    n_features_in_: int
    n_init: Any
    init: Any
    random_state: Any
    verbose: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _rows(self, X: Any, sample_weight: Any = None, *, reset: bool = False) -> Rows:
        """The rows of X; ``reset`` where they are the first ones that the estimator sees."""
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
            if sample_weight is not None:
                sample_weight = usable_weight(torch.as_tensor(sample_weight, device=X.device), X.shape[0])
            rows: Rows = TensorRows(X, sample_weight)
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
                weight = check_array(
                    sample_weight,
                    ensure_2d=False,
                    dtype=X.dtype,
                    ensure_all_finite=False,
                    input_name="sample_weight",
                )
                sample_weight = usable_weight(shared(weight), X.shape[0]).numpy()
            rows = (ArrayRows if isinstance(X, np.ndarray) else SparseRows)(X, sample_weight)
        return rows

    def _check_shape(self, X: Any, reset: bool) -> None:
        """What ``validate_data`` does for arrays of NumPy, for others."""
        if X.ndim != 2 or X.shape[1] < 2 or X.shape[0] == 0:
            raise ValueError(f"X must have the shape (n, d) with n ≥ 1 and d ≥ 2, got {tuple(X.shape)}")
        if reset:
            self.n_features_in_ = int(X.shape[1])
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features"
            )

    def _random(self) -> np.random.RandomState:
        return check_random_state(self.random_state)

    def _n_starts(self) -> int:
        """The number of runs that ``n_init`` and ``init`` mean: one from given directions."""
        if not isinstance(self.init, str):
            return 1
        return _STARTS[self.init] if self.n_init == "auto" else self.n_init

    def _given(self, rows: Rows, count: int) -> Tensor | None:
        """The directions that ``init`` holds, (count, d), or None where it names a way to choose them."""
        if isinstance(self.init, str):
            return None
        array = self.init.detach().cpu().numpy() if isinstance(self.init, Tensor) else self.init
        array = check_array(array, dtype=np.float64, input_name="init")
        wanted = (count, rows.dim)
        if array.shape != wanted:
            raise ValueError(f"init must have the shape {wanted}, one direction a row, got {array.shape}")
        lengths = np.linalg.norm(array, axis=1, keepdims=True)
        if not lengths.all():
            raise ValueError("init must hold directions, but has a row of zeros")
        return torch.from_numpy(array / lengths).to(rows.device)

    def _clustered(
        self, rows: Rows, count: int, random: np.random.RandomState, tol: float, max_iter: int, report: Report
    ) -> tuple[KMeansRun, Reseed]:
        """One run of spherical k-means, and what finds directions for clusters that run empty."""
        start = self._given(rows, count)
        sample = cache(
            lambda: sample_of(rows, count, random)
        )  # a pass over the rows, once something needs it
        if start is None:
            start = _CHOICES[self.init](sample(), count, random)

        def reseed(kept: Tensor, wanted: int) -> Tensor:
            return spread_directions(sample(), kept, wanted, random)

        return lloyd(rows, start, tol=tol, max_iter=max_iter, reseed=reseed, report=report), reseed

    def _reporter(self, part: str, what: str) -> Report:
        """What tells a person how far it is, if that is wanted."""

        def report(step: int, value: float) -> None:
            if self.verbose:
                line = f"{type(self).__name__}: {part}, step {step}: {what} {value:.8g}"
                self.verbose(line) if callable(self.verbose) else print(line, flush=True)

        return report


@contextmanager
def exactly(device: torch.device) -> Iterator[None]:
    """Inside, no gradient is followed, and the autocast that the caller may be in does not reach matrix products."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def whole(name: str, value: Any, least: int) -> int:
    """An argument that must be an integer from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer ≥ {least}, got {value!r}")
    return int(value)


def enough_rows(rows: Rows, name: str, count: int) -> None:
    """There must be a row for each component."""
    if rows.count < count:
        raise ValueError(f"n_samples={rows.count} should be >= {name}={count}")
