"""Log-densities of rows of unit vectors with Triton, in float32: one kernel forward and one backward.

Both kernels read x and μ once. The forward kernel computes 1-t = ‖x-μ‖²/2 and 1+t = ‖x+μ‖²/2 for each row, and then the
log-density. The backward kernel computes the gradients in x, μ and κ. Formulas are those of ``cosine_between``
and of the families. Rows of half precision are normalised in float32 as they are read.

Arguments broadcast. A program finds its row of an argument as (row // inner) % count, see ``layout.Tile``.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.layout import DensityLayout
from powerspherical.kernels.registry import HALVES, DensityOptions, Gradients, Tensors, register
from powerspherical.kernels.triton.curve import curve
from powerspherical.kernels.triton.elementary import at_least, at_most
from powerspherical.kernels.triton.formulas import cauchy_log_density, cauchy_slopes, power_statistic
from powerspherical.kernels.triton.vectors import grid, kind, program_rows, store_sums, tile_row, unit_rows

_ELEMENTS = 1024  # coordinates of x per program, if a single row has no more

_INTEGERS = ["rows", "x_inner", "x_count", "loc_inner", "loc_count", "kappa_inner", "kappa_count"]


@triton.jit
def log_density_and_slopes(minus, plus, kappa, offset, mean, FAMILY: tl.constexpr, DIM: tl.constexpr):
    """The log-density relative to the uniform, and its derivatives in t and κ.

    ``offset`` and ``mean`` are -Ψ and E T of an exponential family, whose log-density is ``offset`` + κT.
    """
    if FAMILY == "spherical_cauchy":
        value = cauchy_log_density(minus, kappa, DIM - 1.0)
        in_t, in_kappa = cauchy_slopes(minus, kappa, DIM - 1.0)
    else:
        statistic, in_t = -minus, kappa
        if FAMILY == "power_spherical":
            statistic = power_statistic(minus, plus)
            # 1+t without rounding errors. At the antipode we define the derivative as 0, as the family does.
            length = tl.where(minus < 1.0, 2.0 - minus, plus)
            in_t = tl.where(length <= 0.0, 0.0, kappa / tl.where(length <= 0.0, 1.0, length))
        in_kappa = statistic - mean
        if FAMILY == "power_spherical":  # at κ = 0 the density is uniform, also at the antipode
            statistic = tl.where((kappa == 0.0) & (statistic < -1e3), kappa, statistic)
        value = offset + kappa * statistic
    return value, in_t, in_kappa


@triton.jit(do_not_specialize=[*_INTEGERS, "log_area"])
def _forward(
    value_ptr,
    minus_ptr,
    plus_ptr,
    x_ptr,
    loc_ptr,
    kappa_ptr,
    offset_ptr,
    rows: tl.int64,
    x_inner: tl.int64,
    x_count: tl.int64,
    loc_inner: tl.int64,
    loc_count: tl.int64,
    kappa_inner: tl.int64,
    kappa_count: tl.int64,
    log_area: tl.float32,
    NEEDS_ENDS: tl.constexpr,
    FAMILY: tl.constexpr,
    X: tl.constexpr,
    LOC: tl.constexpr,
    KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the log-density, 1-t and 1+t of ROWS rows. X, LOC and KAPPA are those of ``vectors.kind``."""
    row, there = program_rows(rows, ROWS)
    x, _ = unit_rows(x_ptr, tile_row(row, x_inner, x_count, X), there, DIM)
    loc, _ = unit_rows(loc_ptr, tile_row(row, loc_inner, loc_count, LOC), there, DIM)
    minus = 0.5 * tl.sum((x - loc) * (x - loc), 1)
    plus = 0.5 * tl.sum((x + loc) * (x + loc), 1)
    if NEEDS_ENDS:
        tl.store(minus_ptr + row, minus, mask=there)
        tl.store(plus_ptr + row, plus, mask=there)
    place = tile_row(row, kappa_inner, kappa_count, KAPPA)
    kappa = tl.load(kappa_ptr + place, mask=there, other=0.0)
    offset = tl.load(offset_ptr + place, mask=there, other=0.0)
    value, _, _ = log_density_and_slopes(minus, plus, kappa, offset, offset, FAMILY, DIM)
    tl.store(value_ptr + row, value - log_area, mask=there)


@triton.jit
def _tangential(other, x, near, short):
    """The derivative of t in x: y - tx for the ``other`` vector y, without cancellation near t = ±1."""
    sign = tl.where(near, 1.0, -1.0)[:, None]
    return (other - sign * x) + (sign * short[:, None]) * x


