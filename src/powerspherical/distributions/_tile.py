"""How the fused kernels see an argument that broadcasts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Tile(NamedTuple):
    """How an argument repeats over the rows of the result: row r has the argument's row (r // inner) % count."""

    inner: int
    count: int  # type: ignore[assignment]  # tuples have a method of this name

    @staticmethod
    def of(shape: torch.Size, result: torch.Size) -> Tile | None:
        """The tile of a batch shape, or None if the axes it broadcasts lie between axes it does not."""
        padded = (1,) * (len(result) - len(shape)) + tuple(shape)
        own = [axis for axis, size in enumerate(padded) if size > 1]
        if not own:
            return Tile(result.numel(), 1)
        first, end = own[0], own[-1] + 1
        if padded[first:end] != tuple(result[first:end]):
            return None
        return Tile(math.prod(result[end:]), math.prod(padded))

    def add_up(self, rows: Tensor, like: Tensor) -> Tensor:
        """Sum an array with one entry per row of the result over the rows that share an entry of ``like``."""
        if rows.shape == like.shape:
            return rows
        event = rows.shape[1:]
        return rows.view(-1, self.count, self.inner, *event).sum((0, 2)).to(like.dtype).view(like.shape)


def tiles(
    x: torch.Size, loc: torch.Size, kappa: torch.Size
) -> tuple[torch.Size, tuple[Tile, Tile, Tile]] | None:
    """Return the batch shape of the result and the tiles of the arguments, or None if the kernels do not serve them.

    Args:
        x, loc: shapes (…, d).
        kappa: a batch shape.
    """
    shape = torch.broadcast_shapes(x[:-1], loc[:-1], kappa)
    found = Tile.of(x[:-1], shape), Tile.of(loc[:-1], shape), Tile.of(kappa, shape)
    if shape.numel() == 0 or x[-1] != loc[-1] or any(tile is None for tile in found):
        return None
    return shape, found  # type: ignore[return-value]
