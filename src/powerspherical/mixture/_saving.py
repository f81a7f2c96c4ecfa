"""Saving and loading fitted estimators: one safetensors file each, with JSON in its header. Loading runs no code."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from powerspherical._files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from powerspherical._torch.rows import shared_tensor

FORMAT, VERSION = "powerspherical.mixture", 1
#: Tolerance for the sum of the weights and for the norms of directions, which should be one.
TOLERANCE = 1e-3
#: Parameters that a file need not hold: their values may be NumPy generators or functions.
_OPTIONAL_PARAMETERS = {"random_state", "verbose"}


class SavedEstimator(BaseEstimator, ABC):
    """Base of estimators that can be saved to a file once fitted."""

    #: The fitted attributes to save: arrays, numbers and booleans. The first holds directions, (k, d).
    _saved: ClassVar[tuple[str, ...]]

    n_features_in_: int
    notes_: dict[str, Any]

    def save(self, path: str | os.PathLike[str], *, notes: dict[str, Any] | None = None) -> Path:
        """Write the fitted estimator to a safetensors file, atomically, and return its path.

        The file holds the parameters and the fitted attributes, except ``labels_``. A ``random_state`` that is a
        generator and a ``verbose`` that is a function are not saved: the loaded estimator has their defaults.

        Args:
            path: the file to write. An existing file is replaced.
            notes: texts and numbers to store with the estimator. The loaded estimator has them as ``notes_``.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from powerspherical.mixture import SphericalKMeans
        >>> kmeans = SphericalKMeans(2, random_state=0).fit(np.eye(2))
        >>> path = Path(tempfile.mkdtemp()) / "kmeans.safetensors"
        >>> _ = kmeans.save(path, notes={"data": "axes"})
        >>> SphericalKMeans.load(path).notes_
        {'data': 'axes'}
        """
        check_is_fitted(self)
        self._validate_params()
        self._check_fitted()
        parameters = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        for name in _OPTIONAL_PARAMETERS:
            if not isinstance(parameters[name], int | str | None):
                del parameters[name]
        state = {
            "format": FORMAT,
            "version": VERSION,
            "estimator": type(self).__name__,
            "notes": notes or {},
            "arrays": "torch" if isinstance(getattr(self, self._saved[0]), Tensor) else "numpy",
            "parameters": parameters,
            "fitted": self._fitted(),
        }
        return save_checkpoint(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the estimator that ``save`` wrote, with NumPy arrays or CPU tensors, as it had them.

        The attribute ``notes_`` has the notes that ``save`` stored.

        Raises ``FileNotFoundError`` if there is no file, and ``CheckpointError`` if it is damaged, if a field is
        missing or wrong, or if it holds another estimator. ``powerspherical.mixture.load`` reads any estimator.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from powerspherical.mixture import SphericalKMeans
        >>> kmeans = SphericalKMeans(2, random_state=0).fit(np.eye(2))
        >>> path = kmeans.save(Path(tempfile.mkdtemp()) / "kmeans.safetensors")
        >>> loaded = SphericalKMeans.load(path)
        >>> np.array_equal(loaded.cluster_centers_, kmeans.cluster_centers_)
        True
        """
        state = _state(path)
        name = state.get("estimator")
        kind = next((kind for kind in _class_and_subclasses(cls) if kind.__name__ == name), None)
        if kind is None:
            raise CheckpointError(
                f"{path} holds a {name}, not a {cls.__name__}: powerspherical.mixture.load reads any estimator"
            )
        try:
            return kind._from(state)
        except ValueError as error:
            raise CheckpointError(
                f"the {name} in {path} cannot be used: {error}; fit and save it again"
            ) from error

    @classmethod
    def _from(cls, state: dict[str, Any]) -> Self:
        """Make the estimator from the state in a file; raise ``ValueError`` if an entry is missing or wrong."""
        as_tensors = entry(state, "arrays", str) == "torch"
        parameters, fitted = (
            {
                name: value.numpy() if isinstance(value, Tensor) and not as_tensors else value
                for name, value in entry(state, part, dict).items()
            }
            for part in ("parameters", "fitted")
        )
        known = set(cls().get_params())
        for name in sorted(known ^ parameters.keys()):
            if name not in known:
                raise ValueError(f"it has the unknown parameter {name}")
            if name not in _OPTIONAL_PARAMETERS:
                raise ValueError(f"it has no parameter {name}")
        estimator = cls(**parameters)
        estimator._validate_params()
        estimator._restore(fitted)
        estimator._check_fitted()
        estimator.notes_ = entry(state, "notes", dict)
        return estimator

    def _fitted(self) -> dict[str, Any]:
        """Return the fitted attributes in the form that a file holds."""
        fitted = {name: _plain(getattr(self, name)) for name in self._saved}
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = [str(name) for name in self.feature_names_in_]
        return fitted

    def _restore(self, fitted: dict[str, Any]) -> None:
        """Set the fitted attributes. The caller checks them with ``_check_fitted``."""
        for name in self._saved:
            setattr(self, name, entry(fitted, name, object))
        _, self.n_features_in_ = require_directions(self._saved[0], fitted[self._saved[0]])
        if "feature_names_in_" in fitted:
            names = entry(fitted, "feature_names_in_", list)
            if len(names) != self.n_features_in_ or not all(isinstance(name, str) for name in names):
                raise ValueError(f"feature_names_in_ must be {self.n_features_in_} names, got {names!r}")
            self.feature_names_in_ = np.array(names, dtype=object)

    @abstractmethod
    def _check_fitted(self) -> None:
        """Raise ``ValueError`` if a fitted attribute has a value that no fit could give."""

    @abstractmethod
    def predict(self, X: Any) -> Any:
        """Return the index of the component or cluster of each row, (n,)."""


