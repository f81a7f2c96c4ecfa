"""Heads and bottlenecks with Triton: one kernel from a head's outputs to its results, one for the gradient.

The results of a head are the parameters μ and κ. Those of a bottleneck are latents and rates: its kernel computes μ and
κ, draws as ``draw`` does, and writes z, the rate, and for the backward pass x, and 1-t, 1+t, the noise and the slope of
the rate of each row. The backward kernel computes μ and κ again instead of loading them. All in float32.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.registry import (
    SHORT,
    Gradients,
    HeadOptions,
    LatentsOptions,
    Tensors,
    register,
    z_is_x,
)
from powerspherical.kernels.triton.curve import table_value
from powerspherical.kernels.triton.draw import (
    added_row,
    dot,
    load_row,
    point,
    quarters,
    scaled_row,
    store_row,
    tile,
)
from powerspherical.kernels.triton.formulas import concentration
from powerspherical.kernels.triton.pull_back import concentration_gradient
from powerspherical.kernels.triton.random import random_seed, runs_fast
from powerspherical.kernels.triton.slope import rapidity_slope, slope_method

#: Largest dimension of a head, and of a bottleneck. A program holds whole rows in registers.
_LARGEST_HEAD, _LARGEST_DIM = 1 << 14, 1024

#: Quads per program, quads per thread and rows per thread, see ``tile``: the fastest of those tried on an H200.
_VALUES, _GRADIENTS = (256, 4, 1), (64, 2, 2)

#: v counts as zero if no |vᵢ| exceeds this.
_SHORTEST = tl.constexpr(SHORT)


@triton.jit
def _direction(v, column):
    """Rows μ = v/‖v‖, and 1/‖v‖. A v that counts as zero has the first unit vector added."""
    largest = tl.maximum(tl.maximum(tl.abs(v[0]), tl.abs(v[1])), tl.maximum(tl.abs(v[2]), tl.abs(v[3])))
    longest = tl.max(largest, 1)
    short = longest <= _SHORTEST
    v = (tl.where(short[:, None] & (column == 0), v[0] + 1.0, v[0]), v[1], v[2], v[3])
    # Scaling by a constant changes the direction by rounding only, and avoids overflow of the squares.
    scale = 1.0 / tl.where(short, 1.0, longest)
    v = scaled_row(scale[:, None], v)
    inverse = 1.0 / tl.sqrt(dot(v, v))
    return scaled_row(inverse[:, None], v), inverse * scale


@triton.jit
def _concentration(
    outputs_ptr, row, row_mask, minimum, maximum, inverse_span, DIM: tl.constexpr, ENTRIES: tl.constexpr
):
    """κ and dκ/dr of rows of outputs. Without r, κ is ``minimum``."""
    if ENTRIES > DIM:
        raw = tl.load(outputs_ptr + row * ENTRIES + DIM, mask=row_mask, other=0.0).to(tl.float32)
        kappa, slope = concentration(raw, minimum, maximum, inverse_span)
    else:
        slope = row * 0.0
        kappa = slope + minimum
    return kappa, slope


@triton.jit(do_not_specialize=["seed", "rows"])
def _values(
    z_ptr,
    rate_ptr,
    x_ptr,
    scalars_ptr,
    outputs_ptr,
    table_ptr,
    seed_ptr,
    seed: tl.int64,
    rows: tl.int64,
    minimum: tl.float32,
    maximum: tl.float32,
    inverse_span: tl.float32,
    radius: tl.float32,
    DRAWS: tl.constexpr,
    SEED_IN_MEMORY: tl.constexpr,
    FAMILY: tl.constexpr,
    FAST: tl.constexpr,
    X_IS_Z: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    GAIN: tl.constexpr,
    WIDTH: tl.constexpr,
    ENTRIES: tl.constexpr,
    DIM: tl.constexpr,
    QUARTER: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    """Write ROWS rows of z, rates, x and scalars; without DRAWS, μ in place of z and κ in place of the rate."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    there = row_mask[:, None]
    column, masks = quarters(DIM, QUARTER, QUADS)
    place = row[:, None] * DIM + column
    v = load_row(outputs_ptr + row[:, None] * ENTRIES + column, masks, there, QUARTER)
    loc, _ = _direction(v, column)
    kappa, _ = _concentration(outputs_ptr, row, row_mask, minimum, maximum, inverse_span, DIM, ENTRIES)
    if DRAWS:
        if SEED_IN_MEMORY:
            seed = tl.load(seed_ptr)
        x, minus, plus, noise = point(
            loc, kappa, seed, row, column, masks, DIM - 1.0, FAMILY, False, DIM == 3, FAST, DIM
        )
        rate, slope = table_value(kappa, table_ptr, FIRST, LAST, GAIN, 0.0, WIDTH)
        tl.store(rate_ptr + row, rate, mask=row_mask)
        tl.store(scalars_ptr + row, minus, mask=row_mask)
        tl.store(scalars_ptr + rows + row, plus, mask=row_mask)
        tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
        tl.store(scalars_ptr + 3 * rows + row, slope, mask=row_mask)
        if not X_IS_Z:
            store_row(x_ptr + place, x, masks, there, QUARTER)
            x = scaled_row(radius, x)
        store_row(z_ptr + place, x, masks, there, QUARTER)
    else:
        store_row(z_ptr + place, loc, masks, there, QUARTER)
        if ENTRIES > DIM:
            tl.store(rate_ptr + row, kappa, mask=row_mask)


