"""Calls of the C library, for float32 and float64 on the CPU. ``c`` has the arithmetic, and ``c/call.h`` the structs.

The interpreter lock is released while a kernel runs. What the shapes of the arguments determine is computed once. Half
precision passes through float32.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from powerspherical import engines
from powerspherical._torch.random import KeyedGenerator
from powerspherical._torch.vectors import computing, unit_vectors_as
from powerspherical.kernels import library
from powerspherical.kernels.layout import DensityLayout, DrawLayout, Tile, in_dtype_of, readable
from powerspherical.kernels.registry import (
    EXACT,
    HALVES,
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
    register_curve,
)

#: By function, what packs its struct.
_PACK = {name: struct.Struct(fields).pack for name, fields in library.FUNCTIONS.items()}

#: The fewest coordinates per thread: about 200 µs of work. With fewer, a thread would cost more time than it saves.
_COORDINATES = 1 << 18

#: The work of one value, in coordinates: of a function of κ, and of a slope by quadrature.
_CURVE_WORK, _SLOPE_WORK = 8, 64

#: A struct of c/call.h after its first two fields: the arrays and the numbers.
Struct = tuple[Sequence[Tensor | int | None], Sequence[float]]


def _call(name: str, dtype: torch.dtype, work: int, *structs: Struct) -> None:
    """Call a function of the library for numbers of ``dtype``.

    Args:
        name: of the function.
        dtype: of the numbers that it computes with.
        work: how many coordinates it computes, which determines the number of threads.
        structs: the struct that it takes, then those at its end. A tensor is passed as the address of memory that holds
            its values, None as a null pointer, and an integer as it is.
    """
    threads = _threads(work)
    copies: list[Tensor] = []
    fields: list[float] = []
    for arrays, numbers in structs:
        fields += dtype.itemsize, threads
        for array in arrays:
            if array is None:
                fields.append(0)
            elif isinstance(array, int):
                fields.append(array)
            else:
                # Hooks may have changed the strides of a saved tensor, and a negative view has the other sign.
                if not array.is_contiguous() or array.is_neg():
                    array = array.contiguous().resolve_neg()
                    copies.append(array)  # lives until the call returns
                fields.append(array.data_ptr())
        fields += numbers
    if not library.function(name)(_PACK[name](*fields)):
        raise MemoryError("not enough memory for the gradients of shared directions")


def _threads(work: int) -> int:
    """Return the number of threads for so many coordinates."""
    limit = engines.largest_block
    least = _COORDINATES if limit > _COORDINATES else limit
    return 1 if work < 2 * least else min(torch.get_num_threads(), work // least)


# Checks


def check(vectors: Tensor, numbers: Tensor | None, tolerance: float, largest: float) -> bool:
    """Whether the norms of ``vectors`` (…, d) are one to within ``tolerance``, and ``numbers`` lie in [0, largest].

    ``numbers`` have the dtype of the vectors.
    """
    # Every constructor and every log-density waits for this. So it takes no loop over arguments, as in ``_call``.
    entries, dim, address, count = vectors.numel(), vectors.shape[-1], 0, 0
    if not vectors.is_contiguous() or vectors.is_neg():
        vectors = readable(vectors)
    if numbers is not None:
        if not numbers.is_contiguous() or numbers.is_neg():
            numbers = readable(numbers)
        address, count = numbers.data_ptr(), numbers.numel()
    sizes = entries // dim, dim, count
    size, threads = vectors.dtype.itemsize, _threads(entries)
    packed = _PACK["check"](size, threads, vectors.data_ptr(), address, *sizes, tolerance, largest)
    return bool(library.function("check")(packed))


register("check", "c", check, dtypes=EXACT)


# Functions of κ


def _curve(kappa: Tensor, table: Table, slope: Tensor | None = None) -> Tensor:
    """Return a function of κ, and write its derivative to ``slope``."""
    value = torch.empty_like(kappa, memory_format=torch.contiguous_format)
    count = kappa.numel()
    _call("curve", kappa.dtype, _CURVE_WORK * count, _curve_struct(value, slope, kappa, count, table))
    return value


def _curve_struct(
    value: Tensor | int | None, slope: Tensor | int | None, kappa: Tensor | int, count: int, table: Table
) -> Struct:
    """Return ``curve_call``."""
    rows, (first, gain, decay) = table
    return (value, slope, kappa, rows), (count, first, rows.shape[0] - 1, gain, decay)


register_curve("c", _curve)


# Draws


class _Key(threading.local):
    """Memory for the key of the library's own generator, Philox; one per thread."""

    def __init__(self) -> None:
        with torch.inference_mode(False):
            self.memory = torch.empty((), dtype=torch.int64, device="cpu")


