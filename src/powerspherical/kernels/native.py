"""Calls of the C library, for float32 and float64 on the CPU. ``c`` has the arithmetic, c/call.h the structs.

The interpreter lock is released while a kernel runs. What the shapes of the arguments determine is computed once. Half
precision passes through float32.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical import engines
from powerspherical._torch.random import KeyedGenerator
from powerspherical._torch.vectors import computing, unit_vectors_as
from powerspherical.kernels import library
from powerspherical.kernels.layout import Tile, in_dtype_of, readable
from powerspherical.kernels.record import SHORT, Settings, value_shapes
from powerspherical.kernels.registry import (
    NUMBERS,
    Gradients,
    HeadOptions,
    Table,
    Tensors,
    register,
    slope_times_gradient,
)

_EXACT = torch.float32, torch.float64
_HALVES = torch.float16, torch.bfloat16
_NUMBERS = frozenset((int, float))

#: By function, what packs its struct.
_PACK = {name: struct.Struct("q" + fields).pack for name, fields in library.FUNCTIONS.items()}

#: The fewest numbers per thread: about 200 µs of work for coordinates, 100 µs for functions of κ. With fewer, a thread
#: would cost more time than it saves.
_COORDINATES, _VALUES = 1 << 18, 1 << 15


def _threads(numbers: int, per_thread: int = _COORDINATES) -> int:
    """Return the number of threads for so many ``numbers``, each of which has at least ``per_thread``."""
    least = min(per_thread, engines.largest_block)
    return 1 if numbers < 2 * least else min(torch.get_num_threads(), numbers // least)


def _call(name: str, dtype: torch.dtype, arrays: Sequence[Any], *numbers: float) -> bool:
    """Call a function of the library for numbers of ``dtype``, and return its result.

    ``arrays`` and ``numbers`` are the fields of its struct after the first. A tensor is passed as the address of its
    memory, None as a null pointer, and other fields as they are.
    """
    copies: list[Tensor] = []
    values: list[float] = [dtype.itemsize]
    for array in arrays:
        if array is None:
            array = 0
        elif type(array) not in _NUMBERS:
            if array.is_neg() or not array.is_contiguous():
                array = readable(array)
                copies.append(array)  # lives until the call returns
            array = array.data_ptr()
        values.append(array)
    passed = library.function(name)(_PACK[name](*values, *numbers))
    if not passed and name != "check":
        raise MemoryError("not enough memory for the gradients of shared directions")
    return bool(passed)


# Checks


def check(vectors: Tensor, tolerance: float, numbers: Tensor | None, largest: float) -> bool:
    """Whether the norms of ``vectors`` (…, d) are one to within ``tolerance``, and ``numbers`` lie in [0, largest].

    ``numbers`` have the dtype of the vectors.
    """
    entries, dim = vectors.numel(), vectors.shape[-1]
    sizes = entries // dim, dim, 0 if numbers is None else numbers.numel(), _threads(entries)
    return _call("check", vectors.dtype, (vectors, numbers), *sizes, tolerance, largest, 0)


register("check", "c", check, dtypes=_EXACT)


# Functions of κ


def curve(tensors: Tensors, tables: Sequence[Table], needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return a function of κ, and its derivative if it is needed. That may have a second, better table."""
    (kappa,) = tensors
    value = torch.empty_like(kappa, memory_format=torch.contiguous_format)
    if not any(needed):
        _curve(kappa, tables[0], value, None)
        return value, ()
    slope = torch.empty_like(value)
    if len(tables) == 1:
        _curve(kappa, tables[0], value, slope)
    else:
        _curve(kappa, tables[0], value, None)
        _curve(kappa, tables[1], slope, None)
        slope.masked_fill_(kappa < 0, 0.0)
    return value, (slope,)


def _curve(kappa: Tensor, table: Table, value: Tensor, slope: Tensor | None) -> None:
    """Write a function of κ to ``value``, and its derivative to ``slope``."""
    rows, (first, gain, decay) = table
    count = kappa.numel()
    sizes = _threads(count, _VALUES), count, first, rows.shape[0] - 1
    _call("curve", kappa.dtype, (value, slope, kappa, rows), *sizes, gain, decay)


register("curve", "c", curve, slope_times_gradient, dtypes=_EXACT)


# Draws


