"""Vectors from the user as unit rows of a NumPy array."""

from typing import Any

import numpy as np
from torch import Tensor

from powerspherical._torch.rows import row_lengths
from powerspherical.plot._style import Array


def unit_rows(x: Any, dim: int | None = None) -> Array:
    """Return vectors (n, d), from an array or a tensor on any device, normalised and in float64.

    Raises `ValueError` unless the shape is right and all rows are finite and not zero. `dim` is the required d.
    """
    if isinstance(x, Tensor):
        x = x.detach().cpu().double()
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] < 2 or (dim is not None and rows.shape[1] != dim):
        raise ValueError(f"points must have the shape (n, {dim or 'd'}), n ≥ 1, got {rows.shape}")
    return rows / row_lengths(rows, "the points").unsqueeze(1).numpy()