_key = _Key()


def _new_key(generator: torch.Generator | None) -> Tensor:
    """Return a random key, until the next call in this thread."""
    if generator is not None and isinstance(generator, KeyedGenerator):  # asking for the class takes 0.2 µs
        return _key.memory.fill_(generator.key)
    return _key.memory.random_(generator=generator)


def _draw_call(
    name: str,
    layout: DrawLayout,
    options: DrawOptions,
    parameters: Tensors,
    kept: tuple[Tensor | None, Tensor | None],
    key: Tensor | None = None,
    gradients: Gradients = (None, None, None),
) -> None:
    """Call "draw" or "pull_back".

    Args:
        name, layout, options, parameters: of the draw.
        kept: the points and the scalars.
        key: for draws, the random key.
        gradients: those in x, in the directions and in κ. Without the first one, the last gets the slopes.
    """
    (loc, kappa), (family, dim, _, _, quadrature), dtype = parameters, options, parameters[1].dtype
    (rows, width, *_), mean, rule = layout.sizes, None, None
    loc = loc if loc.dtype is dtype else unit_vectors_as(loc, dtype)
    loc = loc if layout.loc_shape is None else loc.expand(layout.loc_shape)
    if gradients[2] is not None and dtype is torch.float64 and (found := quadrature(family, dim)):
        table, rule = found
        mean = _curve(kappa, table).neg_()
        mean = mean if layout.kappa_shape is None else mean.expand(layout.kappa_shape)
        width = max(width, _SLOPE_WORK)
    kappa = kappa if layout.kappa_shape is None else kappa.expand(layout.kappa_shape)
    arrays = *kept, loc, kappa, key, *gradients, mean, rule
    _call(name, dtype, rows * width, (arrays, (*layout.sizes, dim, NUMBERS[family])))


