"""The backward pass of a draw with Triton, in one kernel that reads each of g, x and μ once.

Let g be the gradient in x. The gradient in μ is t g - (g·μ)x, summed over the rows that share a direction. The gradient
in κ is (dt/dκ)/(1-t²) times (1-t²) g·μ - t (g - (g·μ)μ)·(x - tμ). ``sampling.composition.draw_gradients`` explains
both. A μ in half precision is normalised first, as in the draw. The gradient in μ is tangential, so the chain rule
divides it by ‖μ‖. If many rows share few directions, each program sums over its rows, and torch adds the partial sums.
"""

# mypy: ignore-errors

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from powerspherical.kernels.launch import blocks, launch, next_power_of_two
from powerspherical.kernels.layout import DrawLayout
from powerspherical.kernels.registry import DrawOptions, Gradients, Tensors, register
from powerspherical.kernels.triton.draw import draw
from powerspherical.kernels.triton.slope import rapidity_slope, slope_method

#: Coordinates of g that a program holds at a time, unless a single row has more, and the most rows: one per thread.
_ELEMENTS, _ROWS = 1024, 128

#: The most programs if rows share directions: eight for each of the 132 multiprocessors of an H100.
_PROGRAMS = 1056

#: Longer rows, if each has its own direction, are read in chunks: twice, the second time from the cache.
_LONG = 4096
_CHUNK, _CHUNK_WARPS = 4096, 16


@triton.jit
def concentration_gradient(along, across, minus, plus, slope):
    """The gradient in κ of each row, where ``across`` is the inner product of the tangential parts of g and x."""
    return slope * (minus * plus * along - (1.0 - minus) * across)


