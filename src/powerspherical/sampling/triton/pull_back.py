"""The backward pass of a draw with Triton, in one kernel that reads each of g, x and μ once.

Let g be the gradient in x. The gradient in μ is t g - (g·μ)x, summed over the rows that share a direction. The gradient
in κ is (dt/dκ)/(1-t²) times (1-t²) g·μ - t (g - (g·μ)μ)·(x - tμ). ``geometry.pull_back`` explains both. A μ in half
precision is normalised first, as in the draw. The gradient in μ is tangential, so the chain rule divides it by ‖μ‖.

If many rows share few directions, each program sums over its rows, and a second kernel adds the partial sums of the
programs. If all rows share one direction and one κ, it also sums the gradients in κ.
"""

# mypy: ignore-errors

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.memory import empty
from powerspherical._torch.triton import Launch, blocks, next_power_of_two
from powerspherical.sampling.triton.slope import rapidity_slope

#: Coordinates of g that a program holds at a time, unless a single row has more.
_ELEMENTS = 1024

#: The most programs if rows share directions: eight for each of the 132 multiprocessors of an H100.
_PROGRAMS = 1056

#: Longer rows, if each has its own direction, are read in chunks: twice, the second time from the cache.
_LONG = 4096
_CHUNK, _CHUNK_WARPS = 4096, 16

#: Columns of a program that adds partial sums, and how many of these sums it reads at a time.
_SUMMED = 16, 128

#: SLOPE of a kernel if the gradient in κ is not needed. Otherwise SLOPE is a METHOD of ``slope.rapidity_slope``.
NO_SLOPE = tl.constexpr(0)

_NUMBERS = ["rows", "directions", "kappa_stride"]


@triton.jit
def concentration_gradient(along, across, minus, plus, slope):
    """The gradient in κ of each row, where ``across`` is the inner product of the tangential parts of g and x."""
    return slope * (minus * plus * along - (1.0 - minus) * across)


@triton.jit(do_not_specialize=_NUMBERS)
def _pull_back(
    grad_loc_ptr,
    grad_kappa_ptr,
    grad_ptr,
    x_ptr,
    loc_ptr,
    scalars_ptr,
    kappa_ptr,
    rows: tl.int64,
    directions: tl.int64,
    kappa_stride: tl.int64,
    beta: tl.float32,
    SHARED: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    SLOPE: tl.constexpr,
    SUMS_KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pull back rows of ROWS directions: for each direction, every num_programs(1)-th row that has it.

    With SHARED there is only one direction, and a program treats ROWS of its rows at a time. Then SUMS_KAPPA may be
    set: the sum of the gradients in κ is written after the gradient in the direction.
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
    total_kappa = tl.zeros((ROWS,), tl.float32)
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
        if SLOPE != NO_SLOPE:
            across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
            kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=1.0)
            noise_ptr = scalars_ptr + 2 * rows + row
            slope = rapidity_slope(SLOPE, noise_ptr, kappa, beta, minus, plus, row_mask)
            result = concentration_gradient(along, across, minus, plus, slope)
            if SUMS_KAPPA:
                total_kappa += tl.where(row_mask, result, 0.0)
            else:
                tl.store(grad_kappa_ptr + row, result, mask=row_mask)
        turn += tl.num_programs(1)
    length = directions * DIM if NEEDS_LOC else 0
    part = grad_loc_ptr + tl.program_id(1).to(tl.int64) * (length + SUMS_KAPPA)
    if SUMS_KAPPA:
        tl.store(part + length, tl.sum(total_kappa, 0))
    if NEEDS_LOC:
        if loc_ptr.dtype.element_ty != tl.float32:
            total = total * scale
        if SHARED:
            summed = tl.sum(total, 0)[None, :]
            tl.store(part + column, summed.to(part.dtype.element_ty), mask=inside)
        else:
            place = block[:, None] * DIM + column
            tl.store(part + place, total.to(part.dtype.element_ty), mask=inside & direction_mask[:, None])


