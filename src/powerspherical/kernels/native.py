"""Calls of the C library, for float32 and float64 on the CPU. ``c`` has the arithmetic, c/call.h the structs.

A call passes pointers and sizes as one packed struct, because ctypes takes 0.1 µs per argument. The interpreter lock is
released while a kernel runs. What the shapes of the arguments determine is computed once. Half precision passes through
float32.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.random import KeyedGenerator
from powerspherical._torch.vectors import computing
from powerspherical.kernels import library
from powerspherical.kernels.layout import Tile, in_dtype_of, readable, units
from powerspherical.kernels.record import SHORT, Settings, value_shapes, z_is_x
from powerspherical.kernels.registry import (
    NUMBERS,
    Gradients,
    HeadOptions,
    Table,
    Tensors,
    register,
    slope_times_gradient,
)

_SINGLE, _DOUBLE = torch.float32, torch.float64
_SIZES = {_SINGLE: 4, _DOUBLE: 8}
_HALVES = torch.float16, torch.bfloat16

#: The structs of c/call.h. The first field is the size of a number.
_CHECK = struct.Struct("q2P4q2dq").pack
_CURVE = struct.Struct("q4P4q2d").pack
_SPHERE = struct.Struct("q12P7q").pack
_DENSITY = struct.Struct("q12P12qd").pack
_HEAD = struct.Struct("q6P4q3d").pack
_LATENTS = struct.Struct("q" + "q6P4q3d" + "q12P7q" + "q4P4q2d" + "P").pack

#: The fewest numbers per thread: about 200 µs of work for coordinates, 100 µs for functions of κ. With fewer, a thread
#: would cost more time than it saves.
_COORDINATES, _VALUES = 1 << 18, 1 << 15


def _run(name: str, packed: bytes) -> None:
    if not library.function(name)(packed):
        raise MemoryError("not enough memory for the gradients of shared directions")


def _address(tensor: Tensor | None) -> int:
    """Return the address of the tensor's memory, or 0, which is C's null pointer."""
    return 0 if tensor is None else tensor.data_ptr()


# Checks


def check(vectors: Tensor, tolerance: float, numbers: Tensor | None, largest: float) -> bool:
    """Whether the norms of ``vectors`` (…, d) are one to within ``tolerance``, and ``numbers`` lie in [0, largest].

    ``numbers`` have the dtype of the vectors.
    """
    vectors = readable(vectors)
    dim, count = vectors.shape[-1], vectors.numel()
    values = None if numbers is None else readable(numbers)
    sizes = count // dim, dim, 0 if values is None else values.numel(), library.threads(count, _COORDINATES)
    pointers = _SIZES[vectors.dtype], vectors.data_ptr(), _address(values)
    return bool(library.function("check")(_CHECK(*pointers, *sizes, tolerance, largest, 0)))


register("check", "c", check, dtypes=(_SINGLE, _DOUBLE))


# Functions of κ


def curve(tensors: Tensors, tables: Sequence[Table], needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return a function of κ, and its derivative if it is needed. That may have a second, better table."""
    kappa = readable(tensors[0])
    if any(needed) and len(tables) > 1:
        return _curve(kappa, tables[0], None), (_curve(kappa, tables[1], None).masked_fill_(kappa < 0, 0.0),)
    slope = kappa.new_empty(kappa.shape) if any(needed) else None
    return _curve(kappa, tables[0], slope), () if slope is None else (slope,)


def _curve(kappa: Tensor, table: Table, slope: Tensor | None) -> Tensor:
    """Return a function of κ, and write its derivative to ``slope``."""
    rows, (first, gain, decay) = table
    value, count = kappa.new_empty(kappa.shape), kappa.numel()
    pointers = value.data_ptr(), _address(slope), kappa.data_ptr(), rows.data_ptr()
    sizes = library.threads(count, _VALUES), count, first, rows.size(0) - 1
    library.function("curve")(_CURVE(_SIZES[kappa.dtype], *pointers, *sizes, gain, decay))
    return value


register("curve", "c", curve, slope_times_gradient, dtypes=(_SINGLE, _DOUBLE))


# Draws


