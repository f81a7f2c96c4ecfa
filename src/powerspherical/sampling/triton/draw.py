"""Draws with Triton: one kernel draws the noise, the cosine and the point, without a round trip to memory.

A program holds a few rows with all their coordinates in registers. It writes x once and, if gradients are
needed, three scalars per row (``sampling.operator``). The steps are those of ``sampling.geometry`` and of each family's
``draw_cosine``, in float32. von Mises–Fisher cosines need a rejection loop, which runs in a kernel of its own before
(except at d = 3, where they have a closed form).

With m directions, row r has direction r mod m. So m may be 1, the number of rows, or the size of a batch below a
sample shape.

A call of Philox gives four numbers, one for each quarter of a row. The quarters are four tensors (rows, quarter) with
the suffixes 0 to 3, which saves putting them together.
"""

# mypy: ignore-errors

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.memory import empty
from powerspherical._torch.triton import Launch, blocks, next_power_of_two
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
    reciprocal,
    uniform,
)
from powerspherical.sampling.triton.two_sphere import power_spherical_ends, von_mises_fisher_ends
from powerspherical.special.triton_elementary import log1p

#: Values of FAMILY, as ``fused.FAMILIES`` numbers them.
POWER_SPHERICAL = tl.constexpr(0)
VON_MISES_FISHER = tl.constexpr(1)
SPHERICAL_CAUCHY = tl.constexpr(2)

#: The number of directions: one for all rows, one per row, or some that repeat.
ONE = tl.constexpr(1)
ONE_EACH = tl.constexpr(2)
SOME = tl.constexpr(3)

#: Up to this dimension we project twice onto the tangent space, see ``geometry.tangent_gaussian``.
_PROJECT_TWICE_DIM = tl.constexpr(8)

#: Groups of four coordinates per program, unless a single row has more.
_QUADS = 256

#: Groups of four coordinates per thread, up to four warps; and in programs with more warps.
_QUADS_PER_THREAD, _MAX_QUADS_PER_THREAD = 8, 32

#: Rows per program of the rejection kernel. A program takes as long as the row with the most attempts.
_COSINE_ROWS = 32

_NUMBERS = ["seed", "rows", "directions", "kappa_stride"]


@triton.jit
def wood_ends(kappa, seed, row, degrees, FAST: tl.constexpr):
    """1-t and 1+t of von Mises–Fisher draws by Wood's rejection, as in ``VonMisesFisherFamily.draw_cosine``.

    A candidate needs a χ² variable, which is drawn by rejection too. Both rejections share one loop: an attempt is
    accepted if both accept.
    """
    beta = 0.5 * degrees
    longer, shorter = tl.maximum(kappa, beta), tl.minimum(kappa, beta)
    # √(κ² + β²) without overflow of the squares.
    root = longer * tl.sqrt(1.0 + (shorter / longer) * (shorter / longer))
    b = beta / (kappa + root)
    x0 = kappa / (root + beta)
    one_minus_t = kappa  # stays NaN if κ is NaN
    one_plus_t = kappa
    pending = (kappa == kappa).to(tl.int32)
    attempt = 0
    while tl.max(pending, 0) > 0:
        half, usable = gamma_candidate(row * 0.0 + beta, seed, attempt, row, LENGTH, FAST)
        chi_squared = 2.0 * half
        i, j, k, _ = bits(seed, (row * 0 + attempt).to(tl.int32), row, PROPOSAL)
        normal, _ = normal_pair(i, j, FAST)
        far = tl.sqrt(normal * normal + chi_squared) + tl.abs(normal)
        far = far * far
        z = tl.where(normal > 0, chi_squared, far)
        rest = tl.where(normal > 0, far, chi_squared)
        scaled = b * z
        denominator = rest + scaled
        ratio = 0.5 * (rest - z) * x0 * (1.0 + b) / denominator
        log_acceptance = degrees * (log1p(-ratio) + ratio)
        # The comparison is written so that NaN is accepted. Otherwise the loop would not end.
        rejected = log_acceptance < tl.log(uniform(k))
        accepted = usable & (rejected == 0) & (pending > 0)
        one_minus_t = tl.where(accepted, 2.0 * scaled / denominator, one_minus_t)
        one_plus_t = tl.where(accepted, 2.0 * rest / denominator, one_plus_t)
        pending = tl.where(accepted, 0, pending)
        attempt += 1
    return one_minus_t, one_plus_t