@triton.jit(do_not_specialize=["rows", "directions", "kappa_stride"])
def _pull_back(
    grad_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    x_ptr,
    loc_ptr,
    scalars_ptr,
    kappa_ptr,
    rows: tl.int64,
    directions: tl.int64,
    kappa_stride: tl.int64,
    degrees: tl.float32,
    SHARED: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    METHOD: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pull back rows of ROWS directions: for each direction, every num_programs(1)-th row that has it.

    With SHARED there is only one direction, and a program treats ROWS of its rows at a time. METHOD is that of
    ``rapidity_slope``, or None if the gradient in κ is not needed.
    """
    column = tl.arange(0, COLUMNS)[None, :]
    inside = column < DIM
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if SHARED:
        direction_mask = block >= 0
        loc = tl.load(loc_ptr + column, mask=inside, other=0.0).to(tl.float32)
        step = ROWS
    else:
        direction_mask = block < directions
        loc = tl.load(
            loc_ptr + block[:, None] * DIM + column, mask=inside & direction_mask[:, None], other=0.0
        )
        loc = loc.to(tl.float32)
        step = directions
    if loc_ptr.dtype.element_ty != tl.float32:
        scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(loc * loc, 1)), 1e-12)[:, None]
        loc = loc * scale
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block  # with SHARED, ``block`` numbers rows instead of directions
        row_mask = direction_mask & (row < rows)
        mask = inside & row_mask[:, None]
        place = row[:, None] * DIM + column
        grad = tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
        minus = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
        plus = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
        t = 1.0 - minus
        along = tl.sum(grad * loc, 1)
        if NEEDS_LOC:
            total += t[:, None] * grad - along[:, None] * x
        if METHOD is not None:
            across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
            kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=1.0)
            noise_ptr = scalars_ptr + 2 * rows + row
            slope = rapidity_slope(METHOD, noise_ptr, kappa, degrees, minus, plus, row_mask)
            result = concentration_gradient(along, across, minus, plus, slope)
            tl.store(grad_kappa_ptr + row, result, mask=row_mask)
        turn += tl.num_programs(1)
    if NEEDS_LOC:
        part = grad_loc_ptr + tl.program_id(1).to(tl.int64) * directions * DIM
        if loc_ptr.dtype.element_ty != tl.float32:
            total = total * scale
        if SHARED:
            summed = tl.sum(total, 0)[None, :]
            tl.store(part + column, summed.to(part.dtype.element_ty), mask=inside)
        else:
            place = block[:, None] * DIM + column
            tl.store(part + place, total.to(part.dtype.element_ty), mask=inside & direction_mask[:, None])


@triton.jit(do_not_specialize=["rows", "directions", "kappa_stride"])
def _pull_back_long(
    grad_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    x_ptr,
    loc_ptr,
    scalars_ptr,
    kappa_ptr,
    rows: tl.int64,
    directions: tl.int64,
    kappa_stride: tl.int64,
    degrees: tl.float32,
    NEEDS_LOC: tl.constexpr,
    METHOD: tl.constexpr,
    DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Pull back one long row that has its own direction, in chunks, because registers cannot hold it."""
    row = tl.program_id(0).to(tl.int64)
    start = row * DIM
    along_terms = tl.zeros((CHUNK,), tl.float32)
    square_terms = tl.zeros((CHUNK,), tl.float32)
    for first in range(0, DIM, CHUNK):
        column = first + tl.arange(0, CHUNK)
        mask = column < DIM
        grad = tl.load(grad_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        loc = tl.load(loc_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        along_terms += grad * loc
        if loc_ptr.dtype.element_ty != tl.float32:
            square_terms += loc * loc
    scale = 1.0
    if loc_ptr.dtype.element_ty != tl.float32:
        scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(square_terms, 0)), 1e-12)
    along = tl.sum(along_terms, 0) * scale
    minus, plus = tl.load(scalars_ptr + row), tl.load(scalars_ptr + rows + row)
    t = 1.0 - minus
    across_terms = tl.zeros((CHUNK,), tl.float32)
    for first in range(0, DIM, CHUNK):
        column = first + tl.arange(0, CHUNK)
        mask = column < DIM
        grad = tl.load(grad_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        loc = tl.load(loc_ptr + start + column, mask=mask, other=0.0).to(tl.float32) * scale
        x = tl.load(x_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        across_terms += (grad - along * loc) * (x - t * loc)
        if NEEDS_LOC:
            result = ((t * grad - along * x) * scale).to(grad_loc_ptr.dtype.element_ty)
            tl.store(grad_loc_ptr + start + column, result, mask=mask)
    if METHOD is not None:
        across = tl.sum(across_terms, 0)
        one = row + tl.arange(0, 1)  # a vector of one row
        kappa = tl.load(kappa_ptr + one * kappa_stride)
        noise_ptr = scalars_ptr + 2 * rows + one
        slope = rapidity_slope(METHOD, noise_ptr, kappa, degrees, minus, plus, one >= 0)
        tl.store(grad_kappa_ptr + one, concentration_gradient(along, across, minus, plus, slope))


def draw_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DrawOptions
) -> Gradients:
    """Return the gradients in ``loc`` and in κ, None where they are not needed."""
    (grad,), (loc, kappa), (x, scalars), (family, dim, shape, *_) = grads, tensors, kept, options
    (needs_loc, needs_kappa), layout = needed, DrawLayout.of(shape, loc.shape, kappa.shape)
    rows, width, count, kappa_step = layout.sizes
    numbers = rows, count, kappa_step, float(dim - 1)
    slope = slope_method(family, dim) if needs_kappa else None
    in_kappa = torch.empty(shape, dtype=kappa.dtype, device=x.device) if needs_kappa else None
    directions, kappas = layout.expanded(loc, kappa)
    read = x, directions, scalars, kappas
    if count == rows and width > _LONG:
        sums = loc.new_empty(layout.directions) if needs_loc else None
        constants = needs_loc, slope, width, _CHUNK
        launch(_pull_back_long, (rows, 1), (grad, sums, in_kappa, *read), numbers, constants, _CHUNK_WARPS)
    else:
        shared, columns = count == 1, next_power_of_two(width)
        block = max(1, min(_ELEMENTS // columns, _ROWS))
        grid = 1 if shared else blocks(count, block)
        turns = blocks(rows, block) if shared else rows // max(count, 1)
        parts = max(1, min(turns, _PROGRAMS // max(grid, 1)))
        dtype = loc.dtype if parts == 1 else torch.float32
        sums = torch.empty((parts, count, width), dtype=dtype, device=x.device) if needs_loc else None
        constants = shared, needs_loc, slope, width, block, columns
        warps = 4 if block * columns <= 4096 else 8 if block * columns <= 8192 else 16
        launch(_pull_back, (grid, parts), (grad, sums, in_kappa, *read), numbers, constants, warps)
        if sums is not None and parts > 1:
            sums = sums.sum(0).to(loc.dtype)
    in_loc = None if sums is None else sums.view(layout.directions).sum_to_size(loc.shape)
    return in_loc, None if in_kappa is None else in_kappa.sum_to_size(kappa.shape)


register("draw", "triton", draw, draw_gradients, dtypes=(torch.float32,), largest_dim=1 << 16)
