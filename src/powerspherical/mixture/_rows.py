"""Rows of data, processed in blocks: NumPy arrays, SciPy sparse matrices, and tensors on any device.

An algorithm needs three operations: a sum over all blocks, a result for each row, and some rows by index. Results for k
directions and b rows are (k, b) matrices, because matrix products and sums over components are fastest in that layout.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import reduce
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from typing_extensions import Self

from powerspherical import engines
from powerspherical._torch.rows import row_lengths, shared_tensor

Sum = TypeVar("Sum")  # what ``+`` can add up over blocks
Item = TypeVar("Item")
Result = TypeVar("Result")
Task = Callable[["Block"], Tensor]

#: Numbers in a block and its results together. On a CPU they should fit the cache.
_NUMBERS_PER_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 28}

#: A group has this fraction of the remaining blocks, but at most ``_LARGEST_GROUP`` blocks.
_SHARE_PER_GROUP, _LARGEST_GROUP = 1 / 4, 8

#: Up to this many rows are summed in float32, which is faster. Beyond, rounding would show.
_FEW_ROWS = 4096

Matrix: TypeAlias = "Tensor | scipy.sparse.csr_array"


def selected(rows: Matrix, index: slice | Tensor) -> Matrix:
    """Return the rows with these indices."""
    return rows[index] if isinstance(rows, Tensor) or isinstance(index, slice) else rows[index.numpy()]


class Block(NamedTuple):
    """A block of b rows. None stands for ones."""

    rows: Matrix  # (b, d)
    scale: Tensor | None = None  # factors that normalise the rows, (b,); 0 for a row of zeros
    weight: Tensor | None = None  # (b,)

    def weighted_sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` (b,) times the weights, in float64."""
        return (values if self.weight is None else values * self.weight).sum(dtype=torch.float64)

    def weighted_scale(self) -> Tensor | None:
        """Return the product of scale and weight, (b,)."""
        if self.scale is None or self.weight is None:
            return self.weight if self.scale is None else self.scale
        return self.scale * self.weight

    def add_by_label_(self, sums: Tensor, labels: Tensor) -> None:
        """Add weighted unit vectors to the rows of the float64 (k, d) ``sums`` that their labels name, on a CPU."""
        factors = self.weighted_scale()
        if not isinstance(self.rows, Tensor):
            values = np.ones(len(labels)) if factors is None else factors.double().numpy()
            members = values, (labels.numpy(), np.arange(len(labels)))
            shape = len(sums), len(labels)
            sums += torch.from_numpy((scipy.sparse.csr_array(members, shape) @ self.rows).toarray())
            return
        rows = self.rows if factors is None else self.rows * factors.unsqueeze(1)
        if len(rows) > _FEW_ROWS:
            sums.index_add_(0, labels, rows.double())
        else:
            sums += torch.zeros_like(sums, dtype=rows.dtype).index_add_(0, labels, rows)

    def cosines(self, directions: Tensor) -> Tensor:
        """Return the cosines of (k, d) ``directions``, in the rows' dtype, with the rows, (k, b); 0 for zero rows."""
        if isinstance(self.rows, Tensor):
            found = torch.mm(directions, self.rows.T)
        else:
            found = torch.from_numpy(self.rows @ directions.numpy().T).T.contiguous()
        return found if self.scale is None else found.mul_(self.scale)

    def unit_rows(self, index: Tensor) -> Tensor:
        """Return the rows with these indices as unit vectors, (m, d). Rows of zeros stay zeros."""
        rows = selected(self.rows, index)
        rows = rows if isinstance(rows, Tensor) else torch.from_numpy(rows.toarray())
        return rows if self.scale is None else rows * self.scale[index].unsqueeze(1)

    def sums(self, shares: Tensor) -> Tensor:
        """Return k sums of the unit vectors of the block, weighted by ``shares`` (k, b), which are overwritten."""
        if self.scale is not None:
            shares.mul_(self.scale)
        if isinstance(self.rows, Tensor):
            return torch.mm(shares, self.rows).double()
        return torch.from_numpy((self.rows.T @ shares.numpy().T).T).double()


