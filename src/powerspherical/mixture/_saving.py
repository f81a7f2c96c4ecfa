"""Files of fitted estimators: one safetensors file each, with JSON in its header. Reading one runs no code."""

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
from powerspherical.mixture._rows import shared_tensor

FORMAT, VERSION = "powerspherical.mixture", 1
#: How far weights may be from a sum of one, and directions from length one.
TOLERANCE = 1e-3
#: Parameters whose values may be objects that a file cannot hold: NumPy's generators, and functions.
_OPTIONAL_PARAMETERS = {"random_state", "verbose"}


class SavedEstimator(BaseEstimator, ABC):
    """An estimator that can be saved to a file once it is fitted."""

    #: The fitted attributes that are saved: arrays, numbers and booleans. The first holds directions, (k, d).
    _saved: ClassVar[tuple[str, ...]]

    n_features_in_: int

    def save(self, path: str | os.PathLike[str], *, notes: dict[str, Any] | None = None) -> Path:
        """Write the fitted estimator to a safetensors file, in one step, and return its path.

        ``load`` reads it. The file keeps the parameters and the fitted attributes, but no ``labels_``. A
        ``random_state`` that is a generator and a ``verbose`` that is a function are not kept: the loaded estimator has
        the defaults. ``notes`` are texts and numbers to keep in the file beside the estimator;
        ``powerspherical.nn.load_checkpoint(path)["notes"]`` reads them.
        """
        check_is_fitted(self)
        self._validate_params()
        self._check_fitted()
        state = {
            "format": FORMAT,
            "version": VERSION,
            "estimator": type(self).__name__,
            "notes": notes or {},
            "arrays": "torch" if isinstance(getattr(self, self._saved[0]), Tensor) else "numpy",
            "parameters": self._plain_parameters(),
            "fitted": self._fitted(),
        }
        return save_checkpoint(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator that ``save`` wrote, with its arrays as NumPy arrays or CPU tensors, as they were.

        Raises ``FileNotFoundError`` if there is no file, and ``CheckpointError`` if it is damaged, if a field is
        missing or wrong, or if it holds another estimator. ``powerspherical.mixture.load`` reads any estimator.
        """
        state = _state(path)
        name = state.get("estimator")
        kind = next((kind for kind in _kinds(cls) if kind.__name__ == name), None)
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
        """The estimator of a state; raises ``ValueError`` for what is missing or wrong."""
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
        return estimator

    def _plain_parameters(self) -> dict[str, Any]:
        """The parameters that a file can hold."""
        found = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        storable = (type(None), bool, int, float, str, Tensor)
        return {
            name: value
            for name, value in found.items()
            if isinstance(value, storable) or name not in _OPTIONAL_PARAMETERS
        }

    def _fitted(self) -> dict[str, Any]:
        """The fitted attributes, as a file holds them."""
        fitted = {name: _plain(getattr(self, name)) for name in self._saved}
        if hasattr(self, "feature_names_in_"):
            fitted["feature_names_in_"] = [str(name) for name in self.feature_names_in_]
        return fitted

    def _restore(self, fitted: dict[str, Any]) -> None:
        """Set the fitted attributes; ``_check_fitted`` follows."""
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
        """Raise ``ValueError`` for a fitted attribute that no fit gives."""

    @abstractmethod
    def predict(self, X: Any) -> Any:
        """The index of the component or cluster of each row, (n,)."""


def require_numbers(name: str, value: Any, shape: tuple[int, ...], least: float = -math.inf) -> Tensor:
    """A fitted array as a tensor; raise ``ValueError`` unless it has this shape and finite numbers ≥ ``least``."""
    tensor = _tensor(name, value)
    if tensor.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}")
    wrong = ~(torch.isfinite(tensor) & (tensor >= least))
    if wrong.any():
        bound = "" if least == -math.inf else f" and ≥ {least:g}"
        raise ValueError(f"{name} must be finite{bound}, got {tensor[wrong][0].item():g}")
    return tensor


def require_directions(name: str, value: Any) -> tuple[int, int]:
    """The shape (k, d) of fitted directions; raise ``ValueError`` unless these are unit vectors."""
    shape = tuple(_tensor(name, value).shape)
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        raise ValueError(f"{name} must have the shape (k, d) with k ≥ 1 and d ≥ 2, got {shape}")
    lengths = torch.linalg.vector_norm(require_numbers(name, value, shape).double(), dim=1)
    worst = lengths[(lengths - 1).abs().argmax()].item()
    if abs(worst - 1) > TOLERANCE:
        raise ValueError(f"the rows of {name} must be unit vectors, but one has length {worst:g}")
    return shape


def require_number(name: str, value: Any, least: float = -math.inf) -> None:
    """Raise ``ValueError`` unless it is a finite number ≥ ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        bound = "" if least == -math.inf else f" ≥ {least:g}"
        raise ValueError(f"{name} must be a finite number{bound}, got {value!r}")


def _tensor(name: str, value: Any) -> Tensor:
    """A fitted array as a tensor that shares its memory."""
    tensor = shared_tensor(value) if isinstance(value, np.ndarray) else value
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        found = tensor.dtype if isinstance(tensor, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be an array of floating-point numbers, got {found}")
    return tensor


def _plain(value: Any) -> Any:
    """The value as a checkpoint can hold it: arrays as tensors, NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return torch.from_numpy(np.array(value, order="C"))
    return value


def entry(state: dict[str, Any], name: str, kind: type) -> Any:
    """An entry of a file's state; raise ``ValueError`` unless it is there and of this type."""
    if name not in state:
        raise ValueError(f"it has no {name}")
    if not isinstance(state[name], kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {state[name]!r}")
    return state[name]


def _state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a model file holds, of a format that this version reads."""
    try:
        state = load_checkpoint(path)
    except CheckpointError as error:  # it says to delete the file, which may be the user's data
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


def _kinds(kind: type[SavedEstimator]) -> Iterator[type[Any]]:
    """The class and all classes derived from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)
