"""Drawing on the sphere with Triton: noise, cosine and point in one kernel, without a round trip to memory.

A program has a few rows and all their coordinates in registers; x is written once, and beside it the three scalars per
row that the backward pass needs, see ``sampling.operator``. The steps are those of ``sampling.geometry`` and of each
family's ``draw_cosine``, in float32. Row r has the direction number r modulo the number of directions: one for each
row, one for all, or a batch of them under a sample shape.

A call of Philox gives four numbers. They go to the four quarters of a row, so that the quarters need not be put
together: each is a tensor (rows, quarter) of its own, named 0 to 3.
"""

# mypy: ignore-errors

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.triton import Launch, blocks, next_power_of_two
from powerspherical.sampling.triton import two_sphere
from powerspherical.sampling.triton.random import (
    GAMMA,
    LENGTH,
    NORMALS,
    PROPOSAL,
    bits,
    gamma,
    gamma_candidate,
    normal_pair,
    normals,
    uniform,
)
from powerspherical.special._triton_gamma import log1p

POWER_SPHERICAL = 0
VON_MISES_FISHER = 1
SPHERICAL_CAUCHY = 2
_CAUCHY = tl.constexpr(SPHERICAL_CAUCHY)
_VON_MISES_FISHER = tl.constexpr(VON_MISES_FISHER)

#: How many directions there are: one, one for each row, or some that repeat.
ONE = tl.constexpr(1)
ONE_EACH = tl.constexpr(2)
SOME = tl.constexpr(3)

#: Up to this dimension the projection is repeated, see ``geometry.tangent_gaussian``.
_PROJECT_TWICE = 8
_QUADS = 256  # groups of four coordinates that a program has, if a single row has no more
_QUADS_A_THREAD, _MOST_QUADS_A_THREAD = 8, 32  # the second in programs of four warps or more
_COSINES = 32  # rows of a program that draws cosines alone: it takes as long as its unluckiest row

_KEPT = 1024  # launches, of the latest sizes

_NUMBERS = ["seed", "rows", "directions", "kappa_stride"]


