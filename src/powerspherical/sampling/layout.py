"""How parameters lie in memory for kernels that read them by pointer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def directions(loc: Tensor, shape: Sequence[int]) -> Tensor:
    """The m directions for rows of shape ``shape``, contiguous, such that row r has direction r mod m.

    Directions that the rows share as a whole stay as they are; otherwise each row gets its own.
    """
    batch = loc.shape[:-1]
    if batch != shape:
        while batch and batch[0] == 1:
            batch = batch[1:]
        if tuple(batch) != tuple(shape)[len(shape) - len(batch) :]:
            loc = loc.expand(*shape, -1)
    return loc.contiguous()


def concentrations(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """The concentration of each row, or the one that all rows share; contiguous."""
    if concentration.numel() > 1 and concentration.shape != shape:
        concentration = concentration.expand(shape)
    return concentration.contiguous()
