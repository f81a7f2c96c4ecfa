"""Rows of user data as vectors: their lengths, and errors that name the row without a direction."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Squares of float64 numbers outside of this range may underflow or overflow.
_SMALL, _LARGE = 1e-140, 1e140
#: Multiplying or dividing by this power of two moves every float64 number into that range, or past its other end.
_FAR = 2.0**600


def row_lengths(rows: Any, name: str = "X", *, start: int = 0, allow_zeros: bool = False) -> Tensor:
    """Return the Euclidean lengths of rows, as a float64 tensor (n,) on the device of the rows.

    Args:
        rows: a tensor or NumPy array (n, d) of real numbers, or a SciPy sparse array.
        name: what error messages call the rows.
        start: the number of the first row in error messages.
        allow_zeros: whether rows of zeros are allowed. Their length is 0.

    Raises ``ValueError`` for the first row that has NaN or infinite values, and then for the first one that has no
    direction: a row of zeros, or one whose length overflows or underflows the dtype of the rows.
    """
    if isinstance(rows, np.ndarray):
        rows = shared_tensor(rows)
    dtype = rows.dtype if isinstance(rows, Tensor) else torch.from_numpy(np.empty(0, rows.dtype)).dtype
    # Half precision is computed in float32, integers in float64.
    dtype = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else torch.float64
    limits = torch.finfo(dtype)
    lengths = _norms(rows)
    finite = torch.isfinite(lengths)
    if limits.dtype == "float64" and not ((lengths > _SMALL) & (lengths < _LARGE)).all():
        reduced = _norms(rows, 1 / _FAR)
        finite = torch.isfinite(reduced)
        lengths = torch.where(lengths < _SMALL, _norms(rows, _FAR) / _FAR, lengths)
        lengths = torch.where(lengths > _LARGE, reduced * _FAR, lengths)
    if ((lengths >= limits.tiny) & (lengths <= limits.max)).all():
        return lengths

    def refuse(wrong: Tensor, message: str) -> None:
        if wrong.any():
            first = int(wrong.to(torch.uint8).argmax())
            row = f"row {start + first} of {name}"
            raise ValueError(message.format(row=row, length=float(lengths[first])))

    refuse(~finite, "{row} has NaN or infinite values: drop or repair it")
    refuse(lengths > limits.max, f"the norm of {{row}} overflows {limits.dtype}: scale the row down")
    if not allow_zeros:
        refuse(lengths == 0, "{row} has only zeros, so it has no direction: remove it")
    refuse(
        (lengths > 0) & (lengths < limits.tiny),
        f"the norm of {{row}}, {{length:g}}, underflows {limits.dtype}: scale the row up",
    )
    return lengths


def _norms(rows: Any, factor: float = 1.0) -> Tensor:
    """Return the norms of the rows of a tensor or a SciPy sparse array, times ``factor``, in float64."""
    if isinstance(rows, Tensor):
        if factor != 1 or not rows.is_floating_point():
            rows = rows.double() * factor
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.sqrt((rows.astype(np.float64) * factor).power(2).sum(1)))


def shared_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor that shares the memory of ``array`` where torch can. It must not be written to."""
    if any(stride < 0 or math.fmod(stride, array.itemsize) for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)
