"""Log-densities and cosines of rows of unit vectors with the C library, in float32: one call forward and one backward.

``_native/c/density.h`` has the arithmetic. Rows of half precision are normalised in float32 first.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._native import library
from powerspherical._torch.memory import address, empty, readable
from powerspherical.distributions._tile import Tile, tiles
from powerspherical.sampling import native
from powerspherical.sampling.precision import unit_vectors_as
from powerspherical.special.gamma import log_sphere_area

_FORMS = {**native.FAMILIES, "ends": 3}

#: ``density_call`` in c/call.h: what changes from call to call, and what depends on the shapes alone.
_POINTERS = struct.Struct("12P2q").pack
_SIZES = struct.Struct("10qd").pack


def _run(name: str, call: bytes) -> None:
    if not library.function(name)(call):
        raise MemoryError("not enough memory for the gradients of shared directions")


def _units(vectors: Tensor) -> Tensor:
    return readable(unit_vectors_as(vectors, torch.float32))


class Plan(NamedTuple):
    """How to compute one of the forms for arguments of given shapes, see ``_fused.Plan``."""

    ends_only: bool
    shape: tuple[int, ...]
    dim: int
    tiles: tuple[Tile, Tile, Tile]  # of x, loc and kappa
    directions: int  # rows of the gradient in loc
    sizes: bytes

    def forward(
        self, x: Tensor, loc: Tensor, kappa: Tensor, offset: Tensor, *, needs_ends: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, loc = _units(x), _units(loc)
        value, minus, plus = self._results(x, self.ends_only or needs_ends)
        # The values do not depend on the mean of T, which takes the last place.
        scalars = [] if self.ends_only else [readable(tensor) for tensor in (kappa, offset, offset)]
        pointers = [tensor.data_ptr() for tensor in (value, minus, plus, x, loc, *scalars)]
        pointers += [0] * (12 - len(pointers))
        _run("density", _POINTERS(*pointers, 0, self._threads()) + self.sizes)
        return value, minus, plus

    def _results(self, like: Tensor, needs_ends: bool) -> list[Tensor]:
        """Memory for the value, 1-t and 1+t. Those that are not needed are empty."""
        needed = not self.ends_only, needs_ends, needs_ends
        return [empty(like, self.shape if one else (0,), torch.float32) for one in needed]

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        loc: Tensor,
        kappa: Tensor,
        mean: Tensor,
        ends: tuple[Tensor, Tensor],
        needed: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        units, directions = _units(x), _units(loc)
        one_grad = not any(grad.stride())  # such as the gradient of a sum
        grad = readable(grad.as_strided((1,), (1,)) if one_grad else grad)
        rows = math.prod(self.shape)
        in_x = _empty(needed[0], units, rows, self.dim)
        in_loc = _empty(needed[1], directions, self.directions, self.dim)
        in_kappa = None
        scalars = [0, 0, 0]
        if not self.ends_only:
            kappa, mean = readable(kappa), readable(mean)
            in_kappa = _empty(needed[2], kappa, rows)
            scalars = [kappa.data_ptr(), kappa.data_ptr(), mean.data_ptr()]  # the offset is not used
        pointers = [tensor.data_ptr() for tensor in (*ends, units, directions)]
        pointers += [*scalars, grad.data_ptr(), address(in_x), address(in_loc), address(in_kappa)]
        _run("density_gradients", _POINTERS(0, *pointers, 0 if one_grad else 1, self._threads()) + self.sizes)
        return (
            None if in_x is None else _in_dtype(self.tiles[0].add_up(in_x, units), x),
            None if in_loc is None else _in_dtype(self.tiles[1].add_up(in_loc, directions), loc),
            None if in_kappa is None else self.tiles[2].add_up(in_kappa, kappa),
        )

    def _threads(self) -> int:
        return native.threads(math.prod(self.shape) * self.dim)


def _empty(needed: bool, like: Tensor, *shape: int) -> Tensor | None:
    """An empty tensor for a gradient, if it is needed: of the shape of ``like`` if it has as many numbers."""
    if not needed:
        return None
    return empty(like, tuple(like.shape) if math.prod(shape) == like.numel() else shape, torch.float32)


def _in_dtype(grad: Tensor, vectors: Tensor) -> Tensor:
    """From the gradient in unit vectors to that in vectors of half precision, which were normalised.

    The gradient is tangential, so normalising only scales it.
    """
    if vectors.dtype is torch.float32:
        return grad
    length = torch.linalg.vector_norm(vectors.to(torch.float32), dim=-1, keepdim=True)
    return grad.div_(length).to(vectors.dtype)


@functools.lru_cache(1024)
def plan(form: str, x: torch.Size, loc: torch.Size, kappa: torch.Size) -> Plan | None:
    """Return the plan for arguments of these shapes, or None if the library does not serve them."""
    found = tiles(x, loc, kappa)
    if found is None or form not in _FORMS:
        return None
    shape, (x_tile, loc_tile, kappa_tile) = found
    dim, rows = x[-1], shape.numel()
    # The library sums the gradients in loc if loc repeats as a whole; otherwise it writes them per row.
    directions = loc_tile.count if loc_tile.inner == 1 or loc_tile.count == 1 else rows
    numbers = rows, dim, directions, *x_tile, *loc_tile, *kappa_tile, _FORMS[form]
    sizes = _SIZES(*numbers, log_sphere_area(dim))
    return Plan(form == "ends", tuple(shape), dim, found[1], directions, sizes)
