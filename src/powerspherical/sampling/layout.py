"""Memory layout of the parameters for kernels that read them by pointer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from powerspherical._torch.memory import readable


def repeats_over(batch: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether row r of the batch shape ``shape`` has direction r mod m, given m directions of batch shape ``batch``.

    This holds if ``batch``, without leading axes of size 1, is a suffix of ``shape``.

    >>> repeats_over((1, 3), (2, 3)), repeats_over((), (2, 3)), repeats_over((2, 1), (2, 3))
    (True, True, False)
    """
    batch = tuple(batch)
    while batch and batch[0] == 1:
        batch = batch[1:]
    return batch == tuple(shape)[len(shape) - len(batch) :]


def must_expand(kappa_shape: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether concentrations must be expanded to ``shape``: there are several, but not one per row."""
    return math.prod(kappa_shape) > 1 and tuple(kappa_shape) != tuple(shape)


def directions(loc: Tensor, shape: Sequence[int]) -> Tensor:
    """Return m contiguous directions (…, d), such that row r of the batch shape ``shape`` has direction r mod m.

    These are the directions of ``loc`` if it ``repeats_over`` the rows. Otherwise it is expanded to one per row.
    """
    if not repeats_over(loc.shape[:-1], shape):
        loc = loc.expand(*shape, -1)
    return readable(loc)


def concentrations(concentration: Tensor, shape: Sequence[int]) -> Tensor:
    """Return contiguous concentrations: one per row of the batch shape ``shape``, or a single one for all rows."""
    if must_expand(concentration.shape, shape):
        concentration = concentration.expand(shape)
    return readable(concentration)
