"""Rows in memory, seen block by block: NumPy arrays, SciPy's sparse arrays, tensors on any device.

An algorithm asks for three things: the sum of something over all blocks, something for each row, and a few rows. Any
other place for rows has to provide these three (``_dask`` is one).
"""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from threading import Lock
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from powerspherical.distributions.constraints import norm_rounding
from powerspherical.mixture._blocks import Block, Matrix, SparseMatrix, lengths, scaled
from powerspherical.sampling.precision import computing


class Additive(Protocol):
    """What can be summed over blocks."""

    def __add__(self, other: Self) -> Self: ...


Sum = TypeVar("Sum", bound=Additive)
Item = TypeVar("Item")
Result = TypeVar("Result")

#: Numbers in a block and in what is computed from it: on a CPU, what fits its cache.
_NUMBERS = {"cpu": 1 << 19, "cuda": 1 << 28}

#: The most blocks that a thread takes at a time, and the share of the remaining ones: one in so many.
_LARGEST, _SHARE = 8, 4


class Rows(ABC):
    """Rows to go through.

    Attributes:
        count: the number of rows n.
        dim: their length d.
        dtype: float32 or float64, in which a block is computed.
        device: where.
    """

    count: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def total(self, function: Callable[[Iterable[Block]], Sum], width: int) -> Sum:
        """The sum of ``function`` over all blocks, of which it is given a few at a time, to go through once.

        It makes ``width`` numbers of each row.
        """

    @abstractmethod
    def each(
        self,
        function: Callable[[Block], Tensor],
        width: int,
        *,
        columns: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """``function`` of the rows, which makes ``width`` numbers of each, as the user's kind.

        What it returns for b rows is of shape (b,) or (b, ``columns``), of ``dtype`` or else that of the rows.
        """

    @abstractmethod
    def take(self, indices: np.ndarray | None) -> tuple[Matrix, Tensor]:
        """The rows of these indices as unit vectors, and their weights, 0 for rows of zeros; None is all rows."""

    @abstractmethod
    def result(self, values: Tensor) -> Any:
        """Something of fixed size, as the user's kind of array."""


def unit_scale(rows: Matrix, start: int = 0) -> Tensor | None:
    """The factors that make unit vectors of rows, 0 for zero rows; None where all are unit vectors already.

    ``start`` is the index of the first row, for the message where one has no direction.
    """
    norms = lengths(rows)
    deviation = (norms - 1).abs().amax()
    if deviation <= norm_rounding(rows.dtype, rows.shape[1]):
        return None
    if not torch.isfinite(deviation):
        first = start + int(torch.argmin(torch.isfinite(norms).to(torch.uint8)))
        raise ValueError(
            f"X has NaN or infinite values, or is too long to be normalised, first in row {first}: drop or repair it"
        )
    zero = norms <= torch.finfo(rows.dtype).tiny
    return torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, norms)).to(rows.dtype)


