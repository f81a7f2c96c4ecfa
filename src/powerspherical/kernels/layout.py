"""How kernels see tensors: memory that a pointer can read, and how arguments repeat over the rows of a result."""

from __future__ import annotations

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
    """Convert the gradient in ``unit_vectors_as(vectors, grad.dtype)`` to that in half-precision ``vectors``.

    The gradient is tangential, so normalising the vectors only scales it.
    """
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
        if rows.shape == like.shape:
            return rows
        return rows.view(-1, self.count, self.inner, *rows.shape[1:]).sum((0, 2)).view(like.shape)