class _DrawLayout(NamedTuple):
    """What the shapes of the parameters of a draw determine.

    Attributes:
        loc_shape, kappa_shape: shapes to which the directions and the concentrations must be expanded, or None.
        points: the shape of the points.
        directions: the shape of the gradient in the directions.
        sizes: the last fields of the struct, after the number of threads.
    """

    loc_shape: tuple[int, ...] | None
    kappa_shape: tuple[int, ...] | None
    points: tuple[int, ...]
    directions: tuple[int, ...]
    sizes: tuple[int, ...]


@functools.lru_cache(1024)
def _draw_layout(
    family: str, dim: int, loc_shape: torch.Size, kappa_shape: torch.Size, shape: torch.Size
) -> _DrawLayout:
    rows, width, count = shape.numel(), loc_shape[-1], kappa_shape.numel()
    tile, points = Tile.of(loc_shape[:-1], shape), (*shape, width)
    repeats = tile is not None and tile.cycles
    directions = tuple(loc_shape) if repeats else points
    return _DrawLayout(
        loc_shape=None if repeats else points,
        kappa_shape=None if count == 1 or kappa_shape == shape else tuple(shape),
        points=points,
        directions=directions,
        sizes=(rows, width, math.prod(directions[:-1]), 0 if count == 1 else 1, dim, NUMBERS[family]),
    )


def _draw_call(
    name: str,
    layout: _DrawLayout,
    x: Tensor | None,
    scalars: Tensor | None,
    loc: Tensor | None,
    kappa: Tensor,
    seed: Tensor | None = None,
    grad: Tensor | None = None,
    in_loc: Tensor | None = None,
    in_kappa: Tensor | None = None,
    mean: Tensor | None = None,
    rule: Tensor | None = None,
) -> None:
    """Call "draw" or "pull_back", with the arrays of ``sphere_call``. ``scalars`` is contiguous."""
    if loc is not None:
        loc = loc if loc.dtype is kappa.dtype else unit_vectors_as(loc, kappa.dtype)
        loc = loc if layout.loc_shape is None else loc.expand(layout.loc_shape)
    if layout.kappa_shape is not None:
        kappa = kappa.expand(layout.kappa_shape)
        mean = None if mean is None else mean.expand(layout.kappa_shape)
    rows, dim, *_ = layout.sizes
    minus, step = 0 if scalars is None else scalars.data_ptr(), kappa.dtype.itemsize * rows
    # Without scalars, the library only looks whether the first of their three pointers is null.
    arrays = x, minus, minus + step, minus + 2 * step, loc, kappa, seed, grad, in_loc, in_kappa, mean, rule
    # A slope by quadrature takes the time of about 64 coordinates.
    threads = _threads(rows * (dim if rule is None else max(dim, 64)))
    _call(name, kappa.dtype, arrays, threads, *layout.sizes)