def block_size(device: torch.device, numbers: int) -> int:
    """How many rows a block has, where so many ``numbers`` belong to each."""
    return min(max(_NUMBERS.get(device.type, 1 << 24) // numbers, 1 << 9), 1 << 20)


def summed(sums: Iterable[Sum]) -> Sum:
    """The sum of one or more."""
    return reduce(operator.add, sums)


class _Resident(Rows):
    """Rows in this process's memory, with one factor and one weight each.

    They may be some of many: ``start`` is the index of their first one, for what is said of a row.
    """

    scale: Tensor | None
    weight: Tensor | None

    #: Whether blocks are shared out among as many threads as torch would use.
    threaded = True

    @abstractmethod
    def _matrix(self, index: slice | np.ndarray) -> Matrix:
        """Some of the rows."""

    def _numbers(self) -> int:
        """How many numbers a row has."""
        return self.dim

    def _block(self, index: Any) -> Block:
        parts = (None if part is None else part[index] for part in (self.scale, self.weight))
        return Block(self._matrix(index), *parts)

    def _slices(self, width: int) -> list[slice]:
        size = block_size(self.device, self._numbers() + width)
        return [slice(start, start + size) for start in range(0, self.count, size)]

    def _map(
        self, function: Callable[[Iterable[Block]], Result], take: Callable[[Result], None], width: int
    ) -> None:
        """``take`` what ``function`` makes of a few blocks at a time, in order.

        On a CPU each thread has its own blocks, since within an operation on one block threads would mostly wait for
        each other. What is in a block, and the order of results, do not depend on the number of threads.
        """
        threads = torch.get_num_threads() if self.threaded and self.device.type == "cpu" else 1
        groups = grouped(self._slices(width))
        in_order(lambda group: function(map(self._block, group)), groups, take, threads)

    def _measure(self, start: int) -> Tensor | None:
        """The factors for all rows, once."""
        scales: list[Tensor] = []
        needed = False
        for part in self._slices(0):
            rows = self._matrix(part)
            scale = unit_scale(rows, start + part.start)
            needed = needed or scale is not None
            ones = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
            scales.append(ones if scale is None else scale)
        return torch.cat(scales) if needed else None

    def total(self, function: Callable[[Iterable[Block]], Sum], width: int) -> Sum:
        sums: list[Sum] = []  # all so far in one

        def add(one: Sum) -> None:
            sums[:] = [sums[0] + one] if sums else [one]

        self._map(function, add, width)
        return sums[0]

    def each(
        self,
        function: Callable[[Block], Tensor],
        width: int,
        *,
        columns: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        parts: list[Tensor] = []
        self._map(lambda blocks: [function(block) for block in blocks], parts.extend, width)
        return self.result(torch.cat(parts))

    def take(self, indices: np.ndarray | None) -> tuple[Matrix, Tensor]:
        rows, scale, weight = self._block(slice(None) if indices is None else indices)
        if weight is None:
            weight = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
        return scaled(rows, scale), weight if scale is None else weight * (scale > 0)


class TensorRows(_Resident):
    """Rows of a tensor; results are tensors beside it."""

    def __init__(self, rows: Tensor, weight: Tensor | None = None, start: int = 0) -> None:
        self._rows = rows.detach()
        self.count, self.dim = rows.shape
        self.dtype, self.device = computing(rows.dtype), rows.device
        self.scale = self._measure(start)
        self.weight = None if weight is None else weight.detach().to(self.device, self.dtype)

    def _matrix(self, index: slice | np.ndarray) -> Matrix:
        where = torch.from_numpy(index).to(self.device) if isinstance(index, np.ndarray) else index
        return self._rows[where].to(self.dtype)

    def result(self, values: Tensor) -> Any:
        return values


class ArrayRows(TensorRows):
    """Rows of a NumPy array, not copied; results are NumPy arrays."""

    def __init__(self, rows: np.ndarray, weight: np.ndarray | None = None, start: int = 0) -> None:
        super().__init__(shared(rows), None if weight is None else shared(weight), start)

    def result(self, values: Tensor) -> Any:
        return values.numpy()


class SparseRows(_Resident):
    """Rows of a SciPy CSR matrix, which stay sparse; results are NumPy arrays."""

    def __init__(self, rows: Any, weight: np.ndarray | None = None, start: int = 0) -> None:
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()  # the length of a row is not that of its entries where some are to be added up
        self._rows = SparseMatrix(rows)
        self.count, self.dim = self._rows.shape
        self.dtype, self.device = self._rows.dtype, self._rows.device
        self.scale = self._measure(start)
        self.weight = None if weight is None else shared(weight).to(self.dtype)

    def _numbers(self) -> int:
        return self._rows.rows.nnz // self.count + 1

    def _matrix(self, index: slice | np.ndarray) -> Matrix:
        return SparseMatrix(self._rows.rows[index])

    def result(self, values: Tensor) -> Any:
        return values.numpy()


def usable_weight(weight: Tensor, count: int) -> Tensor:
    """Weights for so many rows, once they are known to be right."""
    if weight.shape != (count,):
        raise ValueError(f"sample_weight must have the shape {(count,)}, got {tuple(weight.shape)}")
    if not ((weight >= 0) & torch.isfinite(weight)).all():
        raise ValueError("sample_weight must be finite and ≥ 0")
    return weight


def shared(array: np.ndarray) -> Tensor:
    """The tensor over an array's memory, which is only ever read."""
    array = np.ascontiguousarray(array)
    if min(array.strides, default=0) < 0:  # NumPy calls one row read backwards contiguous, torch refuses it
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def grouped(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Groups of items for ``in_order``: large ones first, since each group has a cost of its own, and single items at
    the end, so that the threads finish at about the same time.
    """
    groups, first = [], 0
    while first < len(items):
        size = min(max((len(items) - first) // _SHARE, 1), _LARGEST)
        groups.append(items[first : first + size])
        first += size
    return groups


def in_order(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    take: Callable[[Result], None],
    threads: int,
) -> None:
    """Call ``take`` with the results of ``function`` for the items, one at a time and in the order of the items.

    Worker threads pull items and hand results over in order, under a lock. Results wait only for earlier ones that are
    late. With several threads, torch uses one within each.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        for item in items:
            take(function(item))
        return
    remaining, lock = iter(enumerate(items)), Lock()
    ready: dict[int, Result] = {}
    taken, stopped = 0, False

    def work() -> None:
        nonlocal taken, stopped
        try:
            while not stopped:
                with lock:
                    step = next(remaining, None)
                if step is None:
                    return
                index, item = step
                result = function(item)
                with lock:
                    ready[index] = result
                    while taken in ready:
                        take(ready.pop(taken))
                        taken += 1
        except BaseException:
            stopped = True
            raise

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for worker in [pool.submit(work) for _ in range(threads)]:
                    worker.result()
            finally:
                stopped = True  # where this thread was interrupted, the others need not go on
    finally:
        torch.set_num_threads(before)  # the initializer also set what threads that start later begin with
