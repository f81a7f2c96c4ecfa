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

from powerspherical.kernels.launch import launch
from powerspherical.kernels.layout import DrawLayout
from powerspherical.kernels.registry import DrawOptions, Gradients, Tensors, register
from powerspherical.kernels.triton.draw import draw
from powerspherical.kernels.triton.slope import rapidity_slope
from powerspherical.kernels.triton.vectors import LARGEST_DIM, grid, kind, store_sums, tile_row, unit_rows

#: Coordinates of g that a program holds at a time, unless a single row has more, and the most rows: one per thread.
_ELEMENTS, _ROWS = 1024, 128


@triton.jit
def concentration_gradient(along, across, minus, plus, slope):
    """The gradient in κ of each row, where ``across`` is the inner product of the tangential parts of g and x."""
    return slope * (minus * plus * along - (1.0 - minus) * across)


@triton.jit(do_not_specialize=["rows", "count", "directions", "kappa_stride"])
def _pull_back(
    grad_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    x_ptr,
    loc_ptr,
    scalars_ptr,
    kappa_ptr,
    rows: tl.int64,
    count: tl.int64,
    kappa_stride: tl.int64,
    directions: tl.int64,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    FAMILY: tl.constexpr,
    LAW_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Pull back rows of ROWS directions, on the grid of ``vectors.grid``. DIRECTIONS is that of ``vectors.kind``."""
    SHARED: tl.constexpr = DIRECTIONS == "one"
    COLUMNS: tl.constexpr = triton.next_power_of_2(DIM)
    column = tl.arange(0, COLUMNS)[None, :]
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = (block >= 0) if SHARED else (block < directions)
    step = ROWS if SHARED else directions
    loc, scale = unit_rows(loc_ptr, tile_row(block, 1, count, DIRECTIONS), valid, DIM)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block  # if there is one direction, ``block`` numbers rows
        row_mask = valid & (row < rows)
        mask = (column < DIM) & row_mask[:, None]
        place = row[:, None] * DIM + column
        grad = tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
        minus = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
        plus = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
        t = 1.0 - minus
        along = tl.sum(grad * loc, 1)
        if NEEDS_LOC:
            total += t[:, None] * grad - along[:, None] * x
        if NEEDS_KAPPA:
            across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
            kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=1.0)
            noise_ptr = scalars_ptr + 2 * rows + row
            slope = rapidity_slope(noise_ptr, kappa, minus, plus, row_mask, FAMILY, LAW_DIM)
            result = concentration_gradient(along, across, minus, plus, slope)
            tl.store(grad_kappa_ptr + row, result, mask=row_mask)
        turn += tl.num_programs(1)
    if NEEDS_LOC:
        if loc_ptr.dtype.element_ty != tl.float32:
            total *= scale[:, None]
        store_sums(grad_loc_ptr, total, block, valid, directions, SHARED, DIM)


def draw_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DrawOptions
) -> Gradients:
    """Return the gradients in ``loc`` and in κ, None where they are not needed."""
    (grad,), (loc, kappa), (x, scalars), (family, dim, shape, *_) = grads, tensors, kept, options
    (needs_loc, needs_kappa), layout = needed, DrawLayout.of(shape, loc.shape, kappa.shape)
    rows, width, count, kappa_stride = layout.sizes
    columns = triton.next_power_of_2(width)
    block = max(1, min(_ELEMENTS // columns, _ROWS))
    group, programs = grid(rows, count, block)
    sums = group * programs[1]
    dtype = loc.dtype if sums == count else torch.float32  # torch adds up partial sums
    in_loc = torch.empty((sums, width), dtype=dtype, device=x.device) if needs_loc else None
    in_kappa = torch.empty(shape, dtype=kappa.dtype, device=x.device) if needs_kappa else None
    directions, kappas = layout.expanded(loc, kappa)
    launch(
        _pull_back,
        programs,
        (grad, in_loc, in_kappa, x, directions, scalars, kappas),
        (rows, count, kappa_stride, group),
        (*needed, kind(count, rows), family, dim, width, block),
        4 if columns <= 4096 else 16,
    )
    if in_loc is not None:
        in_loc = in_loc if sums == count else in_loc.view(-1, count, width).sum(0).to(loc.dtype)
        in_loc = in_loc.view(layout.directions).sum_to_size(loc.shape)
    return in_loc, None if in_kappa is None else in_kappa.sum_to_size(kappa.shape)


register("draw", "triton", draw, draw_gradients, dtypes=(torch.float32,), largest_dim=LARGEST_DIM)
