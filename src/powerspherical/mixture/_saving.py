"""Saving and loading fitted estimators: one safetensors file each, with JSON in its header. Loading runs no code."""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import Self

from powerspherical._files.checkpoint import UNUSABLE, CheckpointError, load_checkpoint, save_checkpoint
from powerspherical.mixture._rows import Sums

FORMAT, VERSION = "powerspherical.mixture", 1
#: Parameters that a file need not hold: their values may be NumPy generators or functions.
_OPTIONAL_PARAMETERS = {"random_state", "verbose"}
_OPTIONAL_ATTRIBUTES = ("feature_names_in_", "lower_bounds_", "_seen", "_averages")


class SavedEstimator(BaseEstimator, ABC):
    """Base of estimators that can be saved to a file once fitted.

    >>> import tempfile, numpy as np
    >>> from powerspherical.mixture import SphericalKMeans
    >>> kmeans = SphericalKMeans(2, random_state=0).fit(np.eye(2))
    >>> path = kmeans.save(f"{tempfile.mkdtemp()}/kmeans.safetensors", notes={"data": "axes"})
    >>> loaded = SphericalKMeans.load(path)
    >>> np.array_equal(loaded.cluster_centers_, kmeans.cluster_centers_), loaded.notes_
    (True, {'data': 'axes'})
    """

    #: The fitted attributes to save, with their number of dimensions: 2 for (k, d), 1 for (k,), 0 for one value.
    _saved: ClassVar[dict[str, int]]
    #: The fitted attribute that holds directions, (k, d).
    _directions: ClassVar[str]

    notes_: dict[str, Any]

    def save(self, path: str | os.PathLike[str], *, notes: dict[str, Any] | None = None) -> Path:
        """Write the fitted estimator to a safetensors file, atomically, and return its path.

        The file holds the parameters and the fitted attributes, except ``labels_``. A ``random_state`` that is a
        generator and a ``verbose`` that is a function are not saved: the loaded estimator has their defaults.

        Args:
            path: the file to write. An existing file is replaced.
            notes: texts and numbers to store with the estimator. The loaded estimator has them as ``notes_``.
        """
        check_is_fitted(self)
        self._validate_params()
        fitted = (*self._saved, *(name for name in _OPTIONAL_ATTRIBUTES if hasattr(self, name)))
        state = {
            "format": FORMAT,
            "version": VERSION,
            "estimator": type(self).__name__,
            "notes": notes or {},
            "arrays": "torch" if isinstance(getattr(self, self._directions), Tensor) else "numpy",
            "parameters": {
                name: _plain(value)
                for name, value in self.get_params(deep=False).items()
                if name not in _OPTIONAL_PARAMETERS or isinstance(value, int | str | None)
            },
            "fitted": {name.lstrip("_"): _plain(getattr(self, name)) for name in fitted},
        }
        return save_checkpoint(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the estimator that ``save`` wrote, with NumPy arrays or CPU tensors, as it had them.

        Raises as ``powerspherical.mixture.load``, which reads any estimator, and ``CheckpointError`` for another one.
        """
        state = _state(path)
        name = state.get("estimator")
        kind = next((kind for kind in _class_and_subclasses(cls) if kind.__name__ == name), None)
        if kind is None:
            raise CheckpointError(
                f"{path} holds a {name}, not a {cls.__name__}: powerspherical.mixture.load reads any estimator"
            )
        try:
            parameters, fitted = (
                {name: _array(value, state["arrays"]) for name, value in state[part].items()}
                for part in ("parameters", "fitted")
            )
            estimator = kind(**parameters)
            estimator._validate_params()
            estimator._restore(fitted)
            estimator.notes_ = state["notes"]
        except UNUSABLE as error:
            raise CheckpointError(
                f"the {name} in {path} cannot be used ({type(error).__name__}: {error}): fit and save it again"
            ) from error
        return estimator

    def _restore(self, fitted: dict[str, Any]) -> None:
        """Set the fitted attributes; raise ``ValueError`` if their shapes do not belong together."""
        shape = np.shape(fitted[self._directions])
        self.n_features_in_ = shape[1]
        for name, dims in self._saved.items():
            if np.shape(fitted[name]) != shape[:dims]:
                raise ValueError(f"{name} has the shape {np.shape(fitted[name])}, not {tuple(shape[:dims])}")
            setattr(self, name, fitted[name])
        if "feature_names_in_" in fitted:
            self.feature_names_in_ = np.array(fitted["feature_names_in_"], dtype=object)
        if "lower_bounds_" in fitted:
            self.lower_bounds_ = list(map(float, fitted["lower_bounds_"]))


def _plain(value: Any) -> Any:
    """Convert a value for a checkpoint: arrays to tensors, NumPy scalars to Python numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | list | tuple):
        array = np.array(value, order="C")
        return array.tolist() if array.dtype == object else torch.from_numpy(array)
    return vars(value) if isinstance(value, Sums) else value


def _array(value: Any, kind: str) -> Any:
    """Convert a value of a checkpoint: tensors to arrays of this kind."""
    return value.numpy() if isinstance(value, Tensor) and kind == "numpy" else value


def _state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a model file; raise ``CheckpointError`` unless this version knows its format."""
    try:
        state = load_checkpoint(path)
    except CheckpointError as error:  # its advice is to delete the file, which may be the user's data
        raise CheckpointError(f"{path} is not a model file of {FORMAT}, or it is damaged") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a checkpoint, but not a model file of {FORMAT}")
    if str(state.get("version")) != str(VERSION):  # as text, because a forged file may hold a tensor
        raise CheckpointError(
            f"{path} has the format version {state.get('version')!r}, but this version of powerspherical reads "
            f"{VERSION}: use the version of powerspherical that wrote it, or a newer one"
        )
    return state


def _class_and_subclasses(kind: type[SavedEstimator]) -> Iterator[type[Any]]:
    """Yield the class and all its subclasses."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _class_and_subclasses(derived)
