"""Tensors of features: which axis holds the entries of each position, and how spheres share them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.distributions import validation


def outputs_hint(dim: int) -> str:
    """Return the end of an error about features that should be (v, r) of each sphere."""
    return f"; each sphere takes {dim} entries for its direction and one for κ, unless you pass raw"


class Layout(NamedTuple):
    """The layout of features."""

    axis: int  # holds the entries of each position
    product: int  # number m of spheres in a product, or 0 for one sphere that is not a product

    @property
    def spheres(self) -> int:
        """The number of spheres."""
        return self.product or 1

    def axis_last(self, name: str, value: Tensor, entries: int, hint: str = "") -> Tensor:
        """Return ``value`` with the axis last, after a check of its entries. ``hint`` is appended to the error."""
        # For a small batch each call counts, so we call a check only if it is going to raise.
        if not isinstance(value, Tensor) or not value.is_floating_point():
            validation.floating_tensor(name, value)
        axis, axes = self.axis, value.dim()
        if not -axes <= axis < axes or value.shape[axis] != entries:
            number, shape = f"{entries} entries" if entries > 1 else "1 entry", tuple(value.shape)
            if entries > 1 and entries in shape:
                place = shape.index(entries)
                hint = f"; axis {place} has {number}: make the layer with axis={place}"
            raise ValueError(f"{name} must have {number} along axis {axis}, got the shape {shape}{hint}")
        return value if axis in (-1, axes - 1) else value.movedim(axis, -1)

    def per_sphere(self, name: str, value: Tensor, entries: int, hint: str = "") -> Tensor:
        """Return ``value`` in the shape (…, entries), or (…, m, entries), after a check of its entries."""
        return self.split(self.axis_last(name, value, self.spheres * entries, hint), entries)

    def split(self, entries: Tensor, per_sphere: int) -> Tensor:
        """Split the last axis into (m, entries per sphere) if there is a product."""
        return entries.unflatten(-1, (self.product, per_sphere)) if self.product else entries

    def merged(self, z: Tensor, features: Tensor) -> Tensor:
        """Return z, of shape (…, d) or (…, m, d), in the dtype and layout of the features. Contiguous if they are."""
        moved = self.axis not in (-1, features.dim() - 1)
        if self.product:
            z = z.flatten(-2)
        if moved:
            z = z.movedim(-1, self.axis)
        memory_format = torch.contiguous_format if features.is_contiguous() else torch.preserve_format
        # The result must not be a view: fully_shard loses its hooks if the caller changes a view in place.
        return z.to(features.dtype, copy=moved or self.product > 0, memory_format=memory_format)
