"""Log-densities of rows of unit vectors with Triton, in float32: one kernel forward and one backward.

Both kernels read x and μ once. The forward kernel computes 1-t = ‖x-μ‖²/2 and 1+t = ‖x+μ‖²/2 for each row, and then the
log-density. The backward kernel computes the gradients in x, μ and κ. Formulas are those of ``cosine_between``
and of the families. Rows of half precision are normalised in float32 as they are read.

Arguments broadcast. A program finds its row of an argument as (row // inner) % count, see ``layout.Tile``.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch, next_power_of_two
from powerspherical.kernels.layout import Tile
from powerspherical.kernels.registry import DensityOptions, Gradients, Tensors, register
from powerspherical.kernels.triton.elementary import at_least, at_most
from powerspherical.kernels.triton.formulas import cauchy_log_density, cauchy_slopes, power_statistic

_ELEMENTS = 1024  # coordinates of x per program, if a single row has no more
_PROGRAMS = 1056  # programs that add up the gradient of a shared μ: eight per multiprocessor of an H100

_INTEGERS = ["rows", "x_inner", "x_count", "loc_inner", "loc_count", "kappa_inner", "kappa_count"]


@triton.jit
def _tile_row(row, inner, count, KIND: tl.constexpr):
    """The row of an argument that belongs to a row of the result. KIND is as in ``_Layout``."""
    if KIND == "one":
        row = row * 0
    elif KIND == "some":  # 64-bit divisions take twenty times as long
        row = ((row.to(tl.int32) // inner.to(tl.int32)) % count.to(tl.int32)).to(tl.int64)
    elif KIND == "some of many":
        row = (row // inner) % count
    return row


@triton.jit
def _unit_rows(ptr, row, there, DIM: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of unit vectors in float32, and what they were multiplied by: 1, or for half precision 1/norm."""
    column = tl.arange(0, COLUMNS)[None, :]
    mask = there[:, None] & (column < DIM)
    vector = tl.load(ptr + row[:, None] * DIM + column, mask=mask, other=0.0).to(tl.float32)
    scale = there.to(tl.float32)
    if ptr.dtype.element_ty != tl.float32:
        scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(vector * vector, 1)), 1e-12)
        vector = vector * scale[:, None]
    return vector, scale


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
    FAMILY: tl.constexpr,
    NEEDS_ENDS: tl.constexpr,
    X: tl.constexpr,
    LOC: tl.constexpr,
    KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    x, _ = _unit_rows(x_ptr, _tile_row(row, x_inner, x_count, X), there, DIM, COLUMNS)
    loc, _ = _unit_rows(loc_ptr, _tile_row(row, loc_inner, loc_count, LOC), there, DIM, COLUMNS)
    minus = 0.5 * tl.sum((x - loc) * (x - loc), 1)
    plus = 0.5 * tl.sum((x + loc) * (x + loc), 1)
    if NEEDS_ENDS:
        tl.store(minus_ptr + row, minus, mask=there)
        tl.store(plus_ptr + row, plus, mask=there)
    place = _tile_row(row, kappa_inner, kappa_count, KAPPA)
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
    FAMILY: tl.constexpr,
    NEEDS_X: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    SHARED: tl.constexpr,
    X: tl.constexpr,
    LOC: tl.constexpr,
    KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradients for ROWS of ``directions`` rows of μ, and for every n-th group of rows that have them.

    n is the number of programs along the second axis. With SHARED there is one μ, and a group is ROWS rows. The kernel
    writes gradients in x and κ per row. It sums the gradient in μ over groups: each of the n programs writes an array
    of ``directions`` rows.
    """
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = (block >= 0) if SHARED else (block < directions)
    step = ROWS if SHARED else directions
    loc, loc_scale = _unit_rows(loc_ptr, _tile_row(block, loc_inner, loc_count, LOC), valid, DIM, COLUMNS)
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block
        there = valid & (row < rows)
        mask = there[:, None] & (column < DIM)
        x, x_scale = _unit_rows(x_ptr, _tile_row(row, x_inner, x_count, X), there, DIM, COLUMNS)
        minus = tl.load(minus_ptr + row, mask=there, other=1.0)
        plus = tl.load(plus_ptr + row, mask=there, other=1.0)
        weight = tl.load(grad_ptr + row * grad_stride, mask=there, other=0.0)
        place = _tile_row(row, kappa_inner, kappa_count, KAPPA)
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
        total = total * loc_scale[:, None]
        part_ptr = grad_loc_ptr + tl.program_id(1).to(tl.int64) * directions * DIM
        if SHARED:
            summed = tl.sum(total, 0)[None, :]
            tl.store(part_ptr + column, summed.to(grad_loc_ptr.dtype.element_ty), mask=column < DIM)
        else:
            mask = valid[:, None] & (column < DIM)
            place_loc = part_ptr + block[:, None] * DIM + column
            tl.store(place_loc, total.to(grad_loc_ptr.dtype.element_ty), mask=mask)


class _Layout(NamedTuple):
    """What the shapes of the arguments determine.

    Attributes:
        shape: of the result.
        tiles: of x, loc and kappa.
        kinds: of each tile: "one" row, "each" row its own, or "some" rows, possibly "some of many".
        dim: d.
        rows, columns, warps: of a program.
    """

    shape: torch.Size
    tiles: tuple[Tile, Tile, Tile]
    kinds: tuple[str, str, str]
    dim: int
    rows: int
    columns: int
    warps: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of rows, and the tiles."""
        return self.shape.numel(), *(number for tile in self.tiles for number in tile)

    @property
    def constants(self) -> tuple[str | int, ...]:
        return *self.kinds, self.dim, self.rows, self.columns


