"""Calls of the C library, for float32 and float64 on the CPU. ``c`` has the arithmetic, and ``c/call.h`` the structs.

The interpreter lock is released while a kernel runs. What the shapes of the arguments determine is computed once. Half
precision passes through float32.
"""

from __future__ import annotations

import functools
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
from powerspherical.kernels.layout import DrawLayout, Tile, in_dtype_of
from powerspherical.kernels.registry import (
    NUMBERS,
    SHORT,
    DensityOptions,
    DrawOptions,
    Gradients,
    HeadOptions,
    LatentsOptions,
    Quadrature,
    Table,
    Tensors,
    register,
    slope_times_gradient,
)

_EXACT = torch.float32, torch.float64
_HALVES = torch.float16, torch.bfloat16
_NO_TENSORS = frozenset((type(None), type(...), int, float))

#: By function, what packs its struct.
_PACK = {name: struct.Struct("2q" + fields).pack for name, fields in library.FUNCTIONS.items()}

#: The fewest coordinates per thread: about 200 µs of work. With fewer, a thread would cost more time than it saves.
_COORDINATES = 1 << 18

#: The work of one value, in coordinates: of a function of κ, and of a slope by quadrature.
_CURVE_WORK, _SLOPE_WORK = 8, 64


def _call(name: str, dtype: torch.dtype, work: int, arrays: Sequence[Any], *numbers: float) -> bool:
    """Call a function of the library for numbers of ``dtype``, and return its result.

    Args:
        name: of the function.
        dtype: of the numbers that it computes with.
        work: how many coordinates it computes, which determines the number of threads.
        arrays: the first fields of its struct after ``size`` and ``threads``. A tensor is passed as the address of its
            memory, None as a null pointer, and a number as it is. ``...`` stands for the first two fields of a struct
            inside.
        numbers: the other fields.
    """
    limit, threads = engines.largest_block, 1
    least = _COORDINATES if limit > _COORDINATES else limit
    if work >= 2 * least:
        threads = min(torch.get_num_threads(), work // least)
    copies: list[Tensor] = []
    values: list[float] = [dtype.itemsize, threads]
    for array in arrays:
        if type(array) not in _NO_TENSORS:
            if array.is_neg() or not array.is_contiguous():
                array = array.contiguous().resolve_neg()
                copies.append(array)  # lives until the call returns
            values.append(array.data_ptr())
        elif array is None:
            values.append(0)
        elif array is ...:
            values += dtype.itemsize, threads
        else:
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
    sizes = entries // dim, dim, 0 if numbers is None else numbers.numel()
    return _call("check", vectors.dtype, entries, (vectors, numbers), *sizes, tolerance, largest, 0)


register("check", "c", check, dtypes=_EXACT)


# Functions of κ


def curve(tensors: Tensors, tables: Sequence[Table], needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return a function of κ, and its derivative if it is needed. That may have a second, better table."""
    (kappa,) = tensors
    if not any(needed):
        return _curve(kappa, tables[0]), ()
    if len(tables) > 1:
        return _curve(kappa, tables[0]), (_curve(kappa, tables[1]).masked_fill_(kappa < 0, 0.0),)
    slope = torch.empty_like(kappa, memory_format=torch.contiguous_format)
    return _curve(kappa, tables[0], slope), (slope,)


def _curve(kappa: Tensor, table: Table, slope: Tensor | None = None) -> Tensor:
    """Return a function of κ, and write its derivative to ``slope``."""
    rows, (first, gain, decay) = table
    value = torch.empty_like(kappa, memory_format=torch.contiguous_format)
    count = kappa.numel()
    sizes = count, first, rows.shape[0] - 1
    _call("curve", kappa.dtype, _CURVE_WORK * count, (value, slope, kappa, rows), *sizes, gain, decay)
    return value


register("curve", "c", curve, slope_times_gradient, dtypes=_EXACT)


# Draws


def _draw_call(
    name: str,
    family: str,
    dim: int,
    layout: DrawLayout,
    x: Tensor | None,
    scalars: Tensor | None,
    loc: Tensor | None,
    kappa: Tensor,
    seed: Tensor | None = None,
    grad: Tensor | None = None,
    in_loc: Tensor | None = None,
    in_kappa: Tensor | None = None,
    quadrature: tuple[Table, Tensor] | None = None,
) -> None:
    """Call "draw" or "pull_back", with the arrays of ``sphere_call``. ``scalars`` is contiguous."""
    if loc is not None:
        loc = loc if loc.dtype is kappa.dtype else unit_vectors_as(loc, kappa.dtype)
        loc = loc if layout.loc_shape is None else loc.expand(layout.loc_shape)
    mean = rule = None
    rows, width, *_ = layout.sizes
    # Without scalars, the library only looks whether the first of their three pointers is null.
    minus, step = 0 if scalars is None else scalars.data_ptr(), kappa.dtype.itemsize * rows
    if quadrature is not None:
        table, rule = quadrature
        mean = _curve(kappa, table).neg_()
        width = max(width, _SLOPE_WORK)
    if layout.kappa_shape is not None:
        kappa = kappa.expand(layout.kappa_shape)
        mean = None if mean is None else mean.expand(layout.kappa_shape)
    arrays = x, minus, minus + step, minus + 2 * step, loc, kappa, seed, grad, in_loc, in_kappa, mean, rule
    _call(name, kappa.dtype, rows * width, arrays, *layout.sizes, dim, NUMBERS[family])


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


def draw(tensors: Tensors, options: DrawOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return points x of shape ``shape + (d,)`` in the dtype of ``loc``, and (x, scalars) if a gradient is needed.

    The scalars 1-t, 1+t and noise have the shape (3, *shape) and the dtype of κ, in which everything is computed.
    """
    (loc, kappa), (family, dim, shape, generator, _) = tensors, options
    layout = DrawLayout.of(shape, loc.shape, kappa.shape)
    x = kappa.new_empty(layout.points)
    scalars = kappa.new_empty((3, *shape)) if any(needed) else None
    _draw_call("draw", family, dim, layout, x, scalars, loc, kappa, _new_key(generator))
    x = x if x.dtype is loc.dtype else x.to(loc.dtype)
    return x, () if scalars is None else (x, scalars)


def draw_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DrawOptions
) -> Gradients:
    """Return the gradients of ``draw`` in ``loc`` and in κ, None where they are not needed."""
    (grad,), (loc, kappa), (x, scalars), (family, dim, shape, _, quadrature) = grads, tensors, kept, options
    assert grad is not None
    dtype, (needs_loc, needs_kappa) = kappa.dtype, needed
    layout = DrawLayout.of(shape, loc.shape, kappa.shape)
    if loc.dtype is not dtype:
        grad, x = grad.to(dtype), x.to(dtype)
    in_loc = kappa.new_empty(layout.directions) if needs_loc else None
    in_kappa = kappa.new_empty(shape) if needs_kappa else None
    rule = quadrature(family, dim) if needs_kappa and dtype is torch.float64 else None
    scalars = scalars.contiguous().resolve_neg()
    _draw_call("pull_back", family, dim, layout, x, scalars, loc, kappa, None, grad, in_loc, in_kappa, rule)
    if in_loc is not None:
        in_loc = in_loc if in_loc.shape == loc.shape else in_loc.sum_to_size(loc.shape)
        in_loc = in_loc if loc.dtype is dtype else in_dtype_of(in_loc, loc)
    if in_kappa is not None and in_kappa.shape != kappa.shape:
        in_kappa = in_kappa.sum_to_size(kappa.shape)
    return in_loc, in_kappa


register("draw", "c", draw, draw_gradients, dtypes=_EXACT)


def slopes(family: str, scalars: Tensor, kappa: Tensor, dim: int, quadrature: Quadrature) -> Tensor:
    """Return d artanh(t)/dκ of each row, given the scalars of ``draw``."""
    shape = scalars.shape[1:]
    layout = DrawLayout.of(shape, torch.Size((1,)), kappa.shape)
    result = kappa.new_empty(shape)
    rule = quadrature(family, dim) if kappa.dtype is torch.float64 else None
    # Without a gradient in x, the library returns the slopes.
    scalars = scalars.contiguous().resolve_neg()
    _draw_call("pull_back", family, dim, layout, None, scalars, None, kappa, in_kappa=result, quadrature=rule)
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
        sizes: the last integers of the struct.
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


def density(tensors: Tensors, options: DensityOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the log-density with respect to the area, and (1-t, 1+t) if a gradient is needed."""
    x, loc, kappa = tensors
    layout = _density_layout(options[0], x.shape, loc.shape, kappa.shape)
    assert layout is not None
    value = kappa.new_empty(layout.shape)
    ends = kappa.new_empty((2, *layout.shape)) if any(needed) else None
    _density_call("density", layout, value, ends, tensors, options)
    return value, () if ends is None else (ends,)


def density_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DensityOptions
) -> Gradients:
    """Return the gradients of ``density`` in x, loc and kappa, None where they are not needed."""
    (grad,), (ends,), (x, loc, kappa) = grads, kept, tensors
    layout = _density_layout(options[0], x.shape, loc.shape, kappa.shape)
    assert layout is not None
    assert grad is not None
    if not any(grad.stride()):  # one number for all rows, such as the gradient of a sum
        grad = grad.as_strided((1,), (1,))
    in_x = kappa.new_empty(layout.results[0]) if needed[0] else None
    in_loc = kappa.new_empty(layout.results[1]) if needed[1] else None
    in_kappa = kappa.new_empty(layout.results[2]) if needed[2] else None
    found = in_x, in_loc, in_kappa
    ends = ends.contiguous().resolve_neg()
    _density_call("density_gradient", layout, None, ends, tensors, options, grad, found)
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
    tensors: Tensors,
    options: DensityOptions,
    grad: Tensor | None = None,
    gradients: Gradients = (None, None, None),
) -> None:
    """Call "density" or "density_gradient", with the arrays of ``density_call``. ``ends`` is contiguous."""
    (x, loc, kappa), (_, offset, mean, log_area) = tensors, options
    rows, dim, *_ = layout.sizes
    x = x if x.dtype is kappa.dtype else unit_vectors_as(x, kappa.dtype)
    loc = loc if loc.dtype is kappa.dtype else unit_vectors_as(loc, kappa.dtype)
    minus = 0 if ends is None else ends.data_ptr()
    plus = minus and minus + kappa.dtype.itemsize * rows
    arrays = value, minus, plus, x, loc, kappa, offset, mean, grad, *gradients
    grad_step = 0 if grad is None or grad.numel() == 1 else 1
    _call(name, kappa.dtype, rows * dim, arrays, grad_step, *layout.sizes, log_area)


register("density", "c", density, density_gradients, density_serves, _EXACT)


# Heads


def _head_call(name: str, arrays: Sequence[Tensor | None], outputs: Tensor, options: HeadOptions) -> None:
    dim, *bounds = options
    entries, count = outputs.shape[-1], outputs.numel()
    _call(name, outputs.dtype, count, arrays, count // entries, dim, entries, *bounds)


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
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    (outputs,), (loc,) = tensors, kept
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
    options: LatentsOptions,
    x: Tensor,
    scalars: Tensor,
    seed: Tensor | None = None,
    rate: Tensor | None = None,
    grad: Tensor | None = None,
    grad_rate: Tensor | None = None,
    gradient: Tensor | None = None,
) -> None:
    """Call the function of this name, with the arrays of ``latents_call``. ``scalars`` is contiguous."""
    (family, dim, bounds), (cells, (first, gain, decay)), *_ = options
    rows = outputs.numel() // (dim + 1)
    # The parameters μ and κ, and for the gradient those in them.
    scratch = outputs.new_empty((2 if name == "latents_gradient" else 1, rows * (dim + 1)))
    step = 4 * rows
    loc = scratch.data_ptr()
    kappa = loc + step * dim
    in_loc, in_kappa = kappa + step, kappa + step * (dim + 1)
    minus = scalars.data_ptr()
    head = ..., loc, kappa, outputs, None if grad is None else in_loc, in_kappa, gradient
    head_sizes = rows, dim, dim + 1, *bounds, SHORT
    draw = ..., x, minus, minus + step, minus + 2 * step, loc, kappa, seed, grad, in_loc, in_kappa, None, None
    draw_sizes = rows, dim, rows, 1, dim, NUMBERS[family]
    curve = ..., rate, minus + 3 * step, kappa, cells
    curve_sizes = rows, first, cells.shape[0] - 1, gain, decay
    arrays = *head, *head_sizes, *draw, *draw_sizes, *curve, *curve_sizes, grad_rate
    _call(name, torch.float32, rows * dim, arrays)


def latents(tensors: Tensors, options: LatentsOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return z and its rate for outputs (v, r), and (x, scalars) for the gradient.

    The scalars are those of ``draw`` and the slope of the rate.
    """
    (outputs,), (settings, _, radius, dtype) = tensors, options
    outputs = outputs.float()
    *batch, _ = outputs.shape
    x, rate = outputs.new_empty((*batch, settings.dim)), outputs.new_empty(batch)
    scalars = outputs.new_empty((4, *batch))
    _latents_call("latents", outputs, options, x, scalars, _new_key(None), rate)
    return ((x if radius == 1 else radius * x).to(dtype), rate), (x, scalars)


def latents_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: LatentsOptions
) -> Gradients:
    """Return the gradient in the outputs, given the gradients in z and in the rate. None means zero."""
    (outputs,), (x, scalars), (grad, grad_rate), radius = tensors, kept, grads, options[2]
    exact, scalars = outputs.float(), scalars.contiguous().resolve_neg()
    if grad is not None:
        grad = grad.float() if radius == 1 else radius * grad.float()
    gradient = exact.new_empty(exact.shape)
    given = {"grad": grad, "grad_rate": grad_rate, "gradient": gradient}
    _latents_call("latents_gradient", exact, options, x, scalars, **given)
    return (gradient.to(outputs.dtype),)


register("latents", "c", latents, latents_gradients, dtypes=(torch.float32, *_HALVES))
