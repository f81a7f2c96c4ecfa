"""The backward pass of a draw with Triton: each of g, x and μ is read from memory once.

With the upstream gradient g, the gradient in μ is t g - (g·μ)x, summed over the rows that share a direction, and that
in κ is (dt/dκ)/(1-t²) times (1-t²) g·μ - t (g - (g·μ)μ)·(x - tμ); see ``_geometry`` for both. A μ of half precision is
normalised first, as in the draw; the gradient in μ, which is tangential, is divided by its length.
"""

# mypy: ignore-errors

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.special._launch import Launch, blocks, next_power_of_two

_ELEMENTS = 1024  # coordinates of g that a program has at a time, if a single row has no more
_PROGRAMS = 1056  # where many rows share few directions: eight for each multiprocessor of an H100
_LONG = 4096  # from there on a row of its own is read in parts, a second time from the cache
_PART, _PART_WARPS = 4096, 16

_NUMBERS = ["rows", "directions"]


@triton.jit
def _grad_kappa(along, across, minus, plus, slope):
    """The gradient in κ of each row; ``across`` is the product of the tangential parts of g and x."""
    return slope * (minus * plus * along - (1.0 - minus) * across)


@triton.jit(do_not_specialize=_NUMBERS)
def _pull_back(
    grad_loc_ptr,
    grad_kappa_ptr,
    grad_ptr,
    x_ptr,
    loc_ptr,
    minus_ptr,
    plus_ptr,
    slope_ptr,
    rows: tl.int64,
    directions: tl.int64,
    SHARED: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A block of ROWS directions and a part of the rows that have them; SHARED: ROWS rows of the one direction."""
    column = tl.arange(0, COLUMNS)[None, :]
    inside = column < DIM
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if SHARED:
        valid = block >= 0
        loc = tl.load(loc_ptr + column, mask=inside, other=0.0).to(tl.float32)
        step = ROWS
    else:
        valid = block < directions
        loc = tl.load(loc_ptr + block[:, None] * DIM + column, mask=inside & valid[:, None], other=0.0)
        loc = loc.to(tl.float32)
        step = directions
    if loc_ptr.dtype.element_ty != tl.float32:
        scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(loc * loc, 1)), 1e-12)[:, None]
        loc = loc * scale
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block  # with SHARED there is one block, of rows
        there = valid & (row < rows)
        mask = inside & there[:, None]
        place = row[:, None] * DIM + column
        grad = tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
        minus = tl.load(minus_ptr + row, mask=there, other=1.0)
        plus = tl.load(plus_ptr + row, mask=there, other=1.0)
        t = 1.0 - minus
        along = tl.sum(grad * loc, 1)
        if NEEDS_LOC:
            total += t[:, None] * grad - along[:, None] * x
        if NEEDS_KAPPA:
            across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
            slope = tl.load(slope_ptr + row, mask=there, other=0.0)
            result = _grad_kappa(along, across, minus, plus, slope)
            tl.store(grad_kappa_ptr + row, result, mask=there)
        turn += tl.num_programs(1)
    if NEEDS_LOC:
        if loc_ptr.dtype.element_ty != tl.float32:
            total = total * scale
        part = grad_loc_ptr + tl.program_id(1).to(tl.int64) * directions * DIM
        if SHARED:
            summed = tl.sum(total, 0)[None, :]
            tl.store(part + column, summed.to(part.dtype.element_ty), mask=inside)
        else:
            place = block[:, None] * DIM + column
            tl.store(part + place, total.to(part.dtype.element_ty), mask=inside & valid[:, None])


@triton.jit(do_not_specialize=_NUMBERS)
def _pull_back_long(
    grad_loc_ptr,
    grad_kappa_ptr,
    grad_ptr,
    x_ptr,
    loc_ptr,
    minus_ptr,
    plus_ptr,
    slope_ptr,
    rows: tl.int64,
    directions: tl.int64,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    PART: tl.constexpr,
):
    """A long row with a direction of its own, in parts: registers would not hold it."""
    row = tl.program_id(0).to(tl.int64)
    start = row * DIM
    along_part = tl.zeros((PART,), tl.float32)
    square_part = tl.zeros((PART,), tl.float32)
    for first in range(0, DIM, PART):
        column = first + tl.arange(0, PART)
        mask = column < DIM
        grad = tl.load(grad_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        loc = tl.load(loc_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        along_part += grad * loc
        if loc_ptr.dtype.element_ty != tl.float32:
            square_part += loc * loc
    scale = 1.0
    if loc_ptr.dtype.element_ty != tl.float32:
        scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(square_part, 0)), 1e-12)
    along = tl.sum(along_part, 0) * scale
    minus, plus = tl.load(minus_ptr + row), tl.load(plus_ptr + row)
    t = 1.0 - minus
    across_part = tl.zeros((PART,), tl.float32)
    for first in range(0, DIM, PART):
        column = first + tl.arange(0, PART)
        mask = column < DIM
        grad = tl.load(grad_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        loc = tl.load(loc_ptr + start + column, mask=mask, other=0.0).to(tl.float32) * scale
        x = tl.load(x_ptr + start + column, mask=mask, other=0.0).to(tl.float32)
        across_part += (grad - along * loc) * (x - t * loc)
        if NEEDS_LOC:
            result = ((t * grad - along * x) * scale).to(grad_loc_ptr.dtype.element_ty)
            tl.store(grad_loc_ptr + start + column, result, mask=mask)
    if NEEDS_KAPPA:
        across = tl.sum(across_part, 0)
        slope = tl.load(slope_ptr + row)
        tl.store(grad_kappa_ptr + row, _grad_kappa(along, across, minus, plus, slope))


def pull_back(
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    slope: Tensor | None,
    *,
    needs_loc: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in the directions, in their shape and dtype, and in κ, of each row; each where it is wanted.

    All tensors are contiguous. ``grad`` and ``x`` have n > 0 rows of d, ``loc`` m of them, as in ``draw``. ``slope`` is
    (dt/dκ)/(1-t²) of each row, or None where nobody needs the gradient in κ.
    """
    width = x.shape[-1]
    needs_kappa = slope is not None
    parts, launch = _launch(
        x.numel() // width, loc.numel() // width, width, needs_loc, needs_kappa, x.dtype, x.device
    )
    if not needs_loc:
        grad_loc = loc  # something has to stand there
    elif parts == 1:
        grad_loc = torch.empty_like(loc)
    else:
        grad_loc = torch.empty((parts, *loc.shape), dtype=torch.float32, device=loc.device)
    grad_kappa, rates = (torch.empty_like(one_minus_t), slope) if needs_kappa else (one_minus_t, one_minus_t)
    launch((grad_loc, grad_kappa, grad, x, loc, one_minus_t, one_plus_t, rates))
    if needs_loc and parts > 1:
        grad_loc = grad_loc.sum(0)
        if loc.dtype != torch.float32:
            grad_loc = grad_loc.to(loc.dtype)
    return grad_loc if needs_loc else None, grad_kappa if needs_kappa else None


@functools.lru_cache(1024)  # launches, of the latest sizes
def _launch(
    rows: int,
    directions: int,
    width: int,
    needs_loc: bool,
    needs_kappa: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[int, Launch]:
    """In how many parts the gradient in the directions comes, and what computes it."""
    numbers, needs = (rows, directions), (needs_loc, needs_kappa)
    if directions == rows and width > _LONG:
        return 1, Launch(_pull_back_long, (rows, 1), numbers, (*needs, width, _PART), num_warps=_PART_WARPS)
    shared = directions == 1
    columns = next_power_of_two(width)
    block = max(1, _ELEMENTS // columns)
    grid = 1 if shared else blocks(directions, block)
    turns = blocks(rows, block) if shared else rows // directions
    parts = max(1, min(turns, _PROGRAMS // grid))
    warps = 4 if block * columns <= 4096 else 8 if block * columns <= 8192 else 16
    constants = shared, *needs, width, block, columns
    return parts, Launch(_pull_back, (grid, parts), numbers, constants, num_warps=warps)
