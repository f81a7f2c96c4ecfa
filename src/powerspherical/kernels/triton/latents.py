"""Latents of a bottleneck with Triton: one kernel from a head's outputs to latents and rates, one for the gradient.

The forward kernel draws as ``draw`` does. It writes z, the rate, and a record of the draw for the backward pass (see
``unpack_record``). The backward kernel computes μ and κ again instead of loading them. All in float32.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch, next_power_of_two
from powerspherical.kernels.layout import readable
from powerspherical.kernels.record import SHORT, Bounds, Settings, value_shapes, z_is_x
from powerspherical.kernels.registry import Table, register
from powerspherical.kernels.triton.curve import table_value
from powerspherical.kernels.triton.draw import (
    dot,
    load_row,
    point,
    quarters,
    scaled_row,
    store_row,
    tile,
    wood_ends,
)
from powerspherical.kernels.triton.formulas import concentration
from powerspherical.kernels.triton.pull_back import concentration_gradient
from powerspherical.kernels.triton.random import random_seed, runs_fast
from powerspherical.kernels.triton.slope import rapidity_slope, slope_method

#: Largest dimension. A program holds whole rows in registers.
_LARGEST_DIM = 1024

#: Coordinates per program of the backward pass.
_BLOCK = _LARGEST_DIM

#: The most rows per thread. With eight, as in ``draw``, registers spill at d = 3.
_ROWS_PER_THREAD = 2

#: v counts as zero if no |vᵢ| exceeds this, as in a head.
_SHORTEST = tl.constexpr(SHORT)


@triton.jit
def _lengths(longest):
    """Return which v count as zero, and the numbers to divide v by before it is squared.

    Scaling by a constant changes the direction by rounding only, and avoids overflow of the squares.
    """
    short = longest <= _SHORTEST
    return short[:, None], tl.where(short, 1.0, longest)


@triton.jit(do_not_specialize=["seed", "rows"])
def _draw_latents(
    z_ptr,
    rate_ptr,
    record_ptr,
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
    FAMILY: tl.constexpr,
    FAST: tl.constexpr,
    RECORD_HAS_X: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    GAIN: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    QUARTER: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    """Draw ROWS rows of latents: μ and κ from the outputs, the rate, and a point around μ."""
    x_ptr = record_ptr if RECORD_HAS_X else z_ptr
    scalars_ptr = record_ptr + rows * DIM if RECORD_HAS_X else record_ptr
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)
    there = row_mask[:, None]
    column, masks = quarters(DIM, QUARTER, QUADS)
    v = load_row(outputs_ptr + row[:, None] * (DIM + 1) + column, masks, there, QUARTER)
    largest = tl.maximum(tl.maximum(tl.abs(v[0]), tl.abs(v[1])), tl.maximum(tl.abs(v[2]), tl.abs(v[3])))
    short, longest = _lengths(tl.max(largest, 1))
    v = (tl.where(short & (column == 0), v[0] + 1.0, v[0]), v[1], v[2], v[3])
    v = scaled_row(1.0 / longest[:, None], v)
    loc = scaled_row(1.0 / tl.sqrt(dot(v, v))[:, None], v)
    raw = tl.load(outputs_ptr + row * (DIM + 1) + DIM, mask=row_mask, other=0.0).to(tl.float32)
    kappa, _ = concentration(raw, minimum, maximum, inverse_span)
    rate, slope = table_value(kappa, table_ptr, FIRST, LAST, GAIN, 0.0, WIDTH)
    minus, plus = kappa, kappa  # placeholders
    if FAMILY == "von_mises_fisher" and DIM != 3:
        minus, plus = wood_ends(kappa, seed, row, DIM - 1.0, FAST)
    x, minus, plus, noise = point(
        loc, kappa, minus, plus, seed, row, column, masks, DIM - 1.0, FAMILY, False, DIM == 3, FAST, DIM
    )
    tl.store(rate_ptr + row, rate, mask=row_mask)
    tl.store(scalars_ptr + row, minus, mask=row_mask)
    tl.store(scalars_ptr + rows + row, plus, mask=row_mask)
    tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
    tl.store(scalars_ptr + 3 * rows + row, slope, mask=row_mask)
    place = row[:, None] * DIM + column
    store_row(x_ptr + place, x, masks, there, QUARTER)
    if RECORD_HAS_X:
        store_row(z_ptr + place, scaled_row(radius, x), masks, there, QUARTER)


@triton.jit(do_not_specialize=["rows"])
def _pull_back_latents(
    gradient_ptr,
    outputs_ptr,
    x_ptr,
    record_ptr,
    grad_ptr,
    grad_rate_ptr,
    rows: tl.int64,
    minimum: tl.float32,
    maximum: tl.float32,
    inverse_span: tl.float32,
    radius: tl.float32,
    METHOD: tl.constexpr,
    RECORD_HAS_X: tl.constexpr,
    HAS_Z: tl.constexpr,
    HAS_RATE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradient in ROWS rows of outputs: the steps of ``pull_back`` and of ``head``."""
    scalars_ptr = record_ptr + rows * DIM if RECORD_HAS_X else record_ptr
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    column = tl.arange(0, COLUMNS)[None, :]
    mask = row_mask[:, None] & (column < DIM)
    outputs = outputs_ptr + row[:, None] * (DIM + 1) + column
    raw = tl.load(outputs_ptr + row * (DIM + 1) + DIM, mask=row_mask, other=0.0).to(tl.float32)
    kappa, kappa_slope = concentration(raw, minimum, maximum, inverse_span)
    grad_kappa = tl.zeros((ROWS,), tl.float32)
    gradient = tl.zeros((ROWS, COLUMNS), tl.float32)
    if HAS_Z:
        v = tl.load(outputs, mask=mask, other=0.0).to(tl.float32)
        short, longest = _lengths(tl.max(tl.abs(v), 1))
        v = tl.where(short & (column == 0), v + 1.0, v)
        # The same operations as in the forward pass: at large κ, x - tμ is sensitive to the rounding of μ.
        v = v * (1.0 / longest)[:, None]
        length = tl.sqrt(tl.sum(v * v, 1))
        loc = v * (1.0 / length)[:, None]
        place = row[:, None] * DIM + column
        grad = radius * tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=mask, other=0.0)
        minus = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
        plus = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
        t = 1.0 - minus
        along = tl.sum(grad * loc, 1)
        across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
        noise_ptr = scalars_ptr + 2 * rows + row
        slope = rapidity_slope(METHOD, noise_ptr, kappa, DIM - 1.0, minus, plus, row_mask)
        grad_kappa = concentration_gradient(along, across, minus, plus, slope)
        # The gradient in μ is tangential, so the chain rule divides it by ‖v‖.
        gradient = (t[:, None] * grad - along[:, None] * x) / length[:, None] / longest[:, None]
    if HAS_RATE:
        rate_slope = tl.load(scalars_ptr + 3 * rows + row, mask=row_mask, other=0.0)
        grad_kappa += rate_slope * tl.load(grad_rate_ptr + row, mask=row_mask, other=0.0)
    dtype = gradient_ptr.dtype.element_ty
    target = gradient_ptr + row[:, None] * (DIM + 1) + column
    tl.store(target, gradient.to(dtype), mask=mask)
    tl.store(gradient_ptr + row * (DIM + 1) + DIM, (grad_kappa * kappa_slope).to(dtype), mask=row_mask)


