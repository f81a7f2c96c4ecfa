"""What the kernels of a bottleneck take, and what they keep of a draw for the backward pass."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.kernels.registry import Table

#: v counts as zero if no |vᵢ| exceeds this. The gradient of v/‖v‖ grows as 1/‖v‖.
SHORT = 1e-12


class Bounds(NamedTuple):
    """Bounds of κ, 0 ≤ minimum < maximum ≤ ∞."""

    minimum: float
    maximum: float

    @property
    def span(self) -> float:
        """The width of the interval."""
        return self.maximum - self.minimum


class Settings(NamedTuple):
    """The settings of a head that determine the distribution for its outputs.

    Attributes:
        family: name of the family, one of this package's.
        dim: d ≥ 2.
        bounds: bounds of κ.
    """

    family: str
    dim: int
    bounds: Bounds


#: Options of bottlenecks: the settings, the table of the rate as a function of κ, and the length and the dtype of z.
LatentsOptions = tuple[Settings, Table, float, torch.dtype]


def z_is_x(radius: float, dtype: torch.dtype) -> bool:
    """Whether z = radius·x equals x in float32, so that the backward pass can use z and x need not be kept."""
    return radius == 1 and dtype == torch.float32


def value_shapes(
    outputs: torch.Size, dim: int, radius: float, dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of z, of the rate and of the record, given the shape of the outputs."""
    *batch, _ = outputs
    return (*batch, dim), tuple(batch), (math.prod(batch) * (4 if z_is_x(radius, dtype) else dim + 4),)


def unpack_record(outputs: torch.Size, record: Tensor, z: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x in float32, and (1-t, 1+t, noise, dKL/dκ) of shape (4, …), from the record of a draw.

    The record is a single vector, because each tensor that is kept for the backward pass costs host time. It holds x,
    unless z is x and given here, and then the four numbers of all rows.
    """
    *batch, entries = outputs
    numbers = 4 * math.prod(batch)
    x = record[:-numbers].view(*batch, entries - 1) if z is None else z
    return x, record[-numbers:].view(4, *batch)