@triton.jit(do_not_specialize=_NUMBERS)
def _von_mises_fisher_cosines(
    scalars_ptr,
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
    """Write 1-t and 1+t for ROWS rows per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)
    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=0.0)
    one_minus_t, one_plus_t = wood_ends(kappa, seed, row, degrees, FAST)
    tl.store(scalars_ptr + row, one_minus_t, mask=row_mask)
    tl.store(scalars_ptr + rows + row, one_plus_t, mask=row_mask)


@triton.jit
def row_dot(a0, a1, a2, a3, b0, b1, b2, b3):
    """Inner products of rows that are given in quarters."""
    return tl.sum(a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3, 1)


@triton.jit
def point(
    loc0,
    loc1,
    loc2,
    loc3,
    kappa,
    one_minus_t,
    one_plus_t,
    seed,
    row,
    column,
    degrees,
    FAMILY: tl.constexpr,
    OTHER_DIM: tl.constexpr,
    TWO_SPHERE: tl.constexpr,
    FAST: tl.constexpr,
    DIM: tl.constexpr,
    QUARTER: tl.constexpr,
):
    """Draw one point for each row, and return its four quarters, 1-t, 1+t, and the noise.

    The law of t is that of dimension ``degrees`` + 1. TWO_SPHERE says whether this is 3, and OTHER_DIM whether it
    differs from DIM. For von Mises–Fisher without TWO_SPHERE, the arguments ``one_minus_t`` and ``one_plus_t`` give the
    cosine t. Otherwise they are ignored. The noise is that of ``Family.draw_cosine``.
    """
    inside = column < QUARTER
    inside1, inside2 = inside & (column + QUARTER < DIM), inside & (column + 2 * QUARTER < DIM)
    inside3 = inside & (column + 3 * QUARTER < DIM)
    v0, v1, v2, v3 = normals(seed, column, row[:, None], NORMALS, FAST)
    if DIM == 2:
        # The tangent space is spanned by (-μ₂, μ₁), so no projection is needed. The length must not be 0.
        v0 = tl.where(v0 == 0.0, 1e-9, v0)
        squared_length = tl.sum(tl.where(inside, v0 * v0, 0.0), 1)
        normal = tl.sum(tl.where(inside, v1, 0.0), 1)
        v0, v1, v2, v3 = -loc1 * v0, loc0 * v0, 0.0 * v2, 0.0 * v3
    else:
        v0, v1 = tl.where(inside, v0, 0.0), tl.where(inside1, v1, 0.0)
        v2, v3 = tl.where(inside2, v2, 0.0), tl.where(inside3, v3, 0.0)
        # The part of v along μ is a normal variable, independent of the tangential part.
        normal = row_dot(v0, v1, v2, v3, loc0, loc1, loc2, loc3)
        along = normal[:, None]
        v0, v1, v2, v3 = v0 - along * loc0, v1 - along * loc1, v2 - along * loc2, v3 - along * loc3
        if DIM <= _PROJECT_TWICE_DIM:
            along = row_dot(v0, v1, v2, v3, loc0, loc1, loc2, loc3)[:, None]
            v0, v1, v2, v3 = v0 - along * loc0, v1 - along * loc1, v2 - along * loc2, v3 - along * loc3
        squared_length = row_dot(v0, v1, v2, v3, v0, v1, v2, v3)

    noise = squared_length
    if FAMILY != VON_MISES_FISHER or TWO_SPHERE:
        chi_squared = squared_length
        if OTHER_DIM:
            chi_squared = 2.0 * gamma(row * 0.0 + 0.5 * degrees, seed, row, LENGTH, FAST)
        if FAMILY == SPHERICAL_CAUCHY:
            # The cosine of a uniform point, shifted in rapidity, as in ``SphericalCauchyFamily.draw_cosine``.
            root = tl.sqrt(normal * normal + chi_squared) + tl.abs(normal)
            far = root * root
            shrink = reciprocal(1.0 + kappa, FAST)
            minus = tl.where(normal > 0, chi_squared, far) * shrink * shrink
            plus = tl.where(normal > 0, far, chi_squared)
            scale = 2.0 * reciprocal(minus + plus, FAST)
            one_minus_t = minus * scale
            one_plus_t = plus * scale
            noise = 1.0 + kappa
        elif TWO_SPHERE:
            if FAMILY == VON_MISES_FISHER:
                one_minus_t, one_plus_t = von_mises_fisher_ends(chi_squared, kappa)
            else:
                one_minus_t, one_plus_t = power_spherical_ends(chi_squared, kappa)
        else:
            noise = gamma(kappa + 0.5 * degrees, seed, row, GAMMA, FAST)
            total = noise + 0.5 * chi_squared
            one_minus_t = chi_squared / total
            one_plus_t = 2.0 * (noise / total)

    t = 0.5 * (one_plus_t - one_minus_t)[:, None]
    if FAMILY == SPHERICAL_CAUCHY and not OTHER_DIM:
        # The same as below, as (1-t)(1+t) = χ² (root·shrink·scale)².
        stretch = (root * shrink * scale)[:, None]
    else:
        stretch = tl.sqrt(one_minus_t * one_plus_t / squared_length)[:, None]
    x0, x1 = t * loc0 + stretch * v0, t * loc1 + stretch * v1
    x2, x3 = t * loc2 + stretch * v2, t * loc3 + stretch * v3
    return x0, x1, x2, x3, one_minus_t, one_plus_t, noise


@triton.jit(do_not_specialize=_NUMBERS)
def _draw(
    x_ptr,
    scalars_ptr,
    loc_ptr,
    kappa_ptr,
    seed_ptr,
    seed: tl.int64,
    rows: tl.int64,
    directions: tl.int64,
    kappa_stride: tl.int64,
    degrees: tl.float32,
    SEED_IN_MEMORY: tl.constexpr,
    NEEDS_SCALARS: tl.constexpr,
    FAMILY: tl.constexpr,
    OTHER_DIM: tl.constexpr,
    TWO_SPHERE: tl.constexpr,
    FAST: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    DIM: tl.constexpr,
    QUARTER: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)

    column = tl.arange(0, QUADS)[None, :]
    inside = column < QUARTER
    inside1, inside2 = inside & (column + QUARTER < DIM), inside & (column + 2 * QUARTER < DIM)
    inside3 = inside & (column + 3 * QUARTER < DIM)
    if DIRECTIONS == ONE:
        source = loc_ptr + column
        known = inside
    else:
        direction = row if DIRECTIONS == ONE_EACH else row % directions
        source = loc_ptr + direction[:, None] * DIM + column
        known = inside & row_mask[:, None]
    loc0 = tl.load(source, mask=known, other=0.0).to(tl.float32)
    loc1 = tl.load(source + QUARTER, mask=known & inside1, other=0.0).to(tl.float32)
    loc2 = tl.load(source + 2 * QUARTER, mask=known & inside2, other=0.0).to(tl.float32)
    loc3 = tl.load(source + 3 * QUARTER, mask=known & inside3, other=0.0).to(tl.float32)
    if loc_ptr.dtype.element_ty != tl.float32:
        # Half precision: normalise in float32.
        length = tl.sqrt(row_dot(loc0, loc1, loc2, loc3, loc0, loc1, loc2, loc3))
        scale = 1.0 / tl.maximum(length, 1e-12)[:, None]
        loc0, loc1, loc2, loc3 = loc0 * scale, loc1 * scale, loc2 * scale, loc3 * scale

    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=1.0)
    one_minus_t, one_plus_t = kappa, kappa
    if FAMILY == VON_MISES_FISHER and not TWO_SPHERE:
        one_minus_t = tl.load(scalars_ptr + row, mask=row_mask, other=1.0)
        one_plus_t = tl.load(scalars_ptr + rows + row, mask=row_mask, other=1.0)
    x0, x1, x2, x3, one_minus_t, one_plus_t, noise = point(
        loc0,
        loc1,
        loc2,
        loc3,
        kappa,
        one_minus_t,
        one_plus_t,
        seed,
        row,
        column,
        degrees,
        FAMILY,
        OTHER_DIM,
        TWO_SPHERE,
        FAST,
        DIM,
        QUARTER,
    )
    if NEEDS_SCALARS and (FAMILY != VON_MISES_FISHER or TWO_SPHERE):
        tl.store(scalars_ptr + row, one_minus_t, mask=row_mask)
        tl.store(scalars_ptr + rows + row, one_plus_t, mask=row_mask)
        if FAMILY != SPHERICAL_CAUCHY:
            tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
    target = x_ptr + row[:, None] * DIM + column
    dtype = x_ptr.dtype.element_ty
    valid = row_mask[:, None]
    tl.store(target, x0.to(dtype), mask=inside & valid)
    tl.store(target + QUARTER, x1.to(dtype), mask=inside1 & valid)
    tl.store(target + 2 * QUARTER, x2.to(dtype), mask=inside2 & valid)
    tl.store(target + 3 * QUARTER, x3.to(dtype), mask=inside3 & valid)


def draw(
    x: Tensor,
    scalars: Tensor | None,
    loc: Tensor,
    concentration: Tensor,
    seed: Tensor | int,
    family: int,
    dim: int,
) -> None:
    """Write n > 0 draws to ``x`` (…, d), and 1-t, 1+t and the noise to ``scalars``.

    The noise is the Gamma variable of a Power Spherical draw, which dt/dκ needs. With ``dim`` = 3, Power Spherical and
    von Mises–Fisher write ‖v‖² instead, which is not needed. Other draws do not write the noise.

    Args:
        x: output, in the dtype of ``loc``. All tensors here are contiguous.
        scalars: output of shape (3, …): 1-t, 1+t and the noise, n float32 numbers each. None if it is not needed.
        loc: m directions (…, d), any floating dtype. m divides n, and row r has direction r mod m.
        concentration: n concentrations κ or one for all rows, float32.
        seed: a random int64. A tensor on the device is read by the kernel, again in each replay of a CUDA graph.
        family: number of the family.
        dim: dimension used for the law of t.
    """
    width = loc.shape[-1]
    rows, directions = x.numel() // width, loc.numel() // width
    in_memory = isinstance(seed, Tensor)
    seed_tensor, seed_number = (seed, 0) if in_memory else (x, seed)
    types = x.dtype, x.device, in_memory
    kappa_stride = 0 if concentration.numel() == 1 else 1
    needs_scalars = scalars is not None
    if family == VON_MISES_FISHER.value and dim != 3:
        if scalars is None:  # the first kernel passes t to the second in it
            scalars = empty(x, (2, rows), torch.float32)
        cosines = _cosines_launch(rows, kappa_stride, dim, *types)
        cosines((scalars, concentration, seed_tensor), seed_number)
    points = _points_launch(rows, directions, kappa_stride, width, dim, family, needs_scalars, *types)
    points((x, x if scalars is None else scalars, loc, concentration, seed_tensor), seed_number)


@functools.lru_cache(1024)
def _cosines_launch(
    rows: int,
    kappa_stride: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    in_memory: bool,
) -> Launch:
    return Launch(
        _von_mises_fisher_cosines,
        (blocks(rows, _COSINE_ROWS), 1),
        (rows, kappa_stride, float(dim - 1)),
        (in_memory, runs_fast(device), _COSINE_ROWS),
        num_warps=1,
    )


@functools.lru_cache(1024)
def _points_launch(
    rows: int,
    directions: int,
    kappa_stride: int,
    width: int,
    dim: int,
    family: int,
    needs_scalars: bool,
    dtype: torch.dtype,
    device: torch.device,
    in_memory: bool,
) -> Launch:
    quarter, rows_per_program, quads, warps = tile(width)
    direction_kind = ONE if directions == 1 else ONE_EACH if directions == rows else SOME
    fast, shape = runs_fast(device), (width, quarter, rows_per_program, quads)
    return Launch(
        _draw,
        (blocks(rows, rows_per_program), 1),
        (rows, directions, kappa_stride, float(dim - 1)),
        (in_memory, needs_scalars, family, dim != width, dim == 3, fast, direction_kind.value, *shape),
        num_warps=warps,
    )


def runs_fast(device: torch.device) -> bool:
    """Whether to use the hardware's approximate functions, which Triton's interpreter does not have."""
    return device.type == "cuda"


def tile(width: int) -> tuple[int, int, int, int]:
    """Return QUARTER, ROWS, QUADS and the number of warps of a program, for rows of ``width`` coordinates."""
    quarter = blocks(width, 4)
    quads = next_power_of_two(quarter)
    rows = max(1, _QUADS // quads)
    few, many = (rows * quads // (32 * each) for each in (_QUADS_PER_THREAD, _MAX_QUADS_PER_THREAD))
    return quarter, rows, quads, max(1, min(few, 4), min(many, 16))
