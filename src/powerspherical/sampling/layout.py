"""Memory layout of the parameters for kernels that read them by pointer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def directions(loc: Tensor, shape: Sequence[int]) -> Tensor:
    """Return m contiguous directions (…, d), such that row r of the batch shape ``shape`` has direction r mod m.

    These are the directions of ``loc`` if its batch shape, without leading axes of size 1, is a suffix of ``shape``.
    Otherwise ``loc`` is expanded to one direction per row.
    """
    batch = loc.shape[:-1]
    if batch != shape:
        while batch and batch[0] == 1:
            batch = batch[1:]
        if tuple(batch) != tuple(shape)[len(shape) - len(batch) :]:
            loc = loc.expand(*shape, -1)
    return loc.contiguous()


def concentrations(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Return contiguous concentrations: one per row of the batch shape ``shape``, or a single one for all rows."""
    if concentration.numel() > 1 and concentration.shape != shape:
        concentration = concentration.expand(shape)
    return concentration.contiguous()
