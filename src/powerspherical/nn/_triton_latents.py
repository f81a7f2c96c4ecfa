"""``_latents`` with Triton: one kernel from a head's outputs to latents and rates, one for the gradient, in float32.

The forward kernel draws as ``sampling.triton.draw`` does: it holds each row as four quarters, because one call of the
generator gives four numbers. It writes z, the rate, and a record of the draw for the backward pass (see
``_latents.unpack_record``). The backward kernel computes μ and κ again instead of loading them.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.memory import empty, readable
from powerspherical._torch.triton import Launch, blocks, next_power_of_two
from powerspherical.nn._latents import LARGEST_DIM, Settings, value_shapes, z_is_x
from powerspherical.nn._parameters import Bounds
from powerspherical.nn._triton_parameters import SHORT_VECTOR, concentration
from powerspherical.sampling.triton.draw import (
    VON_MISES_FISHER,
    point,
    row_dot,
    runs_fast,
    tile,
    wood_ends,
)
from powerspherical.sampling.triton.fused import FAMILIES
from powerspherical.sampling.triton.pull_back import concentration_gradient
from powerspherical.sampling.triton.slope import (
    rapidity_slope,
    slope_method,
)
from powerspherical.special import curves
from powerspherical.special.triton_curves import curve

#: Coordinates per program of the backward pass, at least one row.
_BLOCK = LARGEST_DIM


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
    SEED_IN_MEMORY: tl.constexpr,
    FAMILY: tl.constexpr,
    FAST: tl.constexpr,
    BOUNDED: tl.constexpr,
    MINIMUM: tl.constexpr,
    MAXIMUM: tl.constexpr,
    RADIUS: tl.constexpr,
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
    column = tl.arange(0, QUADS)[None, :]
    valid0 = (column < QUARTER) & row_mask[:, None]
    valid1, valid2 = valid0 & (column + QUARTER < DIM), valid0 & (column + 2 * QUARTER < DIM)
    valid3 = valid0 & (column + 3 * QUARTER < DIM)
    source = outputs_ptr + row[:, None] * (DIM + 1) + column
    v0 = tl.load(source, mask=valid0, other=0.0).to(tl.float32)
    v1 = tl.load(source + QUARTER, mask=valid1, other=0.0).to(tl.float32)
    v2 = tl.load(source + 2 * QUARTER, mask=valid2, other=0.0).to(tl.float32)
    v3 = tl.load(source + 3 * QUARTER, mask=valid3, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.maximum(tl.abs(v0), tl.abs(v1)), tl.maximum(tl.abs(v2), tl.abs(v3)))
    longest = tl.max(largest, 1)
    short = longest <= SHORT_VECTOR
    v0 = tl.where(short[:, None] & (column == 0), v0 + 1.0, v0)
    # Scaling by a constant changes the direction by rounding only, and avoids overflow of the squares.
    scale = 1.0 / tl.where(short, 1.0, longest)[:, None]
    v0, v1, v2, v3 = v0 * scale, v1 * scale, v2 * scale, v3 * scale
    scale = 1.0 / tl.sqrt(row_dot(v0, v1, v2, v3, v0, v1, v2, v3))[:, None]
    raw = tl.load(outputs_ptr + row * (DIM + 1) + DIM, mask=row_mask, other=0.0).to(tl.float32)
    kappa, _ = concentration(raw, MINIMUM, MAXIMUM, MAXIMUM - MINIMUM, BOUNDED)
    rate, slope = curve(kappa, table_ptr, FIRST, LAST, GAIN, 0.0, WIDTH)
    minus, plus = kappa, kappa  # placeholders
    if FAMILY == VON_MISES_FISHER and DIM != 3:
        minus, plus = wood_ends(kappa, seed, row, DIM - 1.0, FAST)
    x0, x1, x2, x3, minus, plus, noise = point(
        v0 * scale,
        v1 * scale,
        v2 * scale,
        v3 * scale,
        kappa,
        minus,
        plus,
        seed,
        row,
        column,
        DIM - 1.0,
        FAMILY,
        False,
        DIM == 3,
        FAST,
        DIM,
        QUARTER,
    )
    tl.store(rate_ptr + row, rate, mask=row_mask)
    tl.store(scalars_ptr + row, minus, mask=row_mask)
    tl.store(scalars_ptr + rows + row, plus, mask=row_mask)
    tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
    tl.store(scalars_ptr + 3 * rows + row, slope, mask=row_mask)
    place = row[:, None] * DIM + column
    tl.store(x_ptr + place, x0, mask=valid0)
    tl.store(x_ptr + place + QUARTER, x1, mask=valid1)
    tl.store(x_ptr + place + 2 * QUARTER, x2, mask=valid2)
    tl.store(x_ptr + place + 3 * QUARTER, x3, mask=valid3)
    if RECORD_HAS_X:
        dtype = z_ptr.dtype.element_ty
        tl.store(z_ptr + place, (RADIUS * x0).to(dtype), mask=valid0)
        tl.store(z_ptr + place + QUARTER, (RADIUS * x1).to(dtype), mask=valid1)
        tl.store(z_ptr + place + 2 * QUARTER, (RADIUS * x2).to(dtype), mask=valid2)
        tl.store(z_ptr + place + 3 * QUARTER, (RADIUS * x3).to(dtype), mask=valid3)


@triton.jit(do_not_specialize=["rows"])
def _pull_back_latents(
    gradient_ptr,
    outputs_ptr,
    x_ptr,
    record_ptr,
    grad_ptr,
    grad_rate_ptr,
    rows: tl.int64,
    METHOD: tl.constexpr,
    RECORD_HAS_X: tl.constexpr,
    HAS_Z: tl.constexpr,
    HAS_RATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    MINIMUM: tl.constexpr,
    MAXIMUM: tl.constexpr,
    RADIUS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradient in ROWS rows of outputs: the steps of ``pull_back`` and of ``_parameters.gradient``."""
    scalars_ptr = record_ptr + rows * DIM if RECORD_HAS_X else record_ptr
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    column = tl.arange(0, COLUMNS)[None, :]
    mask = row_mask[:, None] & (column < DIM)
    outputs = outputs_ptr + row[:, None] * (DIM + 1) + column
    raw = tl.load(outputs_ptr + row * (DIM + 1) + DIM, mask=row_mask, other=0.0).to(tl.float32)
    kappa, kappa_slope = concentration(raw, MINIMUM, MAXIMUM, MAXIMUM - MINIMUM, BOUNDED)
    grad_kappa = tl.zeros((ROWS,), tl.float32)
    gradient = tl.zeros((ROWS, COLUMNS), tl.float32)
    if HAS_Z:
        v = tl.load(outputs, mask=mask, other=0.0).to(tl.float32)
        longest = tl.max(tl.abs(v), 1)
        short = longest <= SHORT_VECTOR
        v = tl.where(short[:, None] & (column == 0), v + 1.0, v)
        longest = tl.where(short, 1.0, longest)
        # The same operations as in the forward pass: at large κ, x - tμ is sensitive to the rounding of μ.
        v = v * (1.0 / longest)[:, None]
        length = tl.sqrt(tl.sum(v * v, 1))
        loc = v * (1.0 / length)[:, None]
        place = row[:, None] * DIM + column
        grad = RADIUS * tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=mask, other=0.0)
        minus = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
        plus = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
        t = 1.0 - minus
        along = tl.sum(grad * loc, 1)
        across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
        beta = 0.5 * (DIM - 1)
        noise_ptr = scalars_ptr + 2 * rows + row
        slope = rapidity_slope(METHOD, noise_ptr, kappa, beta, minus, plus, row_mask)
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
    settings: Settings,
    radius: float,
    dtype: torch.dtype,
    seed: Tensor | int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z, the rate, and a record of the draw for the backward pass, see ``_latents.unpack_record``.

    Args:
        outputs: (v, r), n > 0 rows of d + 1 numbers, contiguous, float32 or half precision.
        settings: with d ≤ ``_latents.LARGEST_DIM`` and one of ``fused.FAMILIES``.
        radius, dtype: the length and the dtype of z.
        seed: a random int64, as for ``sampling.triton.draw.draw``.
    """
    in_memory = isinstance(seed, Tensor)
    types = outputs.dtype, dtype, outputs.device
    plan = _draw_plan(outputs.shape, settings, radius, in_memory, *types)
    z = empty(outputs, plan.z, dtype)
    rate, record = empty(outputs, plan.rate, torch.float32), empty(outputs, plan.record, torch.float32)
    seed_tensor, seed_number = (seed, 0) if in_memory else (rate, seed)
    plan.launch((z, rate, record, outputs, plan.table, seed_tensor), seed_number)
    return z, rate, record


def pull_back_latents(
    outputs: Tensor,
    record: Tensor,
    z: Tensor | None,
    grad: Tensor | None,
    grad_rate: Tensor | None,
    settings: Settings,
    radius: float,
) -> Tensor:
    """Return the gradient in the outputs, given the gradients in z and in the rate. None means zero.

    ``outputs``, ``record`` and z are those of ``draw_latents``. z is None unless it is x itself.
    """
    gradient = empty(outputs, tuple(outputs.shape), outputs.dtype)
    uses = z is None, grad is not None, grad_rate is not None
    types = outputs.dtype, None if grad is None else grad.dtype, outputs.device
    launch = _pull_back_launch(outputs.numel() // (settings.dim + 1), settings, radius, *uses, *types)
    grads = [record if one is None else readable(one) for one in (grad, grad_rate)]
    launch((gradient, outputs, record if z is None else z, record, *grads))
    return gradient


def _bounds(bounds: Bounds) -> tuple[bool, float, float]:
    """Return BOUNDED, MINIMUM and MAXIMUM. Without an upper bound, MAXIMUM is not used, and 0."""
    bounded = math.isfinite(bounds.maximum)
    return bounded, float(bounds.minimum), float(bounds.maximum) if bounded else 0.0


class _DrawPlan(NamedTuple):
    """The shapes of the results of ``draw_latents``, the launch of its kernel, and the table of the rate."""

    z: tuple[int, ...]
    rate: tuple[int, ...]
    record: tuple[int, ...]
    launch: Launch
    table: Tensor


@functools.lru_cache(1024)
def _draw_plan(
    shape: torch.Size,
    settings: Settings,
    radius: float,
    in_memory: bool,
    outputs_dtype: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
) -> _DrawPlan:
    """Return the plan for outputs of this shape. Their dtype and the device are only part of the cache's key."""
    family, dim, bounds = settings
    rows, has_x = math.prod(shape[:-1]), not z_is_x(radius, dtype)
    like = torch.empty((), dtype=torch.float32, device=device)
    table, (first, gain, _) = curves.table(like, family, "relative_entropy", dim)
    rate_constants = first, len(table) - 1, gain, table.shape[1]
    quarter, rows_per_program, quads, warps = tile(dim)
    fast = runs_fast(device)
    constants = in_memory, FAMILIES[family], fast, *_bounds(bounds), float(radius), has_x, *rate_constants
    tiles = dim, quarter, rows_per_program, quads
    grid = blocks(rows, rows_per_program), 1
    launch = Launch(_draw_latents, grid, (rows,), (*constants, *tiles), num_warps=warps)
    return _DrawPlan(*value_shapes(shape, dim, radius, dtype), launch, table)


@functools.lru_cache(1024)
def _pull_back_launch(
    rows: int,
    settings: Settings,
    radius: float,
    has_x: bool,
    has_z: bool,
    has_rate: bool,
    outputs_dtype: torch.dtype,
    grad_dtype: torch.dtype | None,
    device: torch.device,
) -> Launch:
    """Return the launch of ``_pull_back_latents``. The dtypes and the device are only part of the cache's key."""
    family, dim, bounds = settings
    columns = next_power_of_two(dim)
    rows_per_program = _BLOCK // columns
    constants = slope_method(family, dim), has_x, has_z, has_rate, *_bounds(bounds), float(radius)
    shape = dim, rows_per_program, columns
    grid = blocks(rows, rows_per_program), 1
    return Launch(_pull_back_latents, grid, (rows,), (*constants, *shape), num_warps=4)