@triton.jit(do_not_specialize=_NUMBERS)
def _pull_back_long(
    grad_loc_ptr,
    grad_kappa_ptr,
    grad_ptr,
    x_ptr,
    loc_ptr,
    scalars_ptr,
    kappa_ptr,
    rows: tl.int64,
    directions: tl.int64,
    kappa_stride: tl.int64,
    beta: tl.float32,
    NEEDS_LOC: tl.constexpr,
    SLOPE: tl.constexpr,
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
    if SLOPE != NO_SLOPE:
        across = tl.sum(across_terms, 0)
        one = row + tl.arange(0, 1)  # a vector of one row
        kappa = tl.load(kappa_ptr + one * kappa_stride)
        noise_ptr = scalars_ptr + 2 * rows + one
        slope = rapidity_slope(SLOPE, noise_ptr, kappa, beta, minus, plus, one >= 0)
        tl.store(grad_kappa_ptr + one, concentration_gradient(along, across, minus, plus, slope))


@triton.jit(do_not_specialize=["parts", "length"])
def _add_parts(
    grad_loc_ptr,
    grad_kappa_ptr,
    parts_ptr,
    parts: tl.int64,
    length: tl.int64,
    SUMS_KAPPA: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Add the partial sums: per program, ``length`` numbers for the directions and, with SUMS_KAPPA, one for κ."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    stride = length + SUMS_KAPPA
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    first = tl.zeros((), tl.int64)
    while first < parts:
        part = (first + tl.arange(0, PARTS))[:, None]
        mask = (part < parts) & (column < stride)[None, :]
        total += tl.load(parts_ptr + part * stride + column[None, :], mask=mask, other=0.0)
        first += PARTS
    result = tl.sum(total, 0)
    tl.store(grad_loc_ptr + column, result.to(grad_loc_ptr.dtype.element_ty), mask=column < length)
    if SUMS_KAPPA:
        tl.store(grad_kappa_ptr + (column - length), result, mask=column == length)


def pull_back(
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    concentration: Tensor,
    slope: int | None,
    dim: int,
    *,
    needs_loc: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients in ``loc``, in its shape and dtype, and in κ. Each is None if it is not needed.

    The gradient in κ has one number per row. If all rows share one direction and one κ, it is the sum, in the shape of
    ``concentration``.

    Args:
        grad, x: gradient in x, and x: n > 0 rows of d numbers. All tensors here are contiguous.
        loc: m directions. m divides n, and row r has direction r mod m.
        scalars: 1-t, 1+t and the noise of each row, of shape (3, …), as ``draw`` wrote them.
        concentration: n concentrations κ or one for all rows.
        slope: a METHOD of ``slope.rapidity_slope``. None if the gradient in κ is not needed.
        dim: dimension used for the law of t.
        needs_loc: whether the gradient in ``loc`` is needed.
    """
    width = x.shape[-1]
    method = slope or NO_SLOPE.value
    rows, directions, one_kappa = x.numel() // width, loc.numel() // width, concentration.numel() == 1
    plan = _plan(rows, directions, one_kappa, width, dim, needs_loc, method, x.dtype, x.device)
    # The kernel needs a valid pointer even for a gradient that is not needed. It does not write there.
    grad_loc = empty(loc, tuple(loc.shape), loc.dtype) if needs_loc else loc
    grad_kappa = scalars
    if slope is not None:
        grad_kappa = (
            torch.empty_like(concentration)
            if plan.sums_kappa
            else empty(scalars, tuple(scalars.shape[1:]), scalars.dtype)
        )
    target = grad_loc
    if plan.add is not None:
        target = empty(loc, (plan.partial_sums,), torch.float32)
    plan.launch((target, grad_kappa, grad, x, loc, scalars, concentration))
    if plan.add is not None:
        plan.add((grad_loc, grad_kappa, target))
    return grad_loc if needs_loc else None, grad_kappa if slope is not None else None


class _Plan(NamedTuple):
    """The launches of a backward pass.

    Attributes:
        launch: the kernel that pulls back.
        add: the kernel that adds partial sums. None if ``launch`` writes the gradients themselves.
        partial_sums: how many numbers ``launch`` writes for ``add``.
        sums_kappa: whether the gradient in κ is the sum over rows.
    """

    launch: Launch
    add: Launch | None = None
    partial_sums: int = 0
    sums_kappa: bool = False


@functools.lru_cache(1024)
def _plan(
    rows: int,
    directions: int,
    one_kappa: bool,
    width: int,
    dim: int,
    needs_loc: bool,
    slope: int,
    dtype: torch.dtype,
    device: torch.device,
) -> _Plan:
    numbers = rows, directions, 0 if one_kappa else 1, (dim - 1) / 2
    if directions == rows and width > _LONG:
        constants = needs_loc, slope, width, _CHUNK
        return _Plan(Launch(_pull_back_long, (rows, 1), numbers, constants, num_warps=_CHUNK_WARPS))
    shared = directions == 1
    sums_kappa = shared and one_kappa and slope != NO_SLOPE.value
    columns = next_power_of_two(width)
    block = max(1, _ELEMENTS // columns)
    grid = 1 if shared else blocks(directions, block)
    turns = blocks(rows, block) if shared else rows // directions
    parts = max(1, min(turns, _PROGRAMS // grid))
    warps = 4 if block * columns <= 4096 else 8 if block * columns <= 8192 else 16
    constants = shared, needs_loc, slope, sums_kappa, width, block, columns
    launch = Launch(_pull_back, (grid, parts), numbers, constants, num_warps=warps)
    length = directions * width if needs_loc else 0
    if not sums_kappa and (parts == 1 or not needs_loc):
        return _Plan(launch)
    add = Launch(
        _add_parts,
        (blocks(length + sums_kappa, _SUMMED[0]), 1),
        (parts, length),
        (sums_kappa, *_SUMMED),
        num_warps=4,
    )
    return _Plan(launch, add, parts * (length + sums_kappa), sums_kappa)