@triton.jit(do_not_specialize=[*_INTEGERS, "directions", "grad_stride"])
def _backward(
    grad_ptr,
    grad_x_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    minus_ptr,
    plus_ptr,
    x_ptr,
    loc_ptr,
    kappa_ptr,
    mean_ptr,
    grad_stride: tl.int64,
    directions: tl.int64,
    rows: tl.int64,
    x_inner: tl.int64,
    x_count: tl.int64,
    loc_inner: tl.int64,
    loc_count: tl.int64,
    kappa_inner: tl.int64,
    kappa_count: tl.int64,
    SHARED: tl.constexpr,
    NEEDS_X: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    FAMILY: tl.constexpr,
    X: tl.constexpr,
    LOC: tl.constexpr,
    KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Gradients in x and κ per row, and in μ summed on the grid of ``vectors.grid``. With SHARED there is one μ."""
    COLUMNS: tl.constexpr = triton.next_power_of_2(DIM)
    column = tl.arange(0, COLUMNS)[None, :]
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = (block >= 0) if SHARED else (block < directions)
    step = ROWS if SHARED else directions
    loc, loc_scale = unit_rows(loc_ptr, tile_row(block, loc_inner, loc_count, LOC), valid, DIM)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block
        there = valid & (row < rows)
        mask = there[:, None] & (column < DIM)
        x, x_scale = unit_rows(x_ptr, tile_row(row, x_inner, x_count, X), there, DIM)
        minus = tl.load(minus_ptr + row, mask=there, other=1.0)
        plus = tl.load(plus_ptr + row, mask=there, other=1.0)
        weight = tl.load(grad_ptr + row * grad_stride, mask=there, other=0.0)
        place = tile_row(row, kappa_inner, kappa_count, KAPPA)
        kappa = tl.load(kappa_ptr + place, mask=there, other=0.0)
        mean = tl.load(mean_ptr + place, mask=there, other=0.0)
        _, in_t, in_kappa = log_density_and_slopes(minus, plus, kappa, mean, mean, FAMILY, DIM)
        if NEEDS_KAPPA:
            tl.store(grad_kappa_ptr + row, weight * in_kappa, mask=there)
        weight = weight * in_t
        if FAMILY == "spherical_cauchy":  # at the mode with a huge κ it overflows, but the gradient is zero
            weight = at_most(at_least(weight, -3e38), 3e38)
        near = minus < plus
        short = tl.where(near, minus, plus)
        if NEEDS_X:
            grad_x = (weight * x_scale)[:, None] * _tangential(loc, x, near, short)
            place_x = grad_x_ptr + row[:, None] * DIM + column
            tl.store(place_x, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
        if NEEDS_LOC:
            part = weight[:, None] * _tangential(x, loc, near, short)
            total += tl.where(there[:, None], part, 0.0)
        turn += tl.num_programs(1)
    if NEEDS_LOC:
        store_sums(grad_loc_ptr, total * loc_scale[:, None], block, valid, directions, SHARED, DIM)


@functools.lru_cache(1024)
def _plan(x: torch.Size, loc: torch.Size, kappa: torch.Size) -> tuple[Any, ...]:
    """Return the layout of arguments of these shapes, X, LOC, KAPPA, DIM and ROWS, and the warps of a program."""
    layout = DensityLayout.of(x, loc, kappa)
    rows, dim, *_ = layout.sizes
    columns = triton.next_power_of_2(dim)
    kinds = [kind(tile.count, rows) for tile in layout.tiles]
    return layout, (*kinds, dim, max(1, _ELEMENTS // columns)), 4 if columns <= 2048 else 8


def serves(family: str, x: Tensor, loc: Tensor, kappa: Tensor) -> bool:
    """Whether ``density`` takes these arguments."""
    dtypes = torch.float32, *HALVES
    known = x.dtype in dtypes and loc.dtype in dtypes and x.device == loc.device == kappa.device
    return known and DensityLayout.of(x.shape, loc.shape, kappa.shape) is not None


def density(tensors: Tensors, options: DensityOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the log-density with respect to the area, and what gradients need: 1-t, 1+t, and in κ also -E T.

    See ``native.density`` for the arguments.
    """
    family, table, log_area = options
    offset, slopes = tensors[2], ()  # other families than exponential ones use neither
    if table is not None:
        slopes = (torch.empty(offset.shape, dtype=offset.dtype, device=offset.device),) if needed[2] else ()
        offset = curve(offset, table, *slopes)
    layout, constants, warps = _plan(*(tensor.shape for tensor in tensors))
    (rows, _, _, *tiles), block = layout.sizes, constants[-1]
    value = torch.empty(layout.shape, dtype=torch.float32, device=offset.device)
    # Two tensors, because the second half of one would not be aligned.
    ends = (torch.empty_like(value), torch.empty_like(value)) if any(needed) else ()
    launch(
        _forward,
        (blocks(rows, block), 1),
        (value, *(ends or (None, None)), *tensors, offset),
        (rows, *tiles, log_area),
        (any(needed), family, *constants),
        warps,
    )
    return value, (*ends, *slopes)


def density_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DensityOptions
) -> Gradients:
    """Return the gradients of ``density`` in x, loc and kappa, None where they are not needed."""
    (grad,), (x, loc, kappa), (family, *_), (minus, plus, *slopes) = grads, tensors, options, kept
    mean = -slopes[0] if slopes else kappa
    layout, constants, warps = _plan(x.shape, loc.shape, kappa.shape)
    x_tile, loc_tile, kappa_tile = layout.tiles
    (rows, dim, count, *tiles), block, needs_loc = layout.sizes, constants[-1], needed[1]
    one_grad = not any(grad.stride())  # such as the gradient of a sum
    grad = grad.as_strided((1,), (1,)) if one_grad else grad
    if not needs_loc:
        count = rows
    elif loc_tile.cycles:
        loc_tile = loc_tile._replace(inner=1)
    directions, programs = grid(rows, count, block)

    def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
        # What will be summed is float32.
        dtype = like.dtype if like.numel() == torch.Size(shape).numel() else torch.float32
        return torch.empty(shape, dtype=dtype, device=like.device)

    in_x = empty((rows, dim), x) if needed[0] else None
    in_loc = empty((programs[1] * directions, dim), loc) if needs_loc else None
    in_kappa = empty((rows,), kappa) if needed[2] else None
    launch(
        _backward,
        programs,
        (grad, in_x, in_loc, in_kappa, minus, plus, x, loc, kappa, mean),
        (0 if one_grad else 1, directions, rows, *tiles),
        (count == 1, *needed, family, *constants),
        warps,
    )
    found = zip((in_x, in_loc, in_kappa), (x_tile, loc_tile, kappa_tile), tensors, strict=True)
    return tuple(None if rows is None else tile.add_up(rows, like) for rows, tile, like in found)


register("density", "triton", density, density_gradients, serves, (torch.float32,), largest_dim=4096)