def draw(tensors: Tensors, options: DrawOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return points x of shape ``shape + (d,)`` in the dtype of ``loc``, and (x, scalars) if a gradient is needed.

    The scalars 1-t, 1+t and noise have the shape (3, *shape) and the dtype of κ, in which everything is computed.
    """
    (loc, kappa), (_, _, shape, generator, _) = tensors, options
    layout = DrawLayout.of(shape, loc.shape, kappa.shape)
    x = kappa.new_empty(*layout.points)  # a tuple as the argument takes more time
    scalars = kappa.new_empty(3, *shape) if any(needed) else None
    _draw_call("draw", layout, options, tensors, (x, scalars), _new_key(generator))
    x = x if x.dtype is loc.dtype else x.to(loc.dtype)
    return x, () if scalars is None else (x, scalars)


def draw_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DrawOptions
) -> Gradients:
    """Return the gradients of ``draw`` in ``loc`` and in κ, None where they are not needed."""
    (grad,), (loc, kappa), (x, scalars), (_, _, shape, *_) = grads, tensors, kept, options
    assert grad is not None
    dtype, (needs_loc, needs_kappa) = kappa.dtype, needed
    layout = DrawLayout.of(shape, loc.shape, kappa.shape)
    if loc.dtype is not dtype:
        grad, x = grad.to(dtype), x.to(dtype)
    in_loc = kappa.new_empty(*layout.directions) if needs_loc else None
    in_kappa = kappa.new_empty(shape) if needs_kappa else None
    _draw_call("pull_back", layout, options, tensors, (x, scalars), None, (grad, in_loc, in_kappa))
    if in_loc is not None:
        in_loc = in_loc if in_loc.shape == loc.shape else in_loc.sum_to_size(loc.shape)
        in_loc = in_loc if loc.dtype is dtype else in_dtype_of(in_loc, loc)
    if in_kappa is not None and in_kappa.shape != kappa.shape:
        in_kappa = in_kappa.sum_to_size(kappa.shape)
    return in_loc, in_kappa


def slopes(family: str, scalars: Tensor, kappa: Tensor, dim: int, quadrature: Quadrature) -> Tensor:
    """Return d artanh(t)/dκ of each row, given the scalars of ``draw``."""
    shape = scalars.shape[1:]
    none, result = kappa.new_empty(1), kappa.new_empty(shape)
    layout, options = DrawLayout.of(shape, none.shape, kappa.shape), (family, dim, shape, None, quadrature)
    _draw_call("pull_back", layout, options, (none, kappa), (None, scalars), None, (None, None, result))
    return result


register("draw", "c", draw, draw_gradients, dtypes=EXACT)
register("slopes", "c", slopes, dtypes=EXACT)


# Log-densities


def density_serves(family: str, x: Tensor, loc: Tensor, kappa: Tensor) -> bool:
    """Whether ``density`` takes these arguments."""
    dtypes = (kappa.dtype,) if kappa.dtype is torch.float64 else (kappa.dtype, *HALVES)
    if x.dtype not in dtypes or loc.dtype not in dtypes or not x.is_cpu or not loc.is_cpu:
        return False
    return DensityLayout.of(x.shape, loc.shape, kappa.shape) is not None


def density(tensors: Tensors, options: DensityOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the log-density with respect to the area, and what ``_density_call`` keeps if a gradient is needed."""
    x, loc, kappa = tensors
    layout = DensityLayout.of(x.shape, loc.shape, kappa.shape)
    assert layout is not None
    value, count = kappa.new_empty(layout.shape), 0 if options[1] is None else kappa.numel()
    keeps = any(needed)
    memory = kappa.new_empty(2 * (count + layout.sizes[0]) if keeps else count)
    _density_call("density", layout, tensors, options, memory, value, keeps)
    return value, (memory,) if keeps else ()


def density_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DensityOptions
) -> Gradients:
    """Return the gradients of ``density`` in x, loc and kappa, None where they are not needed."""
    (grad,), (memory,), (x, loc, kappa) = grads, kept, tensors
    layout = DensityLayout.of(x.shape, loc.shape, kappa.shape)
    assert layout is not None
    assert grad is not None
    if not any(grad.stride()):  # one number for all rows, such as the gradient of a sum
        grad = grad.as_strided((1,), (1,))
    found = tuple(
        [
            kappa.new_empty(shape) if needs else None
            for shape, needs in zip(layout.results, needed, strict=True)
        ]
    )
    _density_call(
        "density_gradient",
        layout,
        tensors,
        options,
        memory.contiguous().resolve_neg(),
        None,
        True,
        grad,
        found,
    )
    if layout.is_direct and x.dtype is loc.dtype is kappa.dtype:
        return found
    return tuple(map(_settled, found, layout.tiles, tensors))


def _settled(grad: Tensor | None, tile: Tile, like: Tensor) -> Tensor | None:
    """Return the gradient in an argument, given the one that the library wrote."""
    return None if grad is None else in_dtype_of(tile.add_up(grad, like), like)