class _Key(threading.local):
    """Memory for the key of the library's own generator, Philox; one per thread."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.memory = torch.empty((), dtype=torch.int64, device="cpu")


_key = _Key()


def _new_key(generator: torch.Generator | None) -> Tensor:
    """Return a random key, until the next call in this thread."""
    if isinstance(generator, KeyedGenerator):
        return _key.memory.fill_(generator.key)
    return _key.memory.random_(generator=generator)


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
    x = kappa.new_empty(layout.points)
    scalars = kappa.new_empty((3, *shape)) if needs_scalars else None
    _draw_call("draw", layout, x, scalars, loc, kappa, _new_key(generator))
    return x if x.dtype is loc.dtype else x.to(loc.dtype), scalars


register("draw", "c", draw, dtypes=_EXACT)


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
    if loc.dtype is not dtype:
        grad, x = grad.to(dtype), x.to(dtype)
    in_loc = kappa.new_empty(layout.directions) if needs_loc else None
    in_kappa = kappa.new_empty(shape) if needs_kappa else None
    arrays = x, readable(scalars), loc, kappa, None, grad, in_loc, in_kappa, mean, rule
    _draw_call("pull_back", layout, *arrays)
    if in_loc is not None:
        in_loc = in_loc if in_loc.shape == loc.shape else in_loc.sum_to_size(loc.shape)
        in_loc = in_loc if loc.dtype is dtype else in_dtype_of(in_loc, loc)
    return in_loc, in_kappa


register("draw_gradient", "c", draw_gradient, dtypes=_EXACT)


def slopes(
    family: str, scalars: Tensor, kappa: Tensor, mean: Tensor | None, rule: Tensor | None, dim: int
) -> Tensor:
    """Return d artanh(t)/dκ of each row, given the scalars of ``draw``. See ``draw_gradient`` for the others."""
    shape = scalars.shape[1:]
    layout = _draw_layout(family, dim, torch.Size((1,)), kappa.shape, shape)
    result = kappa.new_empty(shape)
    # Without a gradient in x, the library returns the slopes.
    arrays = None, readable(scalars), None, kappa, None, None, None, result, mean, rule
    _draw_call("pull_back", layout, *arrays)
    return result


register("slopes", "c", slopes, dtypes=_EXACT)


# Log-densities


class _DensityLayout(NamedTuple):
    """What the shapes of the arguments of a density determine.

    Attributes:
        shape: the shape of the values.
        tiles: of x, loc and kappa.
        results: shapes of the gradients in x, loc and kappa, as the library writes them.
        is_direct: whether these are the shapes of the arguments.
        sizes: the last integers of the struct, after the number of threads.
    """

    shape: tuple[int, ...]
    tiles: tuple[Tile, Tile, Tile]
    results: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    is_direct: bool
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
    is_direct = results == (x, loc, kappa)
    return _DensityLayout(tuple(shape), (x_tile, loc_tile, kappa_tile), results, is_direct, sizes)


def density_serves(family: str, x: Tensor, loc: Tensor, kappa: Tensor) -> bool:
    """Whether ``density`` takes these arguments."""
    dtypes = (kappa.dtype,) if kappa.dtype is torch.float64 else (kappa.dtype, *_HALVES)
    if x.dtype not in dtypes or loc.dtype not in dtypes or not x.is_cpu or not loc.is_cpu:
        return False
    return _density_layout(family, x.shape, loc.shape, kappa.shape) is not None


#: Beside x, loc and kappa: the family, -Ψ and E T of an exponential family, and the log of the area of the sphere.
DensityOptions = tuple[str, Tensor, Tensor, float]


def density(tensors: Tensors, options: DensityOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the log-density with respect to the area, and (1-t, 1+t) if a gradient is needed."""
    x, loc, kappa = tensors
    layout = _density_layout(options[0], x.shape, loc.shape, kappa.shape)
    assert layout is not None
    value = kappa.new_empty(layout.shape)
    ends = kappa.new_empty((2, *layout.shape)) if any(needed) else None
    _density_call("density", layout, value, ends, x, loc, kappa, options)
    return value, () if ends is None else (ends,)


def density_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DensityOptions
) -> Gradients:
    """Return the gradients of ``density`` in x, loc and kappa, None where they are not needed."""
    (grad,), (x, loc, kappa), (ends,) = grads, tensors, kept
    layout = _density_layout(options[0], x.shape, loc.shape, kappa.shape)
    assert layout is not None
    assert grad is not None
    if not any(grad.stride()):  # one number for all rows, such as the gradient of a sum
        grad = grad.as_strided((1,), (1,))
    in_x = kappa.new_empty(layout.results[0]) if needed[0] else None
    in_loc = kappa.new_empty(layout.results[1]) if needed[1] else None
    in_kappa = kappa.new_empty(layout.results[2]) if needed[2] else None
    found = in_x, in_loc, in_kappa
    step = 0 if grad.numel() == 1 else 1
    _density_call("density_gradient", layout, None, readable(ends), x, loc, kappa, options, step, grad, found)
    if layout.is_direct and x.dtype is loc.dtype is kappa.dtype:
        return found
    return tuple(map(_settled, found, layout.tiles, tensors))


def _settled(grad: Tensor | None, tile: Tile, like: Tensor) -> Tensor | None:
    """Return the gradient in an argument, given the one that the library wrote."""
    if grad is None:
        return None
    grad = tile.add_up(grad, like)
    return grad if grad.dtype is like.dtype else in_dtype_of(grad, like)


def _density_call(
    name: str,
    layout: _DensityLayout,
    value: Tensor | None,
    ends: Tensor | None,
    x: Tensor,
    loc: Tensor,
    kappa: Tensor,
    options: DensityOptions,
    grad_step: int = 0,
    grad: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (None, None, None),
) -> None:
    """Call the function of this name, with the arrays of ``density_call``. ``ends`` is contiguous."""
    _, offset, mean, log_area = options
    rows, dim, *_ = layout.sizes
    minus = 0 if ends is None else ends.data_ptr()
    plus = minus and minus + kappa.dtype.itemsize * rows
    x = x if x.dtype is kappa.dtype else unit_vectors_as(x, kappa.dtype)
    loc = loc if loc.dtype is kappa.dtype else unit_vectors_as(loc, kappa.dtype)
    arrays = value, minus, plus, x, loc, kappa, offset, mean, grad, *gradients
    _call(name, kappa.dtype, arrays, grad_step, _threads(rows * dim), *layout.sizes, log_area)


