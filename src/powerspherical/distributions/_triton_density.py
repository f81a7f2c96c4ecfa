"""Log-densities and cosines of rows of unit vectors with Triton, in float32: one kernel forward and one backward.

Both kernels read x and μ once. The forward kernel computes 1-t = ‖x-μ‖²/2 and 1+t = ‖x+μ‖²/2 for each row, and then the
log-density. The backward kernel computes the gradients in x, μ and κ. Formulas are those of ``geometry`` and of the
families. Rows of half precision are normalised in float32 as they are read.

Arguments broadcast. A program finds its row of an argument as (row // inner) % count, see ``Tile``.
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

from powerspherical._torch.memory import readable
from powerspherical._torch.triton import Launch, blocks, next_power_of_two
from powerspherical.distributions._tile import Tile, tiles
from powerspherical.special.gamma import log_sphere_area
from powerspherical.special.triton_elementary import log1p

#: What the kernels compute: the two ends of the cosine alone, or the log-density of a family.
FORMS = ("ends", "von_mises_fisher", "power_spherical", "spherical_cauchy")

_ENDS = tl.constexpr(FORMS.index("ends"))
_VON_MISES_FISHER = tl.constexpr(FORMS.index("von_mises_fisher"))
_POWER_SPHERICAL = tl.constexpr(FORMS.index("power_spherical"))
_SPHERICAL_CAUCHY = tl.constexpr(FORMS.index("spherical_cauchy"))

_LARGEST_DIM = 4096  # a program holds whole rows; longer ones are left to torch operations
_ELEMENTS = 1024  # coordinates of x per program, if a single row has no more
_PROGRAMS = 1056  # programs that add up the gradient of a shared μ: eight per multiprocessor of an H100

_INTEGERS = ["rows", "x_inner", "x_count", "loc_inner", "loc_count", "kappa_inner", "kappa_count"]


@triton.jit
def _tile_row(row, inner, count, OWN: tl.constexpr):
    """The row of an argument that belongs to a row of the result. OWN: the argument has as many rows."""
    if not OWN:
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
def _power_statistic(minus, plus):
    """T = log((1+t)/2) of the Power Spherical family; -inf at the antipode."""
    near, antipode = minus < 1.0, plus <= 0.0
    close = log1p(tl.where(near, minus, 0.0) * -0.5)
    far = tl.log(tl.where(near | antipode, 1.0, plus) * 0.5)
    return tl.where(near, close, tl.where(antipode, float("-inf"), far))


@triton.jit
def _cauchy_spread(minus, kappa):
    """(1-t)κ(κ+2)/2."""
    return 0.5 * minus * kappa * (kappa + 2.0)


@triton.jit
def relative_log_density(minus, plus, kappa, offset, FORM: tl.constexpr, DIM: tl.constexpr):
    """The log-density relative to the uniform, which is ``offset`` + κT for exponential families."""
    if FORM == _SPHERICAL_CAUCHY:
        value = (DIM - 1.0) * (log1p(kappa) - log1p(_cauchy_spread(minus, kappa)))
    else:
        statistic = -minus
        if FORM == _POWER_SPHERICAL:
            statistic = _power_statistic(minus, plus)
            # At κ = 0 the density is uniform, also at the antipode.
            statistic = tl.where((kappa == 0.0) & (statistic < -1.0), -1.0, statistic)
        value = offset + kappa * statistic
    return value


@triton.jit
def slopes(minus, plus, kappa, mean, FORM: tl.constexpr, DIM: tl.constexpr):
    """The derivatives of the log-density in t and κ."""
    if FORM == _SPHERICAL_CAUCHY:
        spread = _cauchy_spread(minus, kappa)
        spread = tl.where(spread > 1e37, 1e37, spread)
        in_t = (DIM - 1.0) * ((0.5 * kappa / (1.0 + spread)) * (kappa + 2.0))
        in_kappa = (DIM - 1.0) * (((1.0 - minus) - spread) / (1.0 + spread) / (1.0 + kappa))
    elif FORM == _POWER_SPHERICAL:
        near = minus < 1.0
        length = tl.where(near, 2.0 - minus, plus)
        # At the antipode we define the derivative as 0, as the family does.
        in_t = tl.where(length <= 0.0, 0.0, kappa / tl.where(length <= 0.0, 1.0, length))
        in_kappa = _power_statistic(minus, plus) - mean
    else:
        in_t, in_kappa = kappa, -minus - mean
    return in_t, in_kappa


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
    FORM: tl.constexpr,
    NEEDS_ENDS: tl.constexpr,
    OWN_X: tl.constexpr,
    OWN_LOC: tl.constexpr,
    OWN_KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    x, _ = _unit_rows(x_ptr, _tile_row(row, x_inner, x_count, OWN_X), there, DIM, COLUMNS)
    loc, _ = _unit_rows(loc_ptr, _tile_row(row, loc_inner, loc_count, OWN_LOC), there, DIM, COLUMNS)
    minus = 0.5 * tl.sum((x - loc) * (x - loc), 1)
    plus = 0.5 * tl.sum((x + loc) * (x + loc), 1)
    if NEEDS_ENDS:
        tl.store(minus_ptr + row, minus, mask=there)
        tl.store(plus_ptr + row, plus, mask=there)
    if FORM != _ENDS:
        place = _tile_row(row, kappa_inner, kappa_count, OWN_KAPPA)
        kappa = tl.load(kappa_ptr + place, mask=there, other=0.0)
        offset = tl.load(offset_ptr + place, mask=there, other=0.0)
        value = relative_log_density(minus, plus, kappa, offset, FORM, DIM)
        tl.store(value_ptr + row, value - log_area, mask=there)


@triton.jit
def _tangential(other, x, near, short):
    """The derivative of t in x: y - tx for the ``other`` vector y, as in ``geometry``."""
    sign = tl.where(near, 1.0, -1.0)[:, None]
    return (other - sign * x) + (sign * short[:, None]) * x


@triton.jit(do_not_specialize=[*_INTEGERS, "directions", "grad_stride"])
def _backward(
    grad_x_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    grad_ptr,
    minus_ptr,
    plus_ptr,
    x_ptr,
    loc_ptr,
    kappa_ptr,
    mean_ptr,
    grad_stride: tl.int64,
    rows: tl.int64,
    x_inner: tl.int64,
    x_count: tl.int64,
    loc_inner: tl.int64,
    loc_count: tl.int64,
    kappa_inner: tl.int64,
    kappa_count: tl.int64,
    directions: tl.int64,
    FORM: tl.constexpr,
    NEEDS_X: tl.constexpr,
    NEEDS_LOC: tl.constexpr,
    NEEDS_KAPPA: tl.constexpr,
    SHARED: tl.constexpr,
    OWN_X: tl.constexpr,
    OWN_LOC: tl.constexpr,
    OWN_KAPPA: tl.constexpr,
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
    loc, loc_scale = _unit_rows(loc_ptr, _tile_row(block, loc_inner, loc_count, OWN_LOC), valid, DIM, COLUMNS)
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    turn = tl.program_id(1).to(tl.int64)
    while turn * step < rows:
        row = turn * step + block
        there = valid & (row < rows)
        mask = there[:, None] & (column < DIM)
        x, x_scale = _unit_rows(x_ptr, _tile_row(row, x_inner, x_count, OWN_X), there, DIM, COLUMNS)
        minus = tl.load(minus_ptr + row, mask=there, other=1.0)
        plus = tl.load(plus_ptr + row, mask=there, other=1.0)
        weight = tl.load(grad_ptr + row * grad_stride, mask=there, other=0.0)
        if FORM != _ENDS:
            place = _tile_row(row, kappa_inner, kappa_count, OWN_KAPPA)
            kappa = tl.load(kappa_ptr + place, mask=there, other=0.0)
            mean = tl.load(mean_ptr + place, mask=there, other=0.0)
            in_t, in_kappa = slopes(minus, plus, kappa, mean, FORM, DIM)
            if NEEDS_KAPPA:
                tl.store(grad_kappa_ptr + row, weight * in_kappa, mask=there)
            weight = weight * in_t
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


class Plan(NamedTuple):
    """How to compute one of the ``FORMS`` for arguments of given shapes, see ``_fused.Plan``."""

    form: int
    shape: torch.Size
    dim: int
    tiles: tuple[Tile, Tile, Tile]  # of x, loc and kappa

    def forward(
        self, x: Tensor, loc: Tensor, kappa: Tensor, offset: Tensor, *, needs_ends: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        tensors = [readable(tensor) for tensor in (x, loc, kappa, offset)]
        needs_value = self.form != _ENDS.value
        results = [
            torch.empty(self.shape if needed else (0,), dtype=torch.float32, device=x.device)
            for needed in (needs_value, needs_ends, needs_ends)
        ]
        _forward_launch(self, needs_ends, x.dtype, loc.dtype, x.device)((*results, *tensors))
        return tuple(results)

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        loc: Tensor,
        kappa: Tensor,
        mean: Tensor,
        ends: tuple[Tensor, Tensor],
        needed: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, loc, kappa, mean = (readable(tensor) for tensor in (x, loc, kappa, mean))
        one_grad = not any(grad.stride())  # such as the gradient of a sum
        grad = readable(grad.as_strided((1,), (1,)) if one_grad else grad)
        step = _backward_step(self, needed, x.dtype, loc.dtype, x.device)
        rows, (x_tile, _, kappa_tile) = self.shape.numel(), self.tiles

        def empty(needed: bool, like: Tensor, shape: tuple[int, ...]) -> Tensor:
            if not needed:
                return like  # takes the place of a pointer that is not used
            whole = math.prod(shape) == like.numel()
            if whole:
                return torch.empty_like(like)
            return torch.empty(shape, dtype=torch.float32, device=like.device)

        grad_x = empty(needed[0], x, (rows, self.dim))
        grad_loc = empty(needed[1], loc, (step.parts, step.directions, self.dim))
        grad_kappa = empty(needed[2], kappa, (rows,))
        step.launch((grad_x, grad_loc, grad_kappa, grad, *ends, x, loc, kappa, mean), 0 if one_grad else 1)
        return (
            x_tile.add_up(grad_x, x) if needed[0] else None,
            self._sum_parts(grad_loc, loc) if needed[1] else None,
            kappa_tile.add_up(grad_kappa, kappa) if needed[2] else None,
        )

    def _sum_parts(self, grad_loc: Tensor, loc: Tensor) -> Tensor:
        if grad_loc.shape == loc.shape:
            return grad_loc
        if self.tiles[1].inner == 1 or self.tiles[1].count == 1:
            return grad_loc.view(-1, *loc.shape).sum(0).to(loc.dtype)
        return self.tiles[1].add_up(grad_loc[0], loc)


@functools.lru_cache(1024)
def plan(form: str, x: torch.Size, loc: torch.Size, kappa: torch.Size) -> Plan | None:
    """Return the plan for arguments of these shapes, or None if the kernels do not serve them."""
    found = tiles(x, loc, kappa)
    if found is None or x[-1] > _LARGEST_DIM:
        return None
    return Plan(FORMS.index(form), found[0], x[-1], found[1])


class _Block(NamedTuple):
    """The size of a program: so many rows, columns and warps."""

    rows: int
    columns: int
    warps: int

    @staticmethod
    def of(dim: int) -> "_Block":
        columns = next_power_of_two(dim)
        return _Block(max(1, _ELEMENTS // columns), columns, 4 if columns <= 2048 else 8)


def _integers(plan: Plan) -> tuple[int, ...]:
    return (plan.shape.numel(), *(number for tile in plan.tiles for number in tile))


def _constants(plan: Plan, block: _Block) -> tuple[int, ...]:
    rows = plan.shape.numel()
    own = (tile.count == rows for tile in plan.tiles)
    return (*own, plan.dim, block.rows, block.columns)


@functools.lru_cache(1024)
def _forward_launch(
    plan: Plan, needs_ends: bool, x: torch.dtype, loc: torch.dtype, device: torch.device
) -> Launch:
    block = _Block.of(plan.dim)
    return Launch(
        _forward,
        (blocks(plan.shape.numel(), block.rows), 1),
        (*_integers(plan), log_sphere_area(plan.dim)),
        (plan.form, needs_ends, *_constants(plan, block)),
        num_warps=block.warps,
    )


class _Step(NamedTuple):
    """A launch of the backward kernel, which writes the gradient in loc as an array (parts, directions, dim)."""

    launch: Launch
    parts: int
    directions: int


@functools.lru_cache(1024)
def _backward_step(
    plan: Plan, needed: tuple[bool, bool, bool], x: torch.dtype, loc: torch.dtype, device: torch.device
) -> _Step:
    block, rows, loc_tile = _Block.of(plan.dim), plan.shape.numel(), plan.tiles[1]
    shared = needed[1] and loc_tile.count == 1 and rows > 1
    if shared:
        directions, grid, turns = 1, 1, blocks(rows, block.rows)
    elif needed[1] and loc_tile.inner == 1 and loc_tile.count < rows:
        # loc repeats as a whole. If it is short, a program has several copies of it.
        directions = loc_tile.count * min(max(1, block.rows // loc_tile.count), rows // loc_tile.count)
        # At least four groups per program, so that the partial sums take little memory.
        grid, turns = blocks(directions, block.rows), blocks(rows, 4 * directions)
    else:  # gradients in loc are written per row
        directions, grid, turns = rows, blocks(rows, block.rows), 1
    parts = max(1, min(turns, _PROGRAMS // grid))
    launch = Launch(
        _backward,
        (grid, parts),
        (*_integers(plan), directions),
        (plan.form, *needed, shared, *_constants(plan, block)),
        num_warps=block.warps,
    )
    return _Step(launch, parts, directions)