def _density_call(
    name: str,
    layout: DensityLayout,
    tensors: Tensors,
    options: DensityOptions,
    memory: Tensor,
    value: Tensor | None,
    keeps: bool,
    grad: Tensor | None = None,
    found: Gradients = (None, None, None),
) -> None:
    """Call "density" or "density_gradient".

    The memory holds -Ψ of each κ and, if it ``keeps`` what the gradient needs, then its slopes, 1-t and 1+t.
    """
    (x, loc, kappa), (family, table, log_area), dtype = tensors, options, tensors[2].dtype
    x = x if x.dtype is dtype else unit_vectors_as(x, dtype)
    loc = loc if loc.dtype is dtype else unit_vectors_as(loc, dtype)
    rows, dim, *_ = layout.sizes
    start, count = memory.data_ptr(), 0 if table is None else kappa.numel()
    offset = start if count else 0
    slope = start + dtype.itemsize * count if keeps and count else 0
    ends = start + 2 * dtype.itemsize * count if keeps else 0
    curve: Struct = (offset, slope, 0, 0), (0,) * 5  # no functions of κ
    if table is not None and grad is None:
        curve = _curve_struct(offset, slope, kappa, count, table)
    grad_step = 0 if grad is None or grad.numel() == 1 else 1
    arrays = value, ends, x, loc, kappa, grad, *found
    _call(name, dtype, rows * dim, (arrays, (grad_step, *layout.sizes, NUMBERS[family], log_area)), curve)


register("density", "c", density, density_gradients, density_serves, EXACT)


# Matrices of log-densities


def matrix(
    family: str,
    products: Tensor,
    kappa: Tensor,
    table: Table | None,
    log_area: float,
    dim: int,
    scales: Tensors,
    out: Tensor,
) -> Tensor:
    """Write log-densities (B, N) to ``out``, which may be ``products``. Return the derivatives of -Ψ in κ, (B, 1).

    Args:
        family: its name.
        products: inner products of B directions and N points of any length, (B, N).
        kappa: (B, 1).
        table: of -Ψ, for an exponential family.
        log_area: the log of the area of the sphere.
        dim: d.
        scales: 1 over the lengths of the directions, and of the points.
        out: (B, N).
    """
    slope = torch.empty_like(kappa) if table else torch.zeros_like(kappa)
    offset = _curve(kappa, table, slope) if table else slope
    _matrix_call(family, out, products, scales, kappa, offset, dim, -log_area)
    return slope


def matrix_gradients(
    family: str, grad: Tensor, products: Tensor, kappa: Tensor, slope: Tensor, dim: int, scales: Tensors
) -> tuple[Tensor, Tensor]:
    """Return the gradients in the products and in κ, given those in the log-densities.

    ``slope`` is what ``matrix`` returned, and the other arguments are those of ``matrix``.
    """
    result, in_kappa = products.new_empty(products.shape), kappa.new_empty(kappa.shape)
    _matrix_call(family, result, products, scales, kappa, slope, dim, 0.0, grad, in_kappa)
    return result, in_kappa


def _matrix_call(
    family: str,
    result: Tensor,
    products: Tensor,
    scales: Tensors,
    kappa: Tensor,
    offset: Tensor,
    dim: int,
    shift: float,
    grad: Tensor | None = None,
    in_kappa: Tensor | None = None,
) -> None:
    """Call "matrix"."""
    arrays, sizes = (result, products, *scales, kappa, offset, grad, in_kappa), products.shape
    _call("matrix", products.dtype, products.numel(), (arrays, (*sizes, dim, NUMBERS[family], shift)))


def project_(grad: Tensor, vectors: Tensor, scale: Tensor) -> None:
    """Project gradients (N, d) on the tangent space at each vector of length 1/``scale``, in place."""
    _call("project", grad.dtype, grad.numel(), ((grad, vectors, scale), grad.shape))


register("matrix", "c", matrix, matrix_gradients, dtypes=EXACT, scales=True)


# Heads


def _head_call(name: str, outputs: Tensor, options: HeadOptions, *others: Tensor | None) -> None:
    """Call "head" or "head_gradient". ``others`` are the arrays of ``head_call`` but for the outputs, in order."""
    (dim, *bounds), (loc, kappa, *gradients) = options, others
    entries, count = outputs.shape[-1], outputs.numel()
    numbers = count // entries, dim, entries, *bounds
    _call(name, outputs.dtype, count, ((loc, kappa, outputs, *gradients), numbers))


