"""Blocks of rows, and the few products that are taken with them.

Rows are a dense tensor or one of SciPy's sparse matrices, which stays sparse: rows of text have a hundred numbers in a
hundred thousand columns. What is computed for k directions and b rows is a matrix components × rows: both matrix
products are fastest so, and sums over components too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor


class SparseMatrix:
    """Rows (b, d) of SciPy's, with as much of a tensor's face as is needed here."""

    device = torch.device("cpu")
    is_cuda = False

    def __init__(self, rows: Any) -> None:
        self.rows = scipy.sparse.csr_array(rows)
        self.dtype = torch.from_numpy(np.empty(0, self.rows.dtype)).dtype
        self.shape: tuple[int, int] = self.rows.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Some rows, dense."""
        return torch.from_numpy(self.rows[indices.numpy()].toarray())


Matrix = Tensor | SparseMatrix

#: Rows that may be added up one after the other in float32, which is faster: of more, rounding would show.
_FEW = 4096


def products(directions: Tensor, rows: Matrix) -> Tensor:
    """The products of (k, d) ``directions`` with (b, d) rows, (k, b)."""
    if isinstance(rows, Tensor):
        return torch.mm(directions, rows.T)
    return torch.from_numpy(rows.rows @ directions.numpy().T).T.contiguous()


def weighted_sums(shares: Tensor, rows: Matrix) -> Tensor:
    """The sums over (b, d) rows, each times its column of (k, b) ``shares``, (k, d)."""
    if isinstance(rows, Tensor):
        return torch.mm(shares, rows)
    return torch.from_numpy((rows.rows.T @ shares.numpy().T).T)


def add_by_label_(sums: Tensor, labels: Tensor, rows: Matrix) -> None:
    """Add each of the (b, d) rows to that of the (k, d) sums, float64, which its label (b,) says; on a CPU."""
    if isinstance(rows, SparseMatrix):
        members = (np.ones(len(rows)), (labels.numpy(), np.arange(len(rows))))
        shape = len(sums), len(rows)
        sums += torch.from_numpy((scipy.sparse.csr_array(members, shape) @ rows.rows).toarray())
    elif len(rows) > _FEW:
        sums.index_add_(0, labels, rows.double())
    else:
        sums += torch.zeros_like(sums, dtype=rows.dtype).index_add_(0, labels, rows)


def scaled(rows: Matrix, factors: Tensor | None) -> Matrix:
    """The rows, each times its factor (b,); None is one."""
    if factors is None:
        return rows
    if isinstance(rows, Tensor):
        return rows * factors.unsqueeze(1)
    return SparseMatrix(rows.rows.multiply(factors.numpy()[:, None]))


def lengths(rows: Matrix) -> Tensor:
    """The lengths of the rows, (b,), float64."""
    if isinstance(rows, Tensor):
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return torch.from_numpy(rows.rows.astype(np.float64).power(2).sum(1)).sqrt()


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """The rows of several matrices of one kind, one after the other."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))  # type: ignore[arg-type]
    return SparseMatrix(scipy.sparse.vstack([part.rows for part in parts]))  # type: ignore[union-attr]


class Block(NamedTuple):
    """Rows of shape (b, d), the factors (b,) that make unit vectors of them, and their weights (b,); None is one."""

    rows: Matrix
    scale: Tensor | None = None
    weight: Tensor | None = None

    def total_weight(self) -> Tensor:
        """The sum of the weights, float64."""
        if self.weight is None:
            # Made on the device: a copy of the host's number would wait for all that is queued there.
            return torch.full((), float(len(self.rows)), dtype=torch.float64, device=self.rows.device)
        return self.weight.sum(dtype=torch.float64)

    def cosines(self, directions: Tensor) -> Tensor:
        """The cosines of (k, d) ``directions`` of the rows' dtype with the rows, (k, b); for a zero row they are 0."""
        found = products(directions, self.rows)
        return found if self.scale is None else found.mul_(self.scale)

    def sums(self, shares: Tensor) -> Tensor:
        """Σ shares · x over the unit vectors x of the block, for ``shares`` (k, b), which it may overwrite."""
        return weighted_sums(shares if self.scale is None else shares.mul_(self.scale), self.rows).double()


def places(directions: Tensor) -> Tensor:
    """The indices of (k, d) directions as a column of their dtype, for ``best_``."""
    return torch.arange(len(directions), dtype=directions.dtype, device=directions.device).unsqueeze(1)


def best_(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each column of (k, b) values, which it overwrites, and the first of the ``places`` where that is.

    It is ``values.max(0)`` in a quarter of the time: on the CPU, torch vectorises comparisons but not that.
    """
    largest = values.amax(0)
    # Other places come after all of those.
    return largest, torch.add(places, values.lt_(largest), alpha=len(values), out=values).amin(0).long()