def argmax_(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of each column of (k, b) ``values``, which are overwritten, and its first index, both (b,).

    This takes a quarter of the time of ``values.max(0)``: on a CPU, torch vectorises comparisons but not ``max``.
    """
    largest = values.amax(0)
    count = len(values)
    indices = torch.arange(count, dtype=values.dtype, device=values.device).unsqueeze(1)
    # Adding k to every index but those of the maximum leaves the first of these as the smallest.
    return largest, torch.add(indices, values.lt_(largest), alpha=count, out=values).amin(0).long()


def block_size(device: torch.device, numbers: int) -> int:
    """Return the number of rows per block. ``numbers`` counts the numbers in one row and its results."""
    rows = min(max(_NUMBERS_PER_BLOCK.get(device.type, 1 << 24) // numbers, 1 << 9), 1 << 20)
    return max(engines.block_size(rows * numbers) // numbers, 1)


class Sums(ABC):
    """Base of dataclasses of float64 tensors that are sums over rows. As text they show their objective."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(operator.add, vars(self).values(), vars(other).values()))

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to each tensor."""
        return type(self)(*map(function, vars(self).values()))

    @abstractmethod
    def objective(self) -> float:
        """Return what steps should raise, a mean over rows."""


def summed(sums: Iterable[Sum]) -> Sum:
    """Return the sum of one or more values."""
    return reduce(operator.add, sums)


class Rows(ABC):
    """Rows that can be processed in blocks."""

    count: int  # the number of rows n
    dim: int  # the number of columns d
    numbers_per_row: int  # d, or for sparse rows how many are not zero, about
    dtype: torch.dtype  # float32 or float64, in which blocks are computed
    device: torch.device
    weight_unit: float = 1.0  # what weights in blocks have to be multiplied with to be the user's

    @abstractmethod
    def total(self, function: Callable[[Iterable[Block]], Sum], width: int) -> Sum:
        """Return the sum of ``function`` over groups of blocks. It computes ``width`` numbers for each row."""

    @abstractmethod
    def each(self, function: Task, width: int) -> Any:
        """Return the results of ``function``, (b,) or (b, m), for all rows, as the user's kind of array.

        ``function`` computes ``width`` numbers for each row.
        """

    @abstractmethod
    def take(self, indices: np.ndarray | None) -> Block:
        """Return the rows with these indices; None is all, without a copy of rows in memory."""

    def to_user_array(self, values: Tensor) -> Any:
        """Return fitted ``values`` as the user's kind of array."""
        return values.numpy()


class RowsInMemory(Rows):
    """Rows (n, d) of a tensor, a NumPy array or a SciPy CSR matrix. Only blocks are copied, where needed.

    ``weight`` (n,) is the user's over ``weight_unit``. Error messages give the first row the index ``start``.
    """

    #: Whether blocks are processed by as many threads as torch would use.
    threaded = True

    def __init__(
        self, rows: Any, weight: Tensor | None = None, weight_unit: float = 1.0, start: int = 0
    ) -> None:
        self.count, self.dim = rows.shape
        self.weight_unit, self.numbers_per_row = weight_unit, self.dim
        self._gives_tensors = isinstance(rows, Tensor)
        if isinstance(rows, np.ndarray | Tensor):
            self._rows: Matrix = rows.detach() if isinstance(rows, Tensor) else shared_tensor(rows)
            self.device, kind = self._rows.device, self._rows.dtype
        else:
            self._rows = rows = scipy.sparse.csr_array(rows, copy=not rows.has_canonical_format)
            rows.sum_duplicates()  # the norm of a row needs its entries added up
            self.device, kind = torch.device("cpu"), torch.from_numpy(rows.data[:0]).dtype
            self.numbers_per_row = rows.nnz // self.count + 1
        # Half precision is computed in float32, integers in float64.
        self.dtype = torch.promote_types(kind, torch.float32) if kind.is_floating_point else torch.float64
        self.scale = self._unit_scale(start)
        self.weight = None if weight is None else weight.to(self.device, self.dtype)

    def _block(self, index: slice | Tensor) -> Block:
        parts = (None if part is None else part[index] for part in (self.scale, self.weight))
        return Block(self._matrix(index), *parts)

    def _matrix(self, index: slice | Tensor) -> Matrix:
        rows = selected(self._rows, index)
        # The user's may be in Fortran order.
        return rows.to(self.dtype).contiguous() if isinstance(rows, Tensor) else rows

    def _slices(self, width: int) -> list[slice]:
        size = block_size(self.device, self.numbers_per_row + width)
        return [slice(start, start + size) for start in range(0, self.count, size)]

    def _map(self, function: Callable[[Iterable[Block]], Result], width: int) -> closing[Generator[Result]]:
        """Return the results of ``function`` for groups of blocks, in order, whatever the number of threads.

        On a CPU each thread has its own blocks: threads that share an operation mostly wait for each other.
        """
        threads = torch.get_num_threads() if self.threaded and self.device.type == "cpu" else 1
        groups = grouped(self._slices(width))
        return closing(in_order(lambda group: function(map(self._block, group)), groups, threads))

    def _unit_scale(self, start: int) -> Tensor | None:
        """Return the factors (n,) that normalise the rows, 0 for rows of zeros; None if all are unit vectors."""
        scale, needed = torch.ones(self.count, dtype=self.dtype, device=self.device), False
        rounding = 4 * torch.finfo(self.dtype).eps * self.dim**0.5
        for part in self._slices(0):
            lengths = row_lengths(self._matrix(part), start=start + part.start, allow_zeros=True)
            if (lengths - 1).abs().amax() > rounding:
                scale[part], needed = torch.where(lengths > 0, 1 / lengths, 0.0).to(self.dtype), True
        return scale if needed else None

    def total(self, function: Callable[[Iterable[Block]], Sum], width: int) -> Sum:
        with self._map(function, width) as sums:
            return summed(sums)

    def each(self, function: Task, width: int) -> Any:
        with self._map(lambda blocks: [function(block) for block in blocks], width) as groups:
            return self.to_user_array(torch.cat([part for group in groups for part in group]))

    def take(self, indices: np.ndarray | None) -> Block:
        return self._block(slice(None) if indices is None else torch.from_numpy(indices))

    def to_user_array(self, values: Tensor) -> Any:
        return values if self._gives_tensors else super().to_user_array(values)


def weight_unit(smallest: Any, largest: Any) -> float:
    """Return the power of two for which the largest weight is in [1, 2): sums of such weights do not overflow."""
    for value in (float(smallest), float(largest)):
        if not 0 <= value < math.inf:
            raise ValueError(f"sample_weight must be finite and ≥ 0, got {value:g}")
    if not largest > 0:
        raise ValueError("sample_weight must have a positive sum: all weights are zero")
    return 2.0 ** (math.frexp(float(largest))[1] - 1)


def grouped(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Split items into groups for ``in_order``.

    Large groups come first, because each has a fixed cost. Single items come last, so that threads finish together.
    """
    groups, first = [], 0
    while first < len(items):
        size = min(max(int((len(items) - first) * _SHARE_PER_GROUP), 1), _LARGEST_GROUP)
        groups.append(items[first : first + size])
        first += size
    return groups


def in_order(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Generator[Result]:
    """Yield the results of ``function`` in the order of the items. Closing the generator cancels the remaining ones.

    If there are several threads, torch uses one thread in each, and in the caller.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        yield from map(function, items)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(function, items)
    finally:
        torch.set_num_threads(before)  # also for threads that start later
