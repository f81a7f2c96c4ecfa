"""Which draws the native library takes, and how they are passed to it.

It takes CPU tensors in float32, and in half precision by way of float32. float64 takes the composition in
``sampling.operator``, for which the library draws the normals.

A call passes pointers and sizes as one packed struct, because ctypes takes 0.1 µs per argument.
The interpreter lock is released while the kernel runs.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._native import library
from powerspherical._torch.memory import Dense, contiguous, empty_strided_cpu, readable
from powerspherical.sampling import layout
from powerspherical.sampling.precision import unit_vectors_as

if TYPE_CHECKING:
    from powerspherical.sampling.operator import Draws

#: The families that the library knows, as c/call.h numbers them.
FAMILIES = {"power_spherical": 0, "von_mises_fisher": 1, "spherical_cauchy": 2}

#: The fewest coordinates per thread, about 200 µs of work. With fewer, a thread would cost more time than it saves.
_PER_THREAD = 1 << 18

#: ``sphere_call`` in two parts, and ``normals_call``, in c/call.h.
_POINTERS = struct.Struct("10Pq").pack
_SIZES = struct.Struct("6q").pack
_NORMALS_CALL = struct.Struct("2P2q").pack


def covers(name: str, loc: Tensor, concentration: Tensor) -> bool:
    """Whether the library draws from the family of this name with these parameters."""
    return (
        concentration.dtype is torch.float32
        and concentration.is_cpu
        and loc.is_cpu
        and name in FAMILIES
        and library.usable()
    )


def _seed(generator: torch.Generator | None) -> Tensor:
    """One number from ``generator``, by default torch's: the key of the library's own generator, Philox."""
    seed = empty_strided_cpu((), (), torch.int64)
    if generator is None:
        return seed.random_()
    return seed.random_(generator=generator)


def threads(numbers: int) -> int:
    """The largest number of threads for a call that processes so many coordinates."""
    return library.threads(numbers, _PER_THREAD)


class _Plan(NamedTuple):
    """What the shapes of the arguments determine.

    Attributes:
        loc_shape, kappa_shape: shapes to which the directions and the concentrations must be expanded, or None.
        x, scalars, grad_loc, grad_kappa: layouts of the points, the scalars and the gradients. The gradient in the
            directions is that of the expanded ones.
        rows: number of points.
        numbers: number of their coordinates.
        sizes: the last part of the struct.
    """

    loc_shape: tuple[int, ...] | None
    kappa_shape: tuple[int, ...] | None
    x: Dense
    scalars: Dense
    grad_loc: Dense
    grad_kappa: Dense
    rows: int
    numbers: int
    sizes: bytes

    def arranged(self, loc: Tensor, concentration: Tensor) -> tuple[Tensor, Tensor]:
        """The directions, unit vectors in float32, and κ, in the order of rows that ``layout`` describes."""
        if loc.dtype is not torch.float32:
            loc = unit_vectors_as(loc, torch.float32)
        if self.loc_shape is not None:
            loc = loc.expand(self.loc_shape)
        if self.kappa_shape is not None:
            concentration = concentration.expand(self.kappa_shape)
        return readable(loc), readable(concentration)

    def packed(self, x: Tensor, scalars: Tensor | None, *pointers: int) -> bytes:
        """The struct for a call, given the pointers after those to x and the scalars. Unused ones are 0."""
        start, step = 0 if scalars is None else scalars.data_ptr(), 4 * self.rows
        # Without scalars, the library only looks whether the first of their three pointers is null.
        first = x.data_ptr(), start, start + step, start + 2 * step
        return _POINTERS(*first, *pointers, threads(self.numbers)) + self.sizes


@functools.lru_cache(1024)
def _plan(name: str, dim: int, loc_shape: torch.Size, kappa_shape: torch.Size, shape: torch.Size) -> _Plan:
    rows, width = shape.numel(), loc_shape[-1]
    points = (*shape, width)
    repeats = layout.repeats_over(loc_shape[:-1], shape)
    directions = tuple(loc_shape) if repeats else points
    kappa_step = 0 if kappa_shape.numel() == 1 else 1
    return _Plan(
        loc_shape=None if repeats else points,
        kappa_shape=tuple(shape) if layout.must_expand(kappa_shape, shape) else None,
        x=contiguous(points),
        scalars=contiguous((3, *shape)),
        grad_loc=contiguous(directions),
        grad_kappa=contiguous(tuple(shape)),
        rows=rows,
        numbers=rows * width,
        sizes=_SIZES(rows, width, math.prod(directions[:-1]), kappa_step, dim, FAMILIES[name]),
    )


def draw(
    name: str,
    loc: Tensor,
    concentration: Tensor,
    shape: torch.Size,
    dim: int,
    generator: torch.Generator | None,
    needs_scalars: bool,
) -> Draws:
    """Run the operator ``draw`` of ``sampling.operator``. Scalars that are not needed are None."""
    plan = _plan(name, dim, loc.shape, concentration.shape, shape)
    seed = _seed(generator)  # a variable, so that it lives until the call returns
    directions, kappa = plan.arranged(loc, concentration)
    x = empty_strided_cpu(*plan.x, torch.float32)
    scalars = empty_strided_cpu(*plan.scalars, torch.float32) if needs_scalars else None
    pointers = directions.data_ptr(), kappa.data_ptr(), seed.data_ptr(), 0, 0, 0
    library.function("draw")(plan.packed(x, scalars, *pointers))
    return x if loc.dtype is torch.float32 else x.to(loc.dtype), scalars


def pull_back(
    name: str,
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    concentration: Tensor,
    dim: int,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in ``loc``, in its shape, and in κ, of each row, where they are needed.

    x and the scalars are contiguous, as ``draw`` made them.
    """
    shape = scalars.shape[1:]
    plan = _plan(name, dim, loc.shape, concentration.shape, shape)
    directions, kappa = plan.arranged(loc, concentration)
    if x.dtype is not torch.float32:
        grad, x = grad.to(torch.float32), x.to(torch.float32)
    grad = readable(grad)
    grad_loc = grad_kappa = None
    in_loc = in_kappa = 0
    if needs_loc:
        grad_loc = empty_strided_cpu(*plan.grad_loc, torch.float32)
        in_loc = grad_loc.data_ptr()
    if needs_concentration:
        grad_kappa = empty_strided_cpu(*plan.grad_kappa, torch.float32)
        in_kappa = grad_kappa.data_ptr()
    pointers = directions.data_ptr(), kappa.data_ptr(), 0, grad.data_ptr(), in_loc, in_kappa
    if not library.function("pull_back")(plan.packed(x, scalars, *pointers)):
        raise MemoryError("not enough memory for the gradients of shared directions")
    if grad_loc is not None:
        if plan.loc_shape is not None:
            grad_loc = grad_loc.sum_to_size(loc.shape)
        if loc.dtype is not torch.float32:  # the gradient is tangential: normalising loc only scales it
            length = torch.linalg.vector_norm(loc.to(torch.float32), dim=-1, keepdim=True)
            grad_loc = grad_loc.div_(length).to(loc.dtype)
    return grad_loc, grad_kappa


def standard_normals(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw standard normals of the given shape, contiguous, with the dtype and device of ``like``.

    float64 on the CPU takes the library, if there is one, and anything else ``torch.randn``. The tensors are real ones:
    call it from the implementation of an operator, not under a transform or a tracer.
    """
    if like.dtype is not torch.float64 or not like.is_cpu or not library.usable():
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    out = empty_strided_cpu(*contiguous(tuple(shape)), torch.float64)
    count = out.numel()
    seed = _seed(generator)
    # A normal takes about twice as long in float64.
    library.function("normals")(_NORMALS_CALL(out.data_ptr(), seed.data_ptr(), count, threads(2 * count)))
    return out
