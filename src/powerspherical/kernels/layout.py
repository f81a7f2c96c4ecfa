"""How kernels see tensors: memory that a pointer can read, and how arguments repeat over the rows of a result."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


def readable(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor whose memory holds its values.

    Results of a forward pass need it too: hooks may have changed their strides. (The memory of a negative view has the
    other sign.)
    """
    # Asking takes less time than two operations that change nothing.
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.contiguous().resolve_neg()


def in_dtype_of(grad: Tensor, vectors: Tensor) -> Tensor:
    """Convert the gradient in ``unit_vectors_as(vectors, grad.dtype)`` to that in ``vectors``.

    The gradient is tangential, so normalising vectors in half precision only scales it.
    """
    if grad.dtype == vectors.dtype:
        return grad
    length = torch.linalg.vector_norm(vectors.to(grad.dtype), dim=-1, keepdim=True)
    return grad.div_(length).to(vectors.dtype)


class Tile(NamedTuple):
    """How an argument repeats over the rows of the result: row r has the argument's row (r // inner) % count."""

    inner: int
    count: int  # type: ignore[assignment]  # tuples have a method of this name

    @staticmethod
    def of(shape: tuple[int, ...], result: tuple[int, ...]) -> Tile | None:
        """Return the tile of a batch shape, or None if the axes it broadcasts lie between axes it does not.

        >>> Tile.of((3,), (2, 3)), Tile.of((2, 1), (2, 3)), Tile.of((2, 1, 3), (2, 5, 3))
        (Tile(inner=1, count=3), Tile(inner=3, count=2), None)
        """
        padded = (1,) * (len(result) - len(shape)) + tuple(shape)
        own = [axis for axis, size in enumerate(padded) if size > 1]
        if not own:
            return Tile(math.prod(result), 1)
        first, end = own[0], own[-1] + 1
        if padded[first:end] != tuple(result[first:end]):
            return None
        return Tile(math.prod(result[end:]), math.prod(padded))

    @property
    def cycles(self) -> bool:
        """Whether row r has the argument's row r mod count."""
        return self.inner == 1 or self.count == 1

    def add_up(self, rows: Tensor, like: Tensor) -> Tensor:
        """Sum an array with one entry per row of the result over the rows that share an entry of ``like``."""
        if rows.numel() == like.numel():
            return rows.view(like.shape)
        return rows.view(-1, self.count, self.inner, *rows.shape[1:]).sum((0, 2)).view(like.shape)


class DrawLayout(NamedTuple):
    """How the parameters of draws repeat over the rows of the result: row r has direction r mod m.

    Attributes:
        loc_shape, kappa_shape: shapes to which the directions and the concentrations must be expanded, or None.
        points: the shape of the points.
        directions: the shape of the m directions.
        sizes: the numbers of rows, coordinates and directions, and 1, or 0 if all rows share one κ.
    """

    loc_shape: tuple[int, ...] | None
    kappa_shape: tuple[int, ...] | None
    points: tuple[int, ...]
    directions: tuple[int, ...]
    sizes: tuple[int, int, int, int]

    @staticmethod
    @functools.lru_cache(1024)
    def of(shape: torch.Size, loc: torch.Size, kappa: torch.Size) -> DrawLayout:
        """Return the layout of draws of a batch shape, given the shapes of the parameters."""
        tile, points, count = Tile.of(loc[:-1], shape), (*shape, loc[-1]), kappa.numel()
        repeats = tile is not None and tile.cycles
        directions = tuple(loc) if repeats else points
        return DrawLayout(
            loc_shape=None if repeats else points,
            kappa_shape=None if count == 1 or kappa == shape else tuple(shape),
            points=points,
            directions=directions,
            sizes=(shape.numel(), loc[-1], math.prod(directions[:-1]), 0 if count == 1 else 1),
        )

    def expanded(self, loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        """Return the m directions, and one κ per row or one for all."""
        if self.loc_shape is not None:
            loc = loc.expand(self.loc_shape)
        return loc, kappa if self.kappa_shape is None else kappa.expand(self.kappa_shape)


class DensityLayout(NamedTuple):
    """How the arguments x, loc and kappa of a density repeat over the rows of the result.

    Attributes:
        shape: the shape of the values.
        tiles: of x, loc and kappa.
        results: shapes of the gradients in x, loc and kappa, as the C library writes them.
        is_direct: whether these are the shapes of the arguments.
        sizes: the numbers of rows, coordinates and directions, and the tiles.
    """

    shape: tuple[int, ...]
    tiles: tuple[Tile, Tile, Tile]
    results: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    is_direct: bool
    sizes: tuple[int, ...]

    @staticmethod
    @functools.lru_cache(1024)
    def of(x: torch.Size, loc: torch.Size, kappa: torch.Size) -> DensityLayout | None:
        """Return the layout of arguments of these shapes, or None if no kernel serves them."""
        shape = torch.broadcast_shapes(x[:-1], loc[:-1], kappa)
        x_tile, loc_tile, kappa_tile = Tile.of(x[:-1], shape), Tile.of(loc[:-1], shape), Tile.of(kappa, shape)
        rows, dim = shape.numel(), x[-1]
        if rows == 0 or dim != loc[-1] or x_tile is None or loc_tile is None or kappa_tile is None:
            return None
        directions = loc_tile.count if loc_tile.cycles else rows
        results = (
            tuple(x) if x_tile.count == rows else (rows, dim),
            tuple(loc) if loc_tile.count == directions else (rows, dim),
            tuple(kappa) if kappa_tile.count == rows else (rows,),
        )
        sizes = rows, dim, directions, *x_tile, *loc_tile, *kappa_tile
        is_direct = results == (x, loc, kappa)
        return DensityLayout(tuple(shape), (x_tile, loc_tile, kappa_tile), results, is_direct, sizes)
