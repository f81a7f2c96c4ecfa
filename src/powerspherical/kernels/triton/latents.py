"""Heads and bottlenecks with Triton: one kernel from a head's outputs to its results, one for the gradient.

The results of a head are the parameters μ and κ. Those of a bottleneck are latents and rates: its kernel computes μ and
κ, draws as ``draw`` does, and writes z, the rate, and for the backward pass x, and 1-t, 1+t, the noise and the slope of
the rate of each row. The backward kernel computes μ and κ again instead of loading them. All in float32.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.registry import (
    HALVES,
    SHORT,
    Gradients,
    HeadOptions,
    LatentsOptions,
    Tensors,
    register,
    z_is_x,
)
from powerspherical.kernels.triton import vectors
from powerspherical.kernels.triton.curve import table_value
from powerspherical.kernels.triton.draw import point
from powerspherical.kernels.triton.formulas import concentration, concentration_slope
from powerspherical.kernels.triton.pull_back import concentration_gradient
from powerspherical.kernels.triton.random import random_seed
from powerspherical.kernels.triton.slope import rapidity_slope

#: Largest dimension of a bottleneck.
_LARGEST_DIM = 1024

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
    v = vectors.scaled(scale[:, None], v)
    inverse = 1.0 / tl.sqrt(vectors.dot(v, v))
    return vectors.scaled(inverse[:, None], v), inverse * scale


@triton.jit
def _concentration(
    outputs_ptr, row, row_mask, minimum, maximum, inverse_span, DIM: tl.constexpr, ENTRIES: tl.constexpr
):
    """κ and dκ/dr of rows of outputs. Without r, κ is ``minimum``."""
    if ENTRIES > DIM:
        raw = tl.load(outputs_ptr + row * ENTRIES + DIM, mask=row_mask, other=0.0).to(tl.float32)
        kappa = concentration(raw, minimum, maximum, inverse_span)
        slope = concentration_slope(raw, inverse_span)
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
    SEED_IN_MEMORY: tl.constexpr,
    X_IS_Z: tl.constexpr,
    TABLE: tl.constexpr,
    FAMILY: tl.constexpr,
    ENTRIES: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write ROWS rows of z, rates, x and scalars; without FAMILY, μ in place of z and κ in place of the rate.

    TABLE has the numbers of ``table_value``.
    """
    row, row_mask = vectors.program_rows(rows, ROWS)
    there = row_mask[:, None]
    column, masks = vectors.quarters(DIM)
    place = row[:, None] * DIM + column
    v = vectors.load(outputs_ptr + row[:, None] * ENTRIES + column, masks, there, DIM)
    loc, _ = _direction(v, column)
    kappa, _ = _concentration(outputs_ptr, row, row_mask, minimum, maximum, inverse_span, DIM, ENTRIES)
    if FAMILY is not None:
        if SEED_IN_MEMORY:
            seed = tl.load(seed_ptr)
        x, minus, plus, noise = point(loc, kappa, seed, row, column, masks, FAMILY, DIM, DIM)
        rate, slope = table_value(kappa, table_ptr, TABLE[0], TABLE[1], TABLE[2], 0.0, TABLE[3])
        tl.store(rate_ptr + row, rate, mask=row_mask)
        tl.store(scalars_ptr + row, minus, mask=row_mask)
        tl.store(scalars_ptr + rows + row, plus, mask=row_mask)
        tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
        tl.store(scalars_ptr + 3 * rows + row, slope, mask=row_mask)
        if not X_IS_Z:
            vectors.store(x_ptr + place, x, masks, there, DIM)
            x = vectors.scaled(radius, x)
        vectors.store(z_ptr + place, x, masks, there, DIM)
    else:
        vectors.store(z_ptr + place, loc, masks, there, DIM)
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
    HAS_Z: tl.constexpr,
    HAS_RATE: tl.constexpr,
    FAMILY: tl.constexpr,
    ENTRIES: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the gradient in ROWS rows of outputs, given those in z and the rate; without FAMILY, in μ and κ."""
    row, row_mask = vectors.program_rows(rows, ROWS)
    there = row_mask[:, None]
    column, masks = vectors.quarters(DIM)
    outputs = outputs_ptr + row[:, None] * ENTRIES + column
    kappa, kappa_slope = _concentration(
        outputs_ptr, row, row_mask, minimum, maximum, inverse_span, DIM, ENTRIES
    )
    grad_kappa = kappa * 0.0
    zero = (there & masks[0]).to(tl.float32) * 0.0
    gradient = zero, zero, zero, zero
    if HAS_Z:
        # The same operations as in the forward pass: at large κ, x - tμ is sensitive to the rounding of μ.
        loc, scale = _direction(vectors.load(outputs, masks, there, DIM), column)
        place = row[:, None] * DIM + column
        grad = vectors.scaled(radius, vectors.load(grad_ptr + place, masks, there, DIM))
        along = vectors.dot(grad, loc)
        if FAMILY is not None:
            x = vectors.load(x_ptr + place, masks, there, DIM)
            minus = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
            plus = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
            t = (1.0 - minus)[:, None]
            across = vectors.dot(vectors.added(grad, -along[:, None], loc), vectors.added(x, -t, loc))
            if ENTRIES > DIM:
                noise_ptr = scalars_ptr + 2 * rows + row
                slope = rapidity_slope(noise_ptr, kappa, minus, plus, row_mask, FAMILY, DIM)
                grad_kappa = concentration_gradient(along, across, minus, plus, slope)
            gradient = vectors.added(vectors.scaled(t, grad), -along[:, None], x)
        else:
            gradient = vectors.added(grad, -along[:, None], loc)
        # The gradient in μ is tangential, so the chain rule divides it by ‖v‖.
        gradient = vectors.scaled(scale[:, None], gradient)
    vectors.store(gradient_ptr + row[:, None] * ENTRIES + column, gradient, masks, there, DIM)
    if ENTRIES > DIM:
        if HAS_RATE:
            grad_rate = tl.load(grad_rate_ptr + row, mask=row_mask, other=0.0)
            if FAMILY is not None:
                grad_rate *= tl.load(scalars_ptr + 3 * rows + row, mask=row_mask, other=0.0)
            grad_kappa += grad_rate
        result = (grad_kappa * kappa_slope).to(gradient_ptr.dtype.element_ty)
        tl.store(gradient_ptr + row * ENTRIES + DIM, result, mask=row_mask)


def _launch(
    kernel: object,
    tensors: Sequence[Tensor | None],
    outputs: Tensor,
    settings: Sequence[Any],
    radius: float,
    constants: Sequence[object],
    *seed: int,
) -> None:
    """Launch one of the two kernels. The family in ``settings`` is None for heads. ``constants`` come before FAMILY."""
    (family, dim, (minimum, maximum)), entries = settings, outputs.shape[-1]
    rows = outputs.numel() // entries
    # Quads per program, quads per thread and rows per thread: the fastest of those tried on an H200.
    sizes = (family, 256, 4, 1) if kernel is _values else (None, 64, 2, 2)
    block, warps = vectors.program(dim, *sizes)
    inverse_span = 1 / (maximum - minimum) if entries > dim else 0.0
    numbers = *seed, rows, minimum, maximum, inverse_span, float(radius)
    launch(
        kernel, (blocks(rows, block), 1), tensors, numbers, (*constants, family, entries, dim, block), warps
    )


def latents(tensors: Tensors, options: LatentsOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return z and its rate, and what the gradient needs, see ``native.latents``."""
    (outputs,), (settings, (cells, (first, gain, _)), radius, dtype) = tensors, options
    (*batch, _), same = outputs.shape, z_is_x(radius, dtype)
    z = torch.empty((*batch, settings.dim), dtype=dtype, device=outputs.device)
    x = z if same else torch.empty(z.shape, dtype=torch.float32, device=outputs.device)
    rate, scalars = (x.new_empty(shape) for shape in (batch, (4, *batch)))
    memory, seed = random_seed(outputs.device)
    count, width = cells.shape
    constants = memory is not None, same, (first, count - 1, gain, width)
    _launch(
        _values, (z, rate, x, scalars, outputs, cells, memory), outputs, settings, radius, constants, seed
    )
    return (z, rate), (x, scalars)