def head(tensors: Tensors, options: HeadOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return (μ, κ) for the outputs (v, r) of a head, or (μ,) for v."""
    (outputs,) = tensors
    exact = outputs.to(computing(outputs.dtype))
    *batch, entries = exact.shape
    loc = exact.new_empty((*batch, options[0]))
    kappa = exact.new_empty(batch) if entries > options[0] else None
    _head_call("head", exact, options, loc, kappa, None, None, None)
    return (loc,) if kappa is None else (loc, kappa), (loc,)


def head_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    (outputs,), (loc,) = tensors, kept
    exact = outputs.to(computing(outputs.dtype))
    result = exact.new_empty(exact.shape)
    _head_call("head_gradient", exact, options, loc, None, *(*grads, None)[:2], result)
    return (result.to(outputs.dtype),)


register("head", "c", head, head_gradients, dtypes=(*EXACT, *HALVES))


# Bottlenecks: a head, draws around its directions, and the rate. They compute in float32.


def _latents_call(
    name: str,
    outputs: Tensor,
    options: LatentsOptions,
    kept: Tensors,
    key: Tensor | None = None,
    rate: Tensor | None = None,
    grads: Gradients = (None, None),
    gradient: Tensor | None = None,
) -> None:
    """Call "latents" or "latents_gradient"."""
    (family, dim, bounds), table, *_ = options
    rows = outputs.numel() // (dim + 1)
    # The parameters μ and κ, and for the gradient those in them.
    scratch = outputs.new_empty(2 if name == "latents_gradient" else 1, rows * (dim + 1))
    loc, step = scratch.data_ptr(), 4 * rows
    kappa = loc + step * dim
    in_loc, in_kappa = kappa + step, kappa + step * (dim + 1)
    (x, scalars), (grad, grad_rate) = kept, grads
    slope = scalars.data_ptr() + 3 * step
    head = loc, kappa, outputs, None if grad is None else in_loc, in_kappa, gradient
    draw = x, scalars, loc, kappa, key, grad, in_loc, in_kappa, None, None
    structs: tuple[Struct, ...] = (
        ((grad_rate,), ()),
        (head, (rows, dim, dim + 1, *bounds, SHORT)),
        (draw, (rows, dim, rows, 1, dim, NUMBERS[family])),
        _curve_struct(rate, slope, kappa, rows, table),
    )
    _call(name, torch.float32, rows * dim, *structs)


def latents(tensors: Tensors, options: LatentsOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return z and its rate for outputs (v, r), and (x, scalars) for the gradient.

    The scalars are those of ``draw`` and the slope of the rate.
    """
    (outputs,), (settings, _, radius, dtype) = tensors, options
    outputs = outputs.float()
    *batch, _ = outputs.shape
    x, rate = outputs.new_empty(*batch, settings.dim), outputs.new_empty(batch)
    scalars = outputs.new_empty(4, *batch)
    _latents_call("latents", outputs, options, (x, scalars), _new_key(None), rate)
    return ((x if radius == 1 else radius * x).to(dtype), rate), (x, scalars)


def latents_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: LatentsOptions
) -> Gradients:
    """Return the gradient in the outputs, given the gradients in z and in the rate. None means zero."""
    (outputs,), (x, scalars), (grad, grad_rate), radius = tensors, kept, grads, options[2]
    exact = outputs.float()
    if grad is not None:
        grad = grad.float() if radius == 1 else radius * grad.float()
    gradient, parts = exact.new_empty(exact.shape), (x, scalars.contiguous().resolve_neg())
    _latents_call("latents_gradient", exact, options, parts, None, None, (grad, grad_rate), gradient)
    return (gradient.to(outputs.dtype),)


register("latents", "c", latents, latents_gradients, dtypes=(torch.float32, *HALVES))