register("density", "c", density, density_gradients, serves=density_serves, dtypes=_EXACT)


# Heads


def _head_call(name: str, arrays: Sequence[Tensor | None], outputs: Tensor, options: HeadOptions) -> None:
    dim, *bounds = options
    entries, count = outputs.shape[-1], outputs.numel()
    _call(name, outputs.dtype, arrays, count // entries, dim, entries, _threads(count), *bounds)


def head(tensors: Tensors, options: HeadOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return (μ, κ) for the outputs (v, r) of a head, or (μ,) for v."""
    (outputs,) = tensors
    exact = outputs.to(computing(outputs.dtype))
    *batch, entries = exact.shape
    loc = exact.new_empty((*batch, options[0]))
    kappa = exact.new_empty(batch) if entries > options[0] else None
    _head_call("head", (loc, kappa, exact, None, None, None), exact, options)
    return (loc,) if kappa is None else (loc, kappa), (loc,)


def head_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, saved: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    (outputs,), (loc,) = tensors, saved
    exact = outputs.to(computing(outputs.dtype))
    in_loc, in_kappa = (*grads, None)[:2]
    result = exact.new_empty(exact.shape)
    _head_call("head_gradient", (loc, None, exact, in_loc, in_kappa, result), exact, options)
    return (result.to(outputs.dtype),)


register("head", "c", head, head_gradients, dtypes=(*_EXACT, *_HALVES))


# Bottlenecks: a head, draws around its directions, and the rate. They compute in float32.


def _latents_call(
    name: str,
    outputs: Tensor,
    table: Table,
    settings: Settings,
    x: Tensor,
    record: Tensor,
    seed: Tensor | None = None,
    rate: Tensor | None = None,
    grad: Tensor | None = None,
    grad_rate: Tensor | None = None,
    gradient: Tensor | None = None,
) -> None:
    """Call the function of this name, with the arrays of ``latents_call``. ``record`` is contiguous."""
    family, dim, bounds = settings
    rows, (cells, (first, gain, decay)) = outputs.numel() // (dim + 1), table
    # The parameters μ and κ, and for the gradient those in them.
    scratch = outputs.new_empty((2 if name == "latents_gradient" else 1, rows * (dim + 1)))
    step, threads = 4 * rows, _threads(rows * dim)
    loc = scratch.data_ptr()
    kappa = loc + step * dim
    in_loc, in_kappa = kappa + step, kappa + step * (dim + 1)
    # The last numbers of the record: 1-t, 1+t and noise of each row, and the slope of the rate.
    minus = record.data_ptr() + 4 * record.numel() - 4 * step
    head = 4, loc, kappa, outputs, None if grad is None else in_loc, in_kappa, gradient
    head_sizes = rows, dim, dim + 1, threads, *bounds, SHORT
    draw = 4, x, minus, minus + step, minus + 2 * step, loc, kappa, seed, grad, in_loc, in_kappa, None, None
    draw_sizes = threads, rows, dim, rows, 1, dim, NUMBERS[family]
    curve = 4, rate, minus + 3 * step, kappa, cells
    curve_sizes = threads, rows, first, cells.shape[0] - 1, gain, decay
    _call(name, torch.float32, (*head, *head_sizes, *draw, *draw_sizes, *curve, *curve_sizes, grad_rate))


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
    outputs = outputs.float()
    points, batch, length = value_shapes(outputs.shape, settings.dim, radius, dtype)
    rate, record = outputs.new_empty(batch), outputs.new_empty(length)
    size = 4 * rate.numel()
    is_z = record.numel() == size
    x = outputs.new_empty(points) if is_z else record[:-size].view(points)
    _latents_call("latents", outputs, table, settings, x, record, _new_key(generator), rate)
    if not is_z:
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
    exact, record = outputs.float(), readable(record)
    if grad is not None:
        grad = grad.float() if radius == 1 else radius * grad.float()
    gradient = exact.new_empty(exact.shape)
    x = record if z is None else z
    grads = {"grad": grad, "grad_rate": grad_rate, "gradient": gradient}
    _latents_call("latents_gradient", exact, table, settings, x, record, **grads)
    return (gradient.to(outputs.dtype),)


register("latents", "c", latents, latents_gradient, dtypes=(torch.float32, *_HALVES))