class _DrawLayout(NamedTuple):
    """What the shapes of the parameters of a draw determine.

    Attributes:
        loc_shape, kappa_shape: shapes to which the directions and the concentrations must be expanded, or None.
        points, scalars, directions: shapes of the points, of the scalars, and of the gradient in the directions.
        sizes: the last fields of the struct, after the number of threads.
    """

    loc_shape: tuple[int, ...] | None
    kappa_shape: tuple[int, ...] | None
    points: tuple[int, ...]
    scalars: tuple[int, ...]
    directions: tuple[int, ...]
    sizes: tuple[int, ...]

    def arranged(self, loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        """Return the directions, as unit vectors of the dtype of κ, and κ, in the order of rows that C expects."""
        loc = units(loc, kappa.dtype)
        if self.loc_shape is not None:
            loc = readable(loc.expand(self.loc_shape))
        if self.kappa_shape is not None:
            kappa = kappa.expand(self.kappa_shape)
        return loc, readable(kappa)

    def packed(self, kappa: Tensor, x: Tensor | None, scalars: Tensor | None, *pointers: int) -> bytes:
        """Return the struct for a call, given the pointers after those to x and the scalars. Unused ones are 0."""
        rows, dim, *_ = self.sizes
        size = _SIZES[kappa.dtype]
        start, step = _address(scalars), size * rows
        # Without scalars, the library only looks whether the first of their three pointers is null.
        results = _address(x), start, start + step, start + 2 * step
        # The last pointer is that of the rule. A slope by quadrature takes the time of about 64 coordinates.
        count = library.threads(rows * (max(dim, 64) if pointers[-1] else dim), _COORDINATES)
        return _SPHERE(size, *results, *pointers, count, *self.sizes)


@functools.lru_cache(1024)
def _draw_layout(
    family: str, dim: int, loc_shape: torch.Size, kappa_shape: torch.Size, shape: torch.Size
) -> _DrawLayout:
    rows, width = shape.numel(), loc_shape[-1]
    tile = Tile.of(loc_shape[:-1], shape)
    repeats = tile is not None and tile.cycles
    points = (*shape, width)
    directions = tuple(loc_shape) if repeats else points
    count = kappa_shape.numel()
    return _DrawLayout(
        loc_shape=None if repeats else points,
        kappa_shape=None if count == 1 or kappa_shape == shape else tuple(shape),
        points=points,
        scalars=(3, *shape),
        directions=directions,
        sizes=(rows, width, math.prod(directions[:-1]), 0 if count == 1 else 1, dim, NUMBERS[family]),
    )


def _key(generator: torch.Generator | None) -> Tensor:
    """Return a key for the library's own generator, Philox."""
    key = torch.empty((), dtype=torch.int64, device="cpu")
    if isinstance(generator, KeyedGenerator):
        return key.fill_(generator.key)
    return key.random_(generator=generator)


def draw(
    family: str,
    loc: Tensor,
    kappa: Tensor,
    shape: torch.Size,
    dim: int,
    generator: torch.Generator | None,
    *,
    needs_scalars: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return points x of shape ``shape + (d,)`` in the dtype of ``loc``, and the scalars 1-t, 1+t and noise.

    The scalars have the shape (3, *shape) and the dtype of κ, in which everything is computed. They are None if they
    are not needed. ``dim`` is the dimension used for the law of t.
    """
    layout = _draw_layout(family, dim, loc.shape, kappa.shape, shape)
    directions, concentrations = layout.arranged(loc, kappa)
    seed = _key(generator)  # lives until the call returns
    x = kappa.new_empty(layout.points)
    scalars = kappa.new_empty(layout.scalars) if needs_scalars else None
    pointers = directions.data_ptr(), concentrations.data_ptr(), seed.data_ptr(), 0, 0, 0, 0, 0
    _run("draw", layout.packed(kappa, x, scalars, *pointers))
    return x if x.dtype is loc.dtype else x.to(loc.dtype), scalars


register("draw", "c", draw, dtypes=(_SINGLE, _DOUBLE))


def draw_gradient(
    family: str,
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    kappa: Tensor,
    mean: Tensor | None,
    rule: Tensor | None,
    dim: int,
    *,
    needs_loc: bool,
    needs_kappa: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients in ``loc``, in its shape, and in κ, one per row, where they are needed.

    Args:
        grad, x, scalars: the gradient in x, and the results of ``draw``.
        loc, kappa, dim: the arguments of ``draw``.
        mean, rule: for float64, E T in the shape of κ and the rule of ``quadrature.law`` for rays.
    """
    shape, dtype = scalars.shape[1:], kappa.dtype
    layout = _draw_layout(family, dim, loc.shape, kappa.shape, shape)
    directions, concentrations = layout.arranged(loc, kappa)
    grad, x, scalars = readable(grad, dtype), readable(x, dtype), readable(scalars)
    if mean is not None:
        mean = readable(mean if layout.kappa_shape is None else mean.expand(layout.kappa_shape))
    in_loc = kappa.new_empty(layout.directions) if needs_loc else None
    in_kappa = kappa.new_empty(shape) if needs_kappa else None
    pointers = directions.data_ptr(), concentrations.data_ptr(), 0, grad.data_ptr(), _address(in_loc)
    rest = _address(in_kappa), _address(mean), _address(rule)
    _run("pull_back", layout.packed(kappa, x, scalars, *pointers, *rest))
    if in_loc is not None:
        in_loc = in_dtype_of(in_loc if in_loc.shape == loc.shape else in_loc.sum_to_size(loc.shape), loc)
    return in_loc, in_kappa


register("draw_gradient", "c", draw_gradient, dtypes=(_SINGLE, _DOUBLE))


def slopes(
    family: str, scalars: Tensor, kappa: Tensor, mean: Tensor | None, rule: Tensor | None, dim: int
) -> Tensor:
    """Return d artanh(t)/dκ of each row, given the scalars of ``draw``. See ``draw_gradient`` for the others."""
    shape = scalars.shape[1:]
    layout = _draw_layout(family, dim, torch.Size((1,)), kappa.shape, shape)
    scalars, result = readable(scalars), kappa.new_empty(shape)
    if layout.kappa_shape is not None:
        kappa = kappa.expand(layout.kappa_shape)
        mean = None if mean is None else mean.expand(layout.kappa_shape)
    kappa, mean = readable(kappa), None if mean is None else readable(mean)
    # Without a gradient in x, the library returns the slopes.
    pointers = 0, kappa.data_ptr(), 0, 0, 0, result.data_ptr(), _address(mean), _address(rule)
    _run("pull_back", layout.packed(kappa, None, scalars, *pointers))
    return result


register("slopes", "c", slopes, dtypes=(_SINGLE, _DOUBLE))


# Log-densities


class _DensityLayout(NamedTuple):
    """What the shapes of the arguments of a density determine.

    Attributes:
        shape: the shape of the values.
        tiles: of x, loc and kappa.
        results: shapes of the gradients in x, loc and kappa, as the library writes them.
        sizes: the last integers of the struct, after the number of threads.
    """

    shape: tuple[int, ...]
    tiles: tuple[Tile, Tile, Tile]
    results: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    sizes: tuple[int, ...]


@functools.lru_cache(1024)
def _density_layout(family: str, x: torch.Size, loc: torch.Size, kappa: torch.Size) -> _DensityLayout | None:
    """Return the layout of arguments of these shapes, or None if the library does not serve them."""
    shape = torch.broadcast_shapes(x[:-1], loc[:-1], kappa)
    x_tile, loc_tile, kappa_tile = Tile.of(x[:-1], shape), Tile.of(loc[:-1], shape), Tile.of(kappa, shape)
    rows, dim = shape.numel(), x[-1]
    if rows == 0 or x_tile is None or loc_tile is None or kappa_tile is None:
        return None
    directions = loc_tile.count if loc_tile.cycles else rows
    results = (
        tuple(x) if x_tile.count == rows else (rows, dim),
        tuple(loc) if loc_tile.count == directions else (rows, dim),
        tuple(kappa) if kappa_tile.count == rows else (rows,),
    )
    sizes = rows, dim, directions, *x_tile, *loc_tile, *kappa_tile, NUMBERS[family]
    return _DensityLayout(tuple(shape), (x_tile, loc_tile, kappa_tile), results, sizes)


def density_serves(family: str, x: Tensor, loc: Tensor, kappa: Tensor) -> bool:
    """Whether ``density`` takes these arguments."""
    known = x.dtype in (kappa.dtype, *_HALVES) and loc.dtype in (kappa.dtype, *_HALVES)
    known = known and not (kappa.dtype is _DOUBLE and (x.dtype in _HALVES or loc.dtype in _HALVES))
    return (
        known
        and x.is_cpu
        and loc.is_cpu
        and _density_layout(family, x.shape, loc.shape, kappa.shape) is not None
    )


#: Beside x, loc and kappa: the family, -Ψ and E T of an exponential family, and the log of the area of the sphere.
DensityOptions = tuple[str, Tensor, Tensor, float]


def density(tensors: Tensors, options: DensityOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the log-density with respect to the area, and (1-t, 1+t) if a gradient is needed."""
    x, loc, kappa = tensors
    family, offset, _, log_area = options
    layout = _density_layout(family, x.shape, loc.shape, kappa.shape)
    assert layout is not None
    vectors, directions = units(x, kappa.dtype), units(loc, kappa.dtype)
    kappas, offset = readable(kappa), readable(offset)
    value = kappas.new_empty(layout.shape)
    ends = kappas.new_empty((2, *layout.shape)) if any(needed) else None
    read = vectors.data_ptr(), directions.data_ptr(), kappas.data_ptr(), offset.data_ptr()
    # The values do not depend on E T, which takes the last place.
    _run_density("density", kappas, value, ends, (*read, read[-1], 0, 0, 0, 0), 0, layout, log_area)
    return value, () if ends is None else (ends,)


def density_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DensityOptions
) -> Gradients:
    """Return the gradients of ``density`` in x, loc and kappa, None where they are not needed."""
    (grad,), (x, loc, kappa), (ends,) = grads, tensors, kept
    family, _, mean, log_area = options
    layout = _density_layout(family, x.shape, loc.shape, kappa.shape)
    assert layout is not None
    assert grad is not None
    one_grad = not any(grad.stride())  # such as the gradient of a sum
    grad = readable(grad.as_strided((1,), (1,)) if one_grad else grad)
    vectors, directions = units(x, kappa.dtype), units(loc, kappa.dtype)
    kappas, mean, ends = readable(kappa), readable(mean), readable(ends)
    in_x = kappas.new_empty(layout.results[0]) if needed[0] else None
    in_loc = kappas.new_empty(layout.results[1]) if needed[1] else None
    in_kappa = kappas.new_empty(layout.results[2]) if needed[2] else None
    address = kappas.data_ptr()
    read = vectors.data_ptr(), directions.data_ptr(), address, address, mean.data_ptr(), grad.data_ptr()
    pointers = *read, _address(in_x), _address(in_loc), _address(in_kappa)
    step = 0 if one_grad else 1
    _run_density("density_gradient", kappas, None, ends, pointers, step, layout, log_area)
    x_tile, loc_tile, kappa_tile = layout.tiles
    return (
        None if in_x is None else in_dtype_of(x_tile.add_up(in_x, vectors), x),
        None if in_loc is None else in_dtype_of(loc_tile.add_up(in_loc, directions), loc),
        None if in_kappa is None else kappa_tile.add_up(in_kappa, kappas),
    )


def _run_density(
    name: str,
    kappa: Tensor,
    value: Tensor | None,
    ends: Tensor | None,
    pointers: Sequence[int],
    grad_step: int,
    layout: _DensityLayout,
    log_area: float,
) -> None:
    rows, dim, *_ = layout.sizes
    size, start = _SIZES[kappa.dtype], _address(ends)
    results = _address(value), start, start and start + size * rows
    count = library.threads(rows * dim, _COORDINATES)
    _run(name, _DENSITY(size, *results, *pointers, grad_step, count, *layout.sizes, log_area))


register("density", "c", density, density_gradients, serves=density_serves, dtypes=(_SINGLE, _DOUBLE))


# Heads


def _run_head(name: str, pointers: Sequence[Tensor | None], outputs: Tensor, options: HeadOptions) -> None:
    dim, minimum, maximum, shortest = options
    entries, count = outputs.shape[-1], outputs.numel()
    sizes = count // entries, dim, entries, library.threads(count, _COORDINATES)
    _run(name, _HEAD(_SIZES[outputs.dtype], *map(_address, pointers), *sizes, minimum, maximum, shortest))


def head(tensors: Tensors, options: HeadOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return (μ, κ) for the outputs (v, r) of a head, or (μ,) for v."""
    (outputs,) = tensors
    exact = readable(outputs, computing(outputs.dtype))
    *batch, entries = exact.shape
    loc = exact.new_empty((*batch, options[0]))
    kappa = exact.new_empty(batch) if entries > options[0] else None
    _run_head("head", (loc, kappa, exact, None, None, None), exact, options)
    return (loc,) if kappa is None else (loc, kappa), (loc,)


def head_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, saved: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    (outputs,), (loc,) = tensors, saved
    exact = readable(outputs, computing(outputs.dtype))
    in_loc, in_kappa = (None if grad is None else readable(grad, exact.dtype) for grad in (*grads, None)[:2])
    result = exact.new_empty(exact.shape)
    _run_head("head_gradient", (readable(loc), None, exact, in_loc, in_kappa, result), exact, options)
    return (result.to(outputs.dtype),)


register("head", "c", head, head_gradients, dtypes=(_SINGLE, _DOUBLE, *_HALVES))


# Bottlenecks: a head, draws around its directions, and the rate. They compute in float32.


def _run_latents(
    name: str,
    outputs: Tensor,
    table: Table,
    settings: Settings,
    scratch: Tensor,
    x: int,
    scalars: int,
    *,
    seed: int = 0,
    rate: int = 0,
    grad: Tensor | None = None,
    grad_rate: Tensor | None = None,
    gradient: int = 0,
) -> None:
    """Call the library. x and the four scalars of all rows are addresses, as are the arguments after them.

    ``scratch`` has room for the parameters μ and κ, and for the gradient also for those in them.
    """
    family, dim, bounds = settings
    rows, (cells, (first, gain, decay)) = outputs.numel() // (dim + 1), table
    step, threads = 4 * rows, library.threads(rows * dim, _COORDINATES)
    loc = scratch.data_ptr()
    kappa = loc + step * dim
    in_loc, in_kappa = (kappa + step, kappa + step * (dim + 1)) if gradient else (0, 0)
    head = 4, loc, kappa, outputs.data_ptr(), 0 if grad is None else in_loc, in_kappa, gradient
    head_sizes = rows, dim, dim + 1, threads, *bounds, SHORT
    ends = scalars, scalars + step, scalars + 2 * step
    draw = 4, x, *ends, loc, kappa, seed, _address(grad), in_loc, in_kappa, 0, 0
    draw_sizes = threads, rows, dim, rows, 1, dim, NUMBERS[family]
    curve = 4, rate, scalars + 3 * step, kappa, cells.data_ptr()
    curve_sizes = threads, rows, first, len(cells) - 1, gain, decay
    parts = *head, *head_sizes, *draw, *draw_sizes, *curve, *curve_sizes
    _run(name, _LATENTS(4, *parts, _address(grad_rate)))


def latents(
    outputs: Tensor,
    table: Table,
    settings: Settings,
    radius: float,
    dtype: torch.dtype,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z, the rate, and a record of the draw for the backward pass, see ``record.unpack_record``.

    Args:
        outputs: (v, r), n > 0 rows of d + 1 numbers.
        table: of the rate as a function of κ.
        settings: of the head.
        radius, dtype: the length and the dtype of z.
        generator: source of the random numbers. Default: torch's.
    """
    outputs, key, dim = readable(outputs, _SINGLE), _key(generator), settings.dim
    points, batch, length = value_shapes(outputs.shape, dim, radius, dtype)
    rate, record = outputs.new_empty(batch), outputs.new_empty(length)
    count = rate.numel()
    x = outputs.new_empty(points) if z_is_x(radius, dtype) else record[: -4 * count].view(points)
    scalars = record.data_ptr() + 4 * (record.numel() - 4 * count)
    scratch = outputs.new_empty(count * (dim + 1))
    _run_latents(
        "latents", outputs, table, settings, scratch, x.data_ptr(), scalars,
        seed=key.data_ptr(), rate=rate.data_ptr(),
    )  # fmt: skip
    if not z_is_x(radius, dtype):
        x = (x if radius == 1 else radius * x).to(dtype, copy=radius == 1)
    return x, rate, record


def latents_gradient(
    outputs: Tensor,
    table: Table,
    record: Tensor,
    z: Tensor | None,
    grad: Tensor | None,
    grad_rate: Tensor | None,
    settings: Settings,
    radius: float,
) -> tuple[Tensor]:
    """Return the gradient in the outputs, given the gradients in z and in the rate. None means zero.

    ``outputs``, ``record`` and z are those of ``latents``. z is None unless it is x itself.
    """
    exact, record, dim = readable(outputs, _SINGLE), readable(record), settings.dim
    if grad is not None:
        grad = readable(grad, _SINGLE)
        grad = grad if radius == 1 else radius * grad
    grad_rate = None if grad_rate is None else readable(grad_rate)
    result, count = exact.new_empty(exact.shape), exact.numel() // (dim + 1)
    scratch, x = exact.new_empty(2 * count * (dim + 1)), record if z is None else readable(z)
    scalars = record.data_ptr() + 4 * (record.numel() - 4 * count)
    _run_latents(
        "latents_gradient", exact, table, settings, scratch, x.data_ptr(), scalars,
        grad=grad, grad_rate=grad_rate, gradient=result.data_ptr(),
    )  # fmt: skip
    return (result.to(outputs.dtype),)


register("latents", "c", latents, latents_gradient, dtypes=(_SINGLE, *_HALVES))
