"""Rows of a Dask array: each of its blocks is gone through where it lies, and only sums travel.

A sum is one graph of tasks, computed by whatever scheduler is in force: threads, processes, or a cluster. A block
that is lost with its worker is made again from the array's own graph, so the array should come from something that can
be read or computed again, a file or a formula, not from data that were scattered to the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array
import numpy as np
import torch
from dask.base import compute
from dask.delayed import delayed
from torch import Tensor

from powerspherical.mixture._families import Block
from powerspherical.mixture._rows import ArrayRows, Rows, Sum, shared, summed, usable_weight

_FAN_IN = 8  # sums that one task adds up


class DaskRows(Rows):
    """Rows of a Dask array (n, d), and weights (n,), a Dask or a NumPy array.

    What there is for each row stays a Dask array, not yet computed; the rest is NumPy's.
    """

    def __init__(self, rows: Any, weight: Any = None) -> None:
        if rows.dtype not in (np.float32, np.float64):
            raise ValueError(f"X must be a Dask array of float32 or float64, got {rows.dtype}: use X.astype")
        if rows.numblocks[1] > 1:
            rows = rows.rechunk({1: -1})
        if any(np.isnan(rows.chunks[0])):
            rows = rows.copy().compute_chunk_sizes()
        self._rows = rows
        self._lengths = rows.chunks[0]
        self.count, self.dim = sum(self._lengths), rows.shape[1]
        self.dtype, self.device = shared(np.empty(0, rows.dtype)).dtype, torch.device("cpu")
        self._weights: list[Any] = [None] * len(self._lengths)
        if weight is not None:
            weight = dask.array.asarray(weight)
            if weight.shape != (self.count,):
                raise ValueError(f"sample_weight must have the shape {(self.count,)}, got {weight.shape}")
            self._weights = weight.rechunk((self._lengths,)).to_delayed().tolist()

    def total(self, function: Callable[[Block], Sum], width: int) -> Sum:
        task, once = delayed(_total, pure=False), delayed(function, pure=False, traverse=False)
        sums = [
            task(once, width, rows, weight)
            for rows, weight, length in zip(self._blocks(), self._weights, self._lengths, strict=True)
            if length
        ]
        add = delayed(summed, pure=False)
        while len(sums) > 1:
            sums = [add(sums[first : first + _FAN_IN]) for first in range(0, len(sums), _FAN_IN)]
        return sums[0].compute()

    def each(
        self,
        function: Callable[[Block], Tensor],
        width: int,
        *,
        columns: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        kind = torch.empty(0, dtype=dtype or self.dtype).numpy().dtype
        empty = np.empty(0 if columns is None else (0, columns), kind)
        shape: dict[str, Any] = (
            {"drop_axis": 1} if columns is None else {"chunks": (self._lengths, (columns,))}
        )
        return self._rows.map_blocks(_each, function, width, empty, dtype=kind, meta=empty, **shape)

    def take(self, indices: np.ndarray | None) -> tuple[Tensor, Tensor]:
        starts = np.concatenate([[0], np.cumsum(self._lengths)])
        task = delayed(_taken, pure=False)
        parts = []
        for rows, weight, start, stop in zip(
            self._blocks(), self._weights, starts[:-1], starts[1:], strict=True
        ):
            inside = None if indices is None else indices[(indices >= start) & (indices < stop)] - start
            if stop > start and (inside is None or len(inside)):
                parts.append(task(inside, rows, weight))
        rows_of, weights_of = zip(*compute(*parts), strict=True)
        return torch.cat(rows_of), torch.cat(weights_of)

    def result(self, values: Tensor) -> Any:
        return values.numpy()

    def _blocks(self) -> list[Any]:
        return self._rows.to_delayed().ravel().tolist()


def _total(function: Callable[[Block], Sum], width: int, rows: np.ndarray, weight: np.ndarray | None) -> Sum:
    return _checked(rows, weight).total(function, width)


def _taken(indices: np.ndarray | None, rows: np.ndarray, weight: np.ndarray | None) -> tuple[Tensor, Tensor]:
    return _checked(rows, weight).take(indices)


def _each(rows: np.ndarray, function: Callable[[Block], Tensor], width: int, empty: np.ndarray) -> np.ndarray:
    return _checked(rows, None).each(function, width) if len(rows) else empty


def _checked(rows: np.ndarray, weight: np.ndarray | None) -> ArrayRows:
    if weight is not None:
        usable_weight(shared(weight), len(rows))
    block = ArrayRows(rows, weight)
    block.threaded = False  # the scheduler has threads or processes of its own
    return block
