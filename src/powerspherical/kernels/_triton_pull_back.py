"""The backward pass of a draw as one Triton kernel: each of g, x and μ is read once.

With the upstream gradient g, the gradient in μ is t g - (g·μ)x, summed over the rows that share a direction, and that
in κ is dt/dκ times g·μ - t (g - (g·μ)μ)·(x - tμ)/(1-t²); see ``_geometry`` for both. dt/dκ comes from the caller.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 1024  # coordinates of g that a program has at a time, if a single row has no more
_PROGRAMS = 1056  # where many rows share few directions: eight for each multiprocessor of an H100


@triton.jit
def _pull_back(
    grad_loc_ptr,
    grad_kappa_ptr,
    grad_ptr,
    x_ptr,
    loc_ptr,
    minus_ptr,
    plus_ptr,
    slope_ptr,
    rows,
    directions,
    dim,
    SHARED: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A block of ROWS directions and a part of the rows that have them; SHARED: ROWS rows of the one direction."""
    column = tl.arange(0, COLUMNS)[None, :]
    inside = column < dim
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if SHARED:
        valid = block >= 0
        loc = tl.load(loc_ptr + column, mask=inside, other=0.0).to(tl.float32)
        step = ROWS
    else:
        valid = block < directions
        loc = tl.load(loc_ptr + block[:, None] * dim + column, mask=inside & valid[:, None], other=0.0)
        loc = loc.to(tl.float32)
        step = directions
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block  # with SHARED there is one block, of rows
        there = valid & (row < rows)
        mask = inside & there[:, None]
        place = row[:, None] * dim + column
        grad = tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
        minus = tl.load(minus_ptr + row, mask=there, other=1.0)
        plus = tl.load(plus_ptr + row, mask=there, other=1.0)
        t = 0.5 * (plus - minus)
        along = tl.sum(grad * loc, 1)
        if NEEDS_LOC:
            total += t[:, None] * grad - along[:, None] * x
        if NEEDS_KAPPA:
            across = tl.sum((grad - along[:, None] * loc) * (x - t[:, None] * loc), 1)
            grad_t = along - across * t / tl.maximum(minus * plus, 1.1754943508222875e-38)
            slope = tl.load(slope_ptr + row, mask=there, other=0.0)
            tl.store(grad_kappa_ptr + row, grad_t * slope, mask=there)
        turn += tl.num_programs(1)
    if NEEDS_LOC:
        part = grad_loc_ptr + tl.program_id(1).to(tl.int64) * directions * dim
        if SHARED:
            tl.store(part + column, tl.sum(total, 0)[None, :], mask=inside)
        else:
            tl.store(part + block[:, None] * dim + column, total, mask=inside & valid[:, None])


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
    """The gradients in the directions (m, d) and in the concentrations (n,), float32; each where it is wanted.

    ``grad`` and ``x`` are (n, d) and contiguous, ``loc`` (m, d) as in ``draw``; ``slope`` is dt/dκ (n,), or None where
    nobody needs the gradient in κ.
    """
    (rows, dim), directions = x.shape, len(loc)
    shared = directions == 1
    columns = triton.next_power_of_2(dim)
    block = max(1, _ELEMENTS // columns)
    blocks = 1 if shared else triton.cdiv(directions, block)
    turns = triton.cdiv(rows, block) if shared else rows // directions
    parts = max(1, min(turns, _PROGRAMS // blocks))
    grad_loc = torch.empty(parts if needs_loc else 0, directions, dim, dtype=torch.float32, device=x.device)
    grad_kappa = torch.empty(rows if slope is not None else 0, dtype=torch.float32, device=x.device)
    if rows:
        _pull_back[(blocks, parts)](
            grad_loc,
            grad_kappa,
            grad,
            x,
            loc,
            one_minus_t,
            one_plus_t,
            grad_kappa if slope is None else slope,
            rows,
            directions,
            dim,
            SHARED=shared,
            NEEDS_LOC=needs_loc,
            NEEDS_KAPPA=slope is not None,
            ROWS=block,
            COLUMNS=columns,
            num_warps=4 if block * columns <= 4096 else 8 if block * columns <= 8192 else 16,
        )
    else:
        grad_loc.zero_()
    summed = None
    if needs_loc:
        summed = grad_loc[0] if parts == 1 else grad_loc.sum(0)
    return summed, None if slope is None else grad_kappa