def require_numbers(
    name: str, value: Any, shape: tuple[int, ...] | None = None, least: float = -math.inf
) -> Tensor:
    """Return an array as a tensor; raise ``ValueError`` unless it has this shape and is finite and ≥ ``least``."""
    tensor = shared_tensor(value) if isinstance(value, np.ndarray) else value
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        found = tensor.dtype if isinstance(tensor, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be an array of floating-point numbers, got {found}")
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}")
    wrong = ~(torch.isfinite(tensor) & (tensor >= least))
    if wrong.any():
        bound = "" if least == -math.inf else f" and ≥ {least:g}"
        raise ValueError(f"{name} must be finite{bound}, got {tensor[wrong][0].item():g}")
    return tensor


def require_directions(name: str, value: Any) -> tuple[int, int]:
    """Return the shape (k, d) of fitted directions; raise ``ValueError`` unless they are unit vectors."""
    directions = require_numbers(name, value)
    shape = tuple(directions.shape)
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        raise ValueError(f"{name} must have the shape (k, d) with k ≥ 1 and d ≥ 2, got {shape}")
    lengths = torch.linalg.vector_norm(directions.double(), dim=1)
    worst = lengths[(lengths - 1).abs().argmax()].item()
    if abs(worst - 1) > TOLERANCE:
        raise ValueError(f"the rows of {name} must be unit vectors, but one has length {worst:g}")
    return shape


def require_number(name: str, value: Any, least: float = -math.inf) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number ≥ ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        bound = "" if least == -math.inf else f" ≥ {least:g}"
        raise ValueError(f"{name} must be a finite number{bound}, got {value!r}")


def _plain(value: Any) -> Any:
    """Convert a value for a checkpoint: arrays to tensors, NumPy scalars to Python numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return torch.from_numpy(np.array(value, order="C"))
    return value


def entry(state: dict[str, Any], name: str, kind: type) -> Any:
    """Return an entry of a file's state; raise ``ValueError`` unless it exists and has this type."""
    if name not in state:
        raise ValueError(f"it has no {name}")
    if not isinstance(state[name], kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {state[name]!r}")
    return state[name]


def _state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a model file; raise ``CheckpointError`` unless this version knows its format."""
    try:
        state = load_checkpoint(path)
    except CheckpointError as error:  # its advice is to delete the file, which may be the user's data
        raise CheckpointError(f"{path} is not a model file of {FORMAT}, or it is damaged") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a checkpoint, but not a model file of {FORMAT}")
    version = state.get("version")
    if version != VERSION:
        raise CheckpointError(
            f"{path} has the format version {version!r}, but this version of powerspherical reads {VERSION}: "
            "use the version of powerspherical that wrote it, or a newer one"
        )
    return state


def _class_and_subclasses(kind: type[SavedEstimator]) -> Iterator[type[Any]]:
    """Yield the class and all its subclasses."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _class_and_subclasses(derived)