def draw_latents(
    outputs: Tensor,
    table: Table,
    settings: Settings,
    radius: float,
    dtype: torch.dtype,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z, the rate, and a record of the draw, see ``native.latents``. d is at most 1024."""
    outputs, device = readable(outputs), outputs.device
    family, dim, bounds = settings
    seed, rows = random_seed(device, generator), outputs.numel() // (dim + 1)
    in_memory = isinstance(seed, Tensor)
    shapes = value_shapes(outputs.shape, dim, radius, dtype)
    z = torch.empty(shapes[0], dtype=dtype, device=device)
    rate, record = (torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes[1:])
    rows_of_table, (first, gain, _) = table
    quarter, rows_per_program, quads, warps = tile(dim, _ROWS_PER_THREAD)
    cells, width = rows_of_table.shape
    options = in_memory, family, runs_fast(device), not z_is_x(radius, dtype)
    launch(
        _draw_latents,
        (blocks(rows, rows_per_program), 1),
        (z, rate, record, outputs, rows_of_table, seed if in_memory else None),
        (0 if in_memory else seed, rows, *_bounds(bounds), float(radius)),
        (*options, first, cells - 1, gain, width, dim, quarter, rows_per_program, quads),
        warps,
    )
    return z, rate, record


def pull_back_latents(
    outputs: Tensor,
    table: Table,
    record: Tensor,
    z: Tensor | None,
    grad: Tensor | None,
    grad_rate: Tensor | None,
    settings: Settings,
    radius: float,
) -> tuple[Tensor]:
    """Return the gradient in the outputs, see ``native.latents_gradient``. The table is not used."""
    outputs, record = readable(outputs), readable(record)
    given = [None if one is None else readable(one) for one in (grad, grad_rate)]
    gradient = torch.empty_like(outputs)
    family, dim, bounds = settings
    columns, rows = next_power_of_two(dim), outputs.numel() // (dim + 1)
    block = _BLOCK // columns
    x = record if z is None else readable(z)
    uses = z is None, *(one is not None for one in given)
    launch(
        _pull_back_latents,
        (blocks(rows, block), 1),
        (gradient, outputs, x, record, *given),
        (rows, *_bounds(bounds), float(radius)),
        (slope_method(family, dim), *uses, dim, block, columns),
    )
    return (gradient,)


_DTYPES = torch.float32, torch.float16, torch.bfloat16
register("latents", "triton", draw_latents, pull_back_latents, dtypes=_DTYPES, largest_dim=_LARGEST_DIM)


def _bounds(bounds: Bounds) -> tuple[float, float, float]:
    """Return the minimum, the maximum, and the inverse of their difference."""
    minimum, maximum = bounds
    return minimum, maximum, 1 / (maximum - minimum)