def latents_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: LatentsOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in z and in the rate. None means zero."""
    settings, _, radius, _ = options
    return _pulled_back(*tensors, kept, grads, settings, radius)


def head(tensors: Tensors, options: HeadOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return (μ, κ) in float32 for the outputs (v, r) of a head, or (μ,) for v."""
    (outputs,), (dim, *bounds, _) = tensors, options
    *batch, entries = outputs.shape
    loc = torch.empty((*batch, dim), dtype=torch.float32, device=outputs.device)
    kappa = loc.new_empty(batch) if entries > dim else None
    pointers = loc, kappa, None, None, outputs, None, None
    _launch(_values, pointers, outputs, (None, dim, bounds), 1.0, (False, False, None), 0)
    return (loc,) if kappa is None else (loc, kappa), ()


def head_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    dim, *bounds, _ = options
    return _pulled_back(*tensors, (None, None), (*grads, None)[:2], (None, dim, bounds), 1.0)


def _pulled_back(
    outputs: Tensor, kept: Gradients, grads: Gradients, settings: Sequence[Any], radius: float
) -> Gradients:
    gradient = torch.empty_like(outputs, memory_format=torch.contiguous_format)
    given = [grad is not None for grad in grads]
    _launch(_gradients, (gradient, outputs, *kept, *grads), outputs, settings, radius, given)
    return (gradient,)


_DTYPES = torch.float32, *HALVES
register("latents", "triton", latents, latents_gradients, dtypes=_DTYPES, largest_dim=_LARGEST_DIM)
register("head", "triton", head, head_gradients, dtypes=_DTYPES, largest_dim=vectors.LARGEST_DIM)
