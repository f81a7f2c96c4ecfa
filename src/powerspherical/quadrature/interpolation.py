"""Interpolation of a smooth function that is expensive to evaluate.

The line is cut into cells of length 1. In each cell the function is replaced by the polynomial through its values at
Chebyshev nodes. For a function that is analytic within a distance of about π of the real line, the interpolation error
is below 1e-13 of its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant

_NODES = 13  # per cell
_BLOCK = 8  # cells
_LEAST_GAIN = 2  # how many times fewer nodes than arguments make an interpolation worthwhile


def _node_angles() -> list[float]:
    return [math.pi * (j + 0.5) / _NODES for j in range(_NODES)]


@tensor_constant
def _nodes() -> Numbers:
    """The Chebyshev nodes on [-1, 1]."""
    return [math.cos(angle) for angle in _node_angles()]


@tensor_constant
def _transform() -> Numbers:
    """The matrix that maps values at the nodes to coefficients of Chebyshev polynomials, the constant one first."""
    return [
        [(2 if degree else 1) / _NODES * math.cos(degree * angle) for angle in _node_angles()]
        for degree in range(_NODES)
    ]


class Cells(NamedTuple):
    """The cells number ``first``, …, ``last`` - 1. Cell j covers the interval from j to j + 1."""

    first: int
    last: int


def cells_around(x: Tensor) -> Cells | None:
    """Return cells that cover x, or None if their nodes are not far fewer than the entries of x. The host reads x.

    The numbers are multiples of ``_BLOCK``, so that similar arguments have the same cells.
    """
    if x.numel() < _BLOCK * _NODES * _LEAST_GAIN:
        return None
    low, high = (float(end) / _BLOCK for end in x.aminmax())
    if not math.isfinite(high - low):
        return None
    cells = Cells(_BLOCK * math.floor(low), _BLOCK * (math.floor(high) + 1))
    return cells if (cells.last - cells.first) * _NODES * _LEAST_GAIN <= x.numel() else None


def coefficients(function: Callable[[Tensor], Tensor], cells: Cells, like: Tensor) -> Tensor:
    """Return the Chebyshev coefficients of an elementwise function, of shape (degrees, cells)."""
    nodes = _centres(cells, like).unsqueeze(-1) + 0.5 * _nodes(like)
    return _transform(like) @ function(nodes.flatten()).view_as(nodes).t()


def interpolated(table: Tensor, cells: Cells, x: Tensor) -> Tensor:
    """Return the function with the ``coefficients`` table at x, which lies in the cells."""
    flat = x.flatten()
    cell = torch.floor(flat).long() - cells.first
    place = 2 * (flat - _centres(cells, x).index_select(0, cell))
    return _chebyshev_sum(table, cell, place).view_as(x)


def _centres(cells: Cells, like: Tensor) -> Tensor:
    return torch.arange(*cells, dtype=like.dtype, device=like.device) + 0.5


def _chebyshev_sum(table: Tensor, cell: Tensor, place: Tensor) -> Tensor:
    """Return Σ c_k T_k(place) with the coefficients c_k of each entry's cell, by Clenshaw's recurrence."""
    constant, *others = table.unbind()
    twice, sum_, next_sum = 2 * place, torch.zeros_like(place), torch.zeros_like(place)
    for row in reversed(others):
        sum_, next_sum = torch.addcmul(row.index_select(0, cell) - next_sum, twice, sum_), sum_
    return torch.addcmul(constant.index_select(0, cell) - next_sum, place, sum_)