@triton.jit(do_not_specialize=["rows"])
def _gradients(
    gradient_ptr,
    outputs_ptr,
    x_ptr,
    scalars_ptr,
    grad_ptr,
    grad_rate_ptr,
    rows: tl.int64,
    minimum: tl.float32,
    maximum: tl.float32,
    inverse_span: tl.float32,
    radius: tl.float32,
    DRAWS: tl.constexpr,
    METHOD: tl.constexpr,
    HAS_Z: tl.constexpr,
    HAS_RATE: tl.constexpr,
    ENTRIES: tl.constexpr,
    DIM: tl.constexpr,
    QUARTER: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    """Write the gradient in ROWS rows of outputs, given those in z and the rate; without DRAWS, in μ and κ."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    there = row_mask[:, None]
    column, masks = quarters(DIM, QUARTER, QUADS)
    outputs = outputs_ptr + row[:, None] * ENTRIES + column
    kappa, kappa_slope = _concentration(
        outputs_ptr, row, row_mask, minimum, maximum, inverse_span, DIM, ENTRIES
    )
    grad_kappa = kappa * 0.0
    zero = (there & masks[0]).to(tl.float32) * 0.0
    gradient = zero, zero, zero, zero
    if HAS_Z:
        # The same operations as in the forward pass: at large κ, x - tμ is sensitive to the rounding of μ.
        loc, scale = _direction(load_row(outputs, masks, there, QUARTER), column)
        place = row[:, None] * DIM + column
        grad = scaled_row(radius, load_row(grad_ptr + place, masks, there, QUARTER))
        along = dot(grad, loc)
        if DRAWS:
            x = load_row(x_ptr + place, masks, there, QUARTER)
            minus = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
            plus = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
            t = (1.0 - minus)[:, None]
            across = dot(added_row(grad, -along[:, None], loc), added_row(x, -t, loc))
            if ENTRIES > DIM:
                noise_ptr = scalars_ptr + 2 * rows + row
                slope = rapidity_slope(METHOD, noise_ptr, kappa, DIM - 1.0, minus, plus, row_mask)
                grad_kappa = concentration_gradient(along, across, minus, plus, slope)
            gradient = added_row(scaled_row(t, grad), -along[:, None], x)
        else:
            gradient = added_row(grad, -along[:, None], loc)
        # The gradient in μ is tangential, so the chain rule divides it by ‖v‖.
        gradient = scaled_row(scale[:, None], gradient)
    store_row(gradient_ptr + row[:, None] * ENTRIES + column, gradient, masks, there, QUARTER)
    if ENTRIES > DIM:
        if HAS_RATE:
            grad_rate = tl.load(grad_rate_ptr + row, mask=row_mask, other=0.0)
            if DRAWS:
                grad_rate *= tl.load(scalars_ptr + 3 * rows + row, mask=row_mask, other=0.0)
            grad_kappa += grad_rate
        result = (grad_kappa * kappa_slope).to(gradient_ptr.dtype.element_ty)
        tl.store(gradient_ptr + row * ENTRIES + DIM, result, mask=row_mask)


def _launch(
    kernel: object,
    tensors: Sequence[Tensor | None],
    outputs: Tensor,
    numbers: Sequence[float],
    bounds: Sequence[float],
    radius: float,
    constants: Sequence[object],
    dim: int,
    sizes: tuple[int, int, int, int],
) -> None:
    """Launch one of the two kernels, on programs of the ``sizes`` that ``tile`` returns.

    ``numbers`` come before the number of rows, and ``constants`` before ENTRIES.
    """
    minimum, maximum = bounds
    entries = outputs.shape[-1]
    inverse_span = 1 / (maximum - minimum) if entries > dim else 0.0
    *program, warps = sizes
    rows = outputs.numel() // entries
    launch(
        kernel,
        (blocks(rows, program[1]), 1),
        tensors,
        (*numbers, rows, minimum, maximum, inverse_span, float(radius)),
        (*constants, entries, dim, *program),
        warps,
    )


def latents(tensors: Tensors, options: LatentsOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return z and its rate, and what the gradient needs, see ``native.latents``."""
    (outputs,), (settings, table, radius, dtype) = tensors, options
    family, dim, bounds = settings
    *batch, _ = outputs.shape
    device = outputs.device
    seed, same = random_seed(device), z_is_x(radius, dtype)
    in_memory = isinstance(seed, Tensor)
    z = torch.empty((*batch, dim), dtype=dtype, device=device)
    x = z if same else torch.empty(z.shape, dtype=torch.float32, device=device)
    rate, scalars = (x.new_empty(shape) for shape in (batch, (4, *batch)))
    cells, (first, gain, _) = table
    count, width = cells.shape
    pointers = z, rate, x, scalars, outputs, cells, seed if in_memory else None
    constants = True, in_memory, family, runs_fast(device), same, first, count - 1, gain, width
    numbers, sizes = (0 if in_memory else seed,), tile(dim, family, *_VALUES)
    _launch(_values, pointers, outputs, numbers, bounds, radius, constants, dim, sizes)
    return (z, rate), (x, scalars)


def latents_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: LatentsOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in z and in the rate. None means zero."""
    (outputs,), ((family, dim, bounds), _, radius, _) = tensors, options
    constants = True, slope_method(family, dim), *(grad is not None for grad in grads)
    return _pulled_back(outputs, kept, grads, bounds, radius, constants, dim)


def _pulled_back(
    outputs: Tensor,
    kept: Gradients,
    grads: Gradients,
    bounds: Sequence[float],
    radius: float,
    constants: Sequence[object],
    dim: int,
) -> Gradients:
    gradient = torch.empty_like(outputs, memory_format=torch.contiguous_format)
    pointers, sizes = (gradient, outputs, *kept, *grads), tile(dim, None, *_GRADIENTS)
    _launch(_gradients, pointers, outputs, (), bounds, radius, constants, dim, sizes)
    return (gradient,)


def head(tensors: Tensors, options: HeadOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return (μ, κ) in float32 for the outputs (v, r) of a head, or (μ,) for v."""
    (outputs,), (dim, *bounds, _) = tensors, options
    *batch, entries = outputs.shape
    loc = torch.empty((*batch, dim), dtype=torch.float32, device=outputs.device)
    kappa = loc.new_empty(batch) if entries > dim else None
    constants = False, False, None, False, False, 0, 0, 0.0, 0
    pointers, sizes = (loc, kappa, None, None, outputs, None, None), tile(dim, None, *_VALUES)
    _launch(_values, pointers, outputs, (0,), bounds, 1.0, constants, dim, sizes)
    return (loc,) if kappa is None else (loc, kappa), ()


def head_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    (outputs,), (dim, *bounds, _) = tensors, options
    given = (*grads, None)[:2]
    constants = False, None, *(grad is not None for grad in given)
    return _pulled_back(outputs, (None, None), given, bounds, 1.0, constants, dim)


_DTYPES = torch.float32, torch.float16, torch.bfloat16
register("latents", "triton", latents, latents_gradients, dtypes=_DTYPES, largest_dim=_LARGEST_DIM)
register("head", "triton", head, head_gradients, dtypes=_DTYPES, largest_dim=_LARGEST_HEAD)