@triton.jit(do_not_specialize=_NUMBERS)
def _von_mises_fisher_cosines(
    minus_ptr,
    plus_ptr,
    kappa_ptr,
    seed_ptr,
    seed: tl.int64,
    rows: tl.int64,
    kappa_stride: tl.int64,
    degrees: tl.float32,
    SEED_IN_MEMORY: tl.constexpr,
    FAST: tl.constexpr,
    ROWS: tl.constexpr,
):
    """1-t and 1+t by Wood's rejection, as in ``VonMisesFisherFamily.draw_cosine``, for ROWS rows a program.

    The candidate's length ‖v‖² has a rejection of its own. They are one: a round is accepted if both accept.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)
    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=there, other=0.0)
    beta = 0.5 * degrees
    longer, shorter = tl.maximum(kappa, beta), tl.minimum(kappa, beta)
    # The hypotenuse; a square could overflow.
    root = longer * tl.sqrt(1.0 + (shorter / longer) * (shorter / longer))
    b = beta / (kappa + root)
    x0 = kappa / (root + beta)
    one_minus_t = kappa  # where κ is NaN, so is what is drawn
    one_plus_t = kappa
    pending = (kappa == kappa).to(tl.int32)
    attempt = 0
    while tl.max(pending, 0) > 0:
        half, exists = gamma_candidate(row * 0.0 + beta, seed, attempt, row, LENGTH, FAST)
        length = 2.0 * half
        i, j, k, _ = bits(seed, (row * 0 + attempt).to(tl.int32), row, PROPOSAL)
        normal, _ = normal_pair(i, j, FAST)
        far = tl.sqrt(normal * normal + length) + tl.abs(normal)
        far = far * far
        z = tl.where(normal > 0, length, far)
        rest = tl.where(normal > 0, far, length)
        scaled = b * z
        denominator = rest + scaled
        ratio = 0.5 * (rest - z) * x0 * (1.0 + b) / denominator
        log_acceptance = degrees * (log1p(-ratio) + ratio)
        # Written so that a NaN is accepted: it would be drawn again for ever.
        rejected = log_acceptance < tl.log(uniform(k))
        accepted = exists & (rejected == 0) & (pending > 0)
        one_minus_t = tl.where(accepted, 2.0 * scaled / denominator, one_minus_t)
        one_plus_t = tl.where(accepted, 2.0 * rest / denominator, one_plus_t)
        pending = tl.where(accepted, 0, pending)
        attempt += 1
    tl.store(minus_ptr + row, one_minus_t, mask=there)
    tl.store(plus_ptr + row, one_plus_t, mask=there)


@triton.jit
def _dot(a0, a1, a2, a3, b0, b1, b2, b3):
    """The inner products of rows in quarters."""
    return tl.sum(a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3, 1)


@triton.jit(do_not_specialize=_NUMBERS)
def _draw(
    x_ptr,
    minus_ptr,
    plus_ptr,
    noise_ptr,
    loc_ptr,
    kappa_ptr,
    seed_ptr,
    seed: tl.int64,
    rows: tl.int64,
    directions: tl.int64,
    kappa_stride: tl.int64,
    degrees: tl.float32,
    SEED_IN_MEMORY: tl.constexpr,
    FAMILY: tl.constexpr,
    OTHER_DIM: tl.constexpr,
    TWO_SPHERE: tl.constexpr,
    FAST: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    DIM: tl.constexpr,
    QUARTER: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
    PROJECTIONS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)

    column = tl.arange(0, QUADS)[None, :]
    inside = column < QUARTER
    inside1, inside2 = inside & (column + QUARTER < DIM), inside & (column + 2 * QUARTER < DIM)
    inside3 = inside & (column + 3 * QUARTER < DIM)
    if DIRECTIONS == ONE:
        source = loc_ptr + column
        loc0 = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        loc1 = tl.load(source + QUARTER, mask=inside1, other=0.0).to(tl.float32)
        loc2 = tl.load(source + 2 * QUARTER, mask=inside2, other=0.0).to(tl.float32)
        loc3 = tl.load(source + 3 * QUARTER, mask=inside3, other=0.0).to(tl.float32)
    else:
        direction = row if DIRECTIONS == ONE_EACH else row % directions
        source = loc_ptr + direction[:, None] * DIM + column
        valid = there[:, None]
        loc0 = tl.load(source, mask=inside & valid, other=0.0).to(tl.float32)
        loc1 = tl.load(source + QUARTER, mask=inside1 & valid, other=0.0).to(tl.float32)
        loc2 = tl.load(source + 2 * QUARTER, mask=inside2 & valid, other=0.0).to(tl.float32)
        loc3 = tl.load(source + 3 * QUARTER, mask=inside3 & valid, other=0.0).to(tl.float32)
    if loc_ptr.dtype.element_ty != tl.float32:
        # Half precision: unit length to the digits of float32.
        length = tl.sqrt(_dot(loc0, loc1, loc2, loc3, loc0, loc1, loc2, loc3))
        scale = 1.0 / tl.maximum(length, 1e-12)[:, None]
        loc0, loc1, loc2, loc3 = loc0 * scale, loc1 * scale, loc2 * scale, loc3 * scale

    v0, v1, v2, v3 = normals(seed, column, row[:, None], NORMALS, FAST)
    if DIM == 2:
        # The tangent is the line of (-μ₂, μ₁): no projection, and no length of exactly zero.
        v0 = tl.where(v0 == 0.0, 1e-9, v0)
        squared_length = tl.sum(tl.where(inside, v0 * v0, 0.0), 1)
        v0, v1, v2, v3 = -loc1 * v0, loc0 * v0, 0.0 * v2, 0.0 * v3
    else:
        v0, v1 = tl.where(inside, v0, 0.0), tl.where(inside1, v1, 0.0)
        v2, v3 = tl.where(inside2, v2, 0.0), tl.where(inside3, v3, 0.0)
        for _ in tl.static_range(PROJECTIONS):
            along = _dot(v0, v1, v2, v3, loc0, loc1, loc2, loc3)[:, None]
            v0, v1, v2, v3 = v0 - along * loc0, v1 - along * loc1, v2 - along * loc2, v3 - along * loc3
        squared_length = _dot(v0, v1, v2, v3, v0, v1, v2, v3)

    if FAMILY == _VON_MISES_FISHER and not TWO_SPHERE:
        one_minus_t = tl.load(minus_ptr + row, mask=there, other=1.0)
        one_plus_t = tl.load(plus_ptr + row, mask=there, other=1.0)
    else:
        kappa = tl.load(kappa_ptr + row * kappa_stride, mask=there, other=1.0)
        free = squared_length
        if OTHER_DIM:
            free = 2.0 * gamma(row * 0.0 + 0.5 * degrees, seed, row, LENGTH, FAST)
        if FAMILY == _CAUCHY:
            # A uniform point's cosine, shifted in rapidity, as in ``SphericalCauchyFamily.draw_cosine``.
            i, j, _, _ = bits(seed, (row * 0).to(tl.int32), row, PROPOSAL)
            normal, _ = normal_pair(i, j, FAST)
            far = tl.sqrt(normal * normal + free) + tl.abs(normal)
            far = far * far
            minus = tl.where(normal > 0, free, far) / (1.0 + kappa) / (1.0 + kappa)
            plus = tl.where(normal > 0, far, free)
            scale = 2.0 / (minus + plus)
            one_minus_t = minus * scale
            one_plus_t = plus * scale
        elif TWO_SPHERE:
            if FAMILY == _VON_MISES_FISHER:
                one_minus_t, one_plus_t = two_sphere.von_mises_fisher_ends(free, kappa)
            else:
                one_minus_t, one_plus_t = two_sphere.power_spherical_ends(free, kappa)
            tl.store(noise_ptr + row, free, mask=there)
        else:
            larger = gamma(kappa + 0.5 * degrees, seed, row, GAMMA, FAST)
            total = larger + 0.5 * free
            one_minus_t = free / total
            one_plus_t = 2.0 * (larger / total)
            tl.store(noise_ptr + row, larger, mask=there)
        tl.store(minus_ptr + row, one_minus_t, mask=there)
        tl.store(plus_ptr + row, one_plus_t, mask=there)

    t = 0.5 * (one_plus_t - one_minus_t)[:, None]
    stretch = tl.sqrt(one_minus_t * one_plus_t / squared_length)[:, None]
    target = x_ptr + row[:, None] * DIM + column
    kind = x_ptr.dtype.element_ty
    valid = there[:, None]
    tl.store(target, (t * loc0 + stretch * v0).to(kind), mask=inside & valid)
    tl.store(target + QUARTER, (t * loc1 + stretch * v1).to(kind), mask=inside1 & valid)
    tl.store(target + 2 * QUARTER, (t * loc2 + stretch * v2).to(kind), mask=inside2 & valid)
    tl.store(target + 3 * QUARTER, (t * loc3 + stretch * v3).to(kind), mask=inside3 & valid)


def draw(
    x: Tensor,
    scalars: tuple[Tensor, Tensor, Tensor],
    loc: Tensor,
    concentration: Tensor,
    seed: Tensor | int,
    family: int,
    dim: int,
    *,
    fast: bool = True,
) -> None:
    """Write n > 0 draws to ``x`` (…, d), and 1-t, 1+t and the noise that dt/dκ needs to ``scalars``.

    That noise is the Gamma variable of a Power Spherical draw. Draws of Power Spherical and von Mises–Fisher with
    ``dim`` = 3 write ‖v‖² there, which dt/dκ does not need. Other draws leave it as it is.

    Args:
        x: in the dtype of ``loc``; contiguous, as all tensors here.
        scalars: n numbers each, float32.
        loc: m directions (…, d) of any floating dtype; m divides n, and row r has direction r mod m.
        concentration: κ for each row or one for all, float32.
        seed: a random int64; a tensor on the device is read by the kernel, anew in each replay of a CUDA graph.
        family: ``POWER_SPHERICAL``, ``VON_MISES_FISHER`` or ``SPHERICAL_CAUCHY``.
        dim: the dimension whose law t has.
        fast: whether to take the hardware's approximate functions.
    """
    width = loc.shape[-1]
    rows, directions = x.numel() // width, loc.numel() // width
    in_memory = isinstance(seed, Tensor)
    seed_tensor, seed_number = (seed, 0) if in_memory else (x, seed)
    types = x.dtype, x.device, in_memory, fast
    kappa_stride = 0 if concentration.numel() == 1 else 1
    if family == VON_MISES_FISHER and dim != 3:
        cosines = _cosines_launch(rows, kappa_stride, dim, *types)
        cosines((*scalars[:2], concentration, seed_tensor), seed_number)
    points = _points_launch(rows, directions, kappa_stride, width, dim, family, *types)
    points((x, *scalars, loc, concentration, seed_tensor), seed_number)


@functools.lru_cache(_KEPT)
def _cosines_launch(
    rows: int,
    kappa_stride: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    in_memory: bool,
    fast: bool,
) -> Launch:
    return Launch(
        _von_mises_fisher_cosines,
        (blocks(rows, _COSINES), 1),
        (rows, kappa_stride, float(dim - 1)),
        (in_memory, fast, _COSINES),
        num_warps=1,
    )


@functools.lru_cache(_KEPT)
def _points_launch(
    rows: int,
    directions: int,
    kappa_stride: int,
    width: int,
    dim: int,
    family: int,
    dtype: torch.dtype,
    device: torch.device,
    in_memory: bool,
    fast: bool,
) -> Launch:
    quarter = blocks(width, 4)
    quads = next_power_of_two(quarter)
    rows_a_program = max(1, _QUADS // quads)
    other_dim = dim != width
    kind = ONE if directions == 1 else ONE_EACH if directions == rows else SOME
    projections = 2 if width <= _PROJECT_TWICE else 1
    shape = width, quarter, rows_a_program, quads, projections
    return Launch(
        _draw,
        (blocks(rows, rows_a_program), 1),
        (rows, directions, kappa_stride, float(dim - 1)),
        (in_memory, family, other_dim, dim == 3, fast, kind.value, *shape),
        num_warps=_warps(rows_a_program * quads),
    )


def _warps(quads: int) -> int:
    few, many = quads // (32 * _QUADS_A_THREAD), quads // (32 * _MOST_QUADS_A_THREAD)
    return max(1, min(few, 4), min(many, 16))