@functools.lru_cache(1024)
def _layout(x: torch.Size, loc: torch.Size, kappa: torch.Size) -> _Layout | None:
    """Return the layout of arguments of these shapes, or None if the kernels do not serve them."""
    shape = torch.broadcast_shapes(x[:-1], loc[:-1], kappa)
    tiles = Tile.of(x[:-1], shape), Tile.of(loc[:-1], shape), Tile.of(kappa, shape)
    total = shape.numel()
    if total == 0 or x[-1] != loc[-1] or None in tiles:
        return None
    some = "some" if total < 1 << 31 else "some of many"
    kinds = ("each" if tile.count == total else "one" if tile.count == 1 else some for tile in tiles)
    columns = next_power_of_two(x[-1])
    block = max(1, _ELEMENTS // columns)
    return _Layout(shape, tiles, tuple(kinds), x[-1], block, columns, 4 if columns <= 2048 else 8)


def serves(family: str, x: Tensor, loc: Tensor, kappa: Tensor) -> bool:
    """Whether ``density`` takes these arguments."""
    dtypes = torch.float32, torch.float16, torch.bfloat16
    known = x.dtype in dtypes and loc.dtype in dtypes and x.device == loc.device == kappa.device
    return known and _layout(x.shape, loc.shape, kappa.shape) is not None


def density(tensors: Tensors, options: DensityOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the log-density with respect to the area, and 1-t and 1+t if a gradient is needed.

    See ``native.density`` for the arguments.
    """
    family, offset, _, log_area = options
    plan = _layout(*(tensor.shape for tensor in tensors))
    empty = functools.partial(torch.empty, plan.shape, dtype=torch.float32, device=offset.device)
    value, ends = empty(), (empty(), empty()) if any(needed) else ()
    launch(
        _forward,
        (blocks(plan.shape.numel(), plan.rows), 1),
        (value, *(ends or (None, None)), *tensors, offset),
        (*plan.numbers, log_area),
        (family, any(needed), *plan.constants),
        plan.warps,
    )
    return value, ends


def density_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, ends: Tensors, options: DensityOptions
) -> Gradients:
    """Return the gradients of ``density`` in x, loc and kappa, None where they are not needed."""
    (grad,), (x, loc, kappa), (family, _, mean, _) = grads, tensors, options
    plan = _layout(x.shape, loc.shape, kappa.shape)
    one_grad = not any(grad.stride())  # such as the gradient of a sum
    grad = grad.as_strided((1,), (1,)) if one_grad else grad
    x_tile, loc_tile, kappa_tile = plan.tiles
    rows, dim, needs_loc = plan.shape.numel(), plan.dim, needed[1]
    shared = needs_loc and loc_tile.count == 1 and rows > 1
    if shared:
        directions, grid, turns = 1, 1, blocks(rows, plan.rows)
    elif needs_loc and loc_tile.inner == 1 and loc_tile.count < rows:
        # loc repeats as a whole. If it is short, a program has several copies of it.
        directions = loc_tile.count * min(max(1, plan.rows // loc_tile.count), rows // loc_tile.count)
        # At least four groups per program, so that the partial sums take little memory.
        grid, turns = blocks(directions, plan.rows), blocks(rows, 4 * directions)
    else:  # gradients in loc are written per row
        directions, grid, turns = rows, blocks(rows, plan.rows), 1
    parts = max(1, min(turns, _PROGRAMS // grid))

    def empty(needed: bool, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        # What will be summed is float32.
        dtype = like.dtype if like.numel() == math.prod(shape) else torch.float32
        return torch.empty(shape, dtype=dtype, device=like.device) if needed else None

    in_x, in_kappa = empty(needed[0], (rows, dim), x), empty(needed[2], (rows,), kappa)
    in_loc = empty(needs_loc, (parts * directions, dim), loc)
    launch(
        _backward,
        (grid, parts),
        (grad, in_x, in_loc, in_kappa, *ends, x, loc, kappa, mean),
        (0 if one_grad else 1, directions, *plan.numbers),
        (family, *needed, shared, *plan.constants),
        plan.warps,
    )
    # Copies of loc that repeats as a whole lie one after the other.
    loc_tile = loc_tile._replace(inner=1) if loc_tile.cycles else loc_tile
    return _summed(in_x, x, x_tile), _summed(in_loc, loc, loc_tile), _summed(in_kappa, kappa, kappa_tile)


def _summed(rows: Tensor | None, like: Tensor, tile: Tile) -> Tensor | None:
    """Return the gradient in an argument, given that of each row that a program wrote."""
    if rows is None or rows.numel() == like.numel():
        return None if rows is None else rows.view(like.shape)
    return tile.add_up(rows, like)


register("density", "triton", density, density_gradients, serves, (torch.float32,), largest_dim=4096)
