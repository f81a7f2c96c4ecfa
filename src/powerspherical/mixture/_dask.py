"""Rows of a Dask array: each block is processed where it lies, and only sums travel.

A sum is one task graph, computed by the active scheduler. If a worker is lost, its blocks are recomputed from the
array's own graph. So the array should come from a file or a formula, not from data scattered to the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import dask.array
import numpy as np
import scipy.sparse
import torch
from dask.base import compute
from dask.delayed import delayed
from torch import Tensor

from powerspherical.mixture._rows import Block, Rows, RowsInMemory, Sum, Task, summed, weight_unit

_FAN_IN = 8  # partial sums that one task adds


class DaskRows(Rows):
    """Rows of a Dask array (n, d) with NumPy or sparse blocks. Weights (n,) are a Dask or a NumPy array.

    Results per row are lazy Dask arrays; all others are NumPy arrays.
    """

    def __init__(self, rows: Any, weight: Any = None) -> None:
        if rows.dtype == np.float16:
            rows = rows.astype(np.float32)
        if rows.dtype not in (np.float32, np.float64):
            raise ValueError(f"X must be a Dask array of float32 or float64, got {rows.dtype}: use X.astype")
        if rows.numblocks[1] > 1:
            rows = rows.rechunk({1: -1})
        self._rows = rows = _sized(rows)
        self._lengths = rows.chunks[0]
        self.count, self.dim = rows.shape
        self.numbers_per_row = self.dim if isinstance(rows._meta, np.ndarray) else 1
        self.dtype, self.device = torch.from_numpy(np.empty(0, rows.dtype)).dtype, torch.device("cpu")
        self._weights: list[Any] = [None] * len(self._lengths)
        if weight is not None:
            lazy = isinstance(weight, dask.array.Array)
            weight = _sized(weight) if lazy else dask.array.from_array(np.asarray(weight))
            if weight.shape != (self.count,):
                raise ValueError(f"sample_weight must have the shape {(self.count,)}, got {weight.shape}")
            self.weight_unit = weight_unit(*compute(weight.min(), weight.max()))
            weight = (weight / self.weight_unit).rechunk((self._lengths,))
            self._weights = weight.to_delayed().tolist()

    def total(self, function: Callable[[Iterable[Block]], Sum], width: int) -> Sum:
        call, once = delayed(_call, pure=False), delayed(function, pure=False, traverse=False)
        sums = [call("total", rows, weight, start, once, width) for rows, weight, start, _ in self._parts()]
        add = delayed(summed, pure=False)
        while len(sums) > 1:
            sums = [add(sums[first : first + _FAN_IN]) for first in range(0, len(sums), _FAN_IN)]
        return sums[0].compute()

    def each(self, function: Task, width: int) -> Any:
        none = function(Block(torch.empty(0, self.dim, dtype=self.dtype))).numpy()
        shape: Any = {"chunks": (self._lengths, none.shape[1:])} if none.ndim == 2 else {"drop_axis": 1}
        return self._rows.map_blocks(_each, function, width, none, dtype=none.dtype, meta=none, **shape)

    def take(self, indices: np.ndarray | None) -> Block:
        call, tasks = delayed(_call, pure=False), []
        for rows, weight, start, stop in self._parts():
            inside = None if indices is None else indices[(indices >= start) & (indices < stop)] - start
            if inside is None or len(inside):
                tasks.append(call("take", rows, weight, start, inside))
        rows, scales, weights = zip(*compute(*tasks), strict=True)
        matrix = torch.cat(rows) if isinstance(rows[0], Tensor) else scipy.sparse.vstack(rows, "csr")
        ones = (torch.ones(part.shape[0], dtype=self.dtype) for part in rows)
        scale = torch.cat([one if part is None else part for one, part in zip(ones, scales, strict=True)])
        return Block(matrix, scale, None if weights[0] is None else torch.cat(weights))

    def _parts(self) -> Iterator[tuple[Any, Any, int, int]]:
        """Yield the lazy rows and weights of each non-empty block, the index of its first row, and its end."""
        blocks, ends = self._rows.to_delayed().ravel(), accumulate(self._lengths)
        for rows, weight, length, end in zip(blocks, self._weights, self._lengths, ends, strict=True):
            if length:
                yield rows, weight, end - length, end


def _sized(array: Any) -> Any:
    """Return the array with known chunk sizes, computing them if necessary."""
    return array.copy().compute_chunk_sizes() if np.isnan(array.shape).any() else array


def _call(method: str, rows: Any, weight: np.ndarray | None, start: int, *arguments: Any) -> Any:
    """Call a method of ``Rows`` for one block."""
    return getattr(_in_memory(rows, weight, start), method)(*arguments)


def _each(rows: Any, function: Task, width: int, none: np.ndarray, block_info: Any = None) -> np.ndarray:
    if not rows.shape[0]:
        return none
    (start, _), *_ = block_info[0]["array-location"]
    return _in_memory(rows, None, start).each(function, width)


def _in_memory(rows: Any, weight: np.ndarray | None, start: int) -> RowsInMemory:
    """Wrap a NumPy or SciPy block whose first row has the index ``start``."""
    rows = rows if isinstance(rows, np.ndarray) else rows.tocsr()
    block = RowsInMemory(rows, None if weight is None else torch.from_numpy(weight), start=start)
    block.threaded = False  # the scheduler has its own threads or processes
    return block
