"""Draws with Triton: one kernel draws the noise, the cosine and the point, without a round trip to memory.

A program holds a few rows with all their coordinates in registers. It writes x once and, if gradients are needed, three
scalars per row. The steps are those of ``sampling.composition`` and of each family's ``draw_cosine``, in float32.

With m directions, row r has direction r mod m. So m may be 1, the number of rows, or the size of a batch below a
sample shape.

A call of Philox gives four numbers, one for each quarter of a row. Rows are therefore tuples of four tensors (rows,
quarter), which saves putting the quarters together.
"""

# mypy: ignore-errors

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch, next_power_of_two
from powerspherical.kernels.layout import Tile
from powerspherical.kernels.registry import DrawOptions, Tensors
from powerspherical.kernels.triton.elementary import hypot, log1p
from powerspherical.kernels.triton.formulas import boosted, power_spherical_ends_3, von_mises_fisher_ends_3
from powerspherical.kernels.triton.random import (
    GAMMA,
    LENGTH,
    NORMALS,
    PROPOSAL,
    bits,
    gamma,
    gamma_candidate,
    normal_pair,
    normals,
    random_seed,
    runs_fast,
    uniform,
)

#: Up to this dimension we project twice onto the tangent space, see ``composition.tangent_gaussian``.
_PROJECT_TWICE_DIM = tl.constexpr(8)

#: Quads per thread in programs of more than four warps, see ``tile``.
_MAX_QUADS_PER_THREAD = 32

_NUMBERS = ["seed", "rows", "directions", "kappa_stride"]


@triton.jit
def wood_ends(kappa, seed, row, degrees, FAST: tl.constexpr):
    """1-t and 1+t of von Mises–Fisher draws by Wood's rejection, as in ``VonMisesFisherFamily.draw_cosine``.

    A candidate needs a χ² variable, which is drawn by rejection too. Both rejections share one loop: an attempt is
    accepted if both accept.
    """
    beta = 0.5 * degrees
    root = hypot(kappa, beta)
    b = beta / (kappa + root)
    x0 = kappa / (root + beta)
    minus, plus = kappa, kappa  # they stay NaN if κ is NaN
    pending = (kappa == kappa).to(tl.int32)
    attempt = 0
    while tl.max(pending, 0) > 0:
        half, usable = gamma_candidate(row * 0.0 + beta, seed, attempt, row, LENGTH, FAST)
        chi_squared = 2.0 * half
        i, j, k, _ = bits(seed, (row * 0 + attempt).to(tl.int32), row, PROPOSAL)
        normal, _ = normal_pair(i, j, FAST)
        near, far = uniform_ends(chi_squared, normal)
        scaled = b * near
        denominator = far + scaled
        ratio = 0.5 * (far - near) * x0 * (1.0 + b) / denominator
        log_acceptance = degrees * (log1p(-ratio) + ratio)
        # The comparison is written so that NaN is accepted. Otherwise the loop would not end.
        rejected = log_acceptance < tl.log(uniform(k))
        accepted = usable & (rejected == 0) & (pending > 0)
        minus = tl.where(accepted, 2.0 * scaled / denominator, minus)
        plus = tl.where(accepted, 2.0 * far / denominator, plus)
        pending = tl.where(accepted, 0, pending)
        attempt += 1
    return minus, plus


@triton.jit
def uniform_ends(chi_squared, normal):
    """1-t and 1+t of a uniform point, times a common factor. The point is (normal, v) with χ² = ‖v‖²."""
    far = tl.sqrt(normal * normal + chi_squared) + tl.abs(normal)
    far = far * far
    return tl.where(normal > 0, chi_squared, far), tl.where(normal > 0, far, chi_squared)


@triton.jit
def quarters(DIM: tl.constexpr, QUARTER: tl.constexpr, QUADS: tl.constexpr):
    """The columns of the first quarter of a row, and masks of the columns of all four."""
    column = tl.arange(0, QUADS)[None, :]
    inside = column < QUARTER
    inside1, inside2 = inside & (column + QUARTER < DIM), inside & (column + 2 * QUARTER < DIM)
    return column, (inside, inside1, inside2, inside & (column + 3 * QUARTER < DIM))


@triton.jit
def load_row(source, masks, there, QUARTER: tl.constexpr):
    """Load the rows that are ``there``, in float32. ``source`` points to the first quarter."""
    v0 = tl.load(source, mask=masks[0] & there, other=0.0).to(tl.float32)
    v1 = tl.load(source + QUARTER, mask=masks[1] & there, other=0.0).to(tl.float32)
    v2 = tl.load(source + 2 * QUARTER, mask=masks[2] & there, other=0.0).to(tl.float32)
    v3 = tl.load(source + 3 * QUARTER, mask=masks[3] & there, other=0.0).to(tl.float32)
    return v0, v1, v2, v3


@triton.jit
def store_row(target, v, masks, there, QUARTER: tl.constexpr):
    """Store the rows that are ``there``, in the dtype of ``target``, which points to the first quarter."""
    dtype = target.dtype.element_ty
    tl.store(target, v[0].to(dtype), mask=masks[0] & there)
    tl.store(target + QUARTER, v[1].to(dtype), mask=masks[1] & there)
    tl.store(target + 2 * QUARTER, v[2].to(dtype), mask=masks[2] & there)
    tl.store(target + 3 * QUARTER, v[3].to(dtype), mask=masks[3] & there)


@triton.jit
def dot(a, b):
    """Inner products of rows."""
    return tl.sum(a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3], 1)


@triton.jit
def scaled_row(s, a):
    """Rows s·a. The factor has shape (rows, 1)."""
    return s * a[0], s * a[1], s * a[2], s * a[3]


@triton.jit
def added_row(a, s, b):
    """Rows a + s·b. Compilers choose where to fuse operations, so without ``fma`` results would depend on options."""
    s, _ = tl.broadcast(s, b[0])
    return tl.fma(s, b[0], a[0]), tl.fma(s, b[1], a[1]), tl.fma(s, b[2], a[2]), tl.fma(s, b[3], a[3])


@triton.jit
def point(
    loc,
    kappa,
    seed,
    row,
    column,
    masks,
    degrees,
    FAMILY: tl.constexpr,
    OTHER_DIM: tl.constexpr,
    TWO_SPHERE: tl.constexpr,
    FAST: tl.constexpr,
    DIM: tl.constexpr,
):
    """Draw one point for each row, and return it, 1-t, 1+t, and the noise.

    The law of t is that of dimension ``degrees`` + 1. TWO_SPHERE says whether this is 3, and OTHER_DIM whether it
    differs from DIM. The noise is that of ``Family.draw_cosine``.
    """
    v0, v1, v2, v3 = normals(seed, column, row[:, None], NORMALS, FAST)
    v0, v1 = tl.where(masks[0], v0, 0.0), tl.where(masks[1], v1, 0.0)
    if DIM == 2:
        # The tangent space is spanned by (-μ₂, μ₁), so no projection is needed. The length must not be 0.
        v0 = tl.where(masks[0] & (v0 == 0.0), 1e-9, v0)
        squared_length, normal = tl.sum(v0 * v0, 1), tl.sum(v1, 1)
        v = (-loc[1] * v0, loc[0] * v0, 0.0 * v2, 0.0 * v3)
    else:
        v = (v0, v1, tl.where(masks[2], v2, 0.0), tl.where(masks[3], v3, 0.0))
        # The part of v along μ is a normal variable, independent of the tangential part.
        normal = dot(v, loc)
        v = added_row(v, -normal[:, None], loc)
        if DIM <= _PROJECT_TWICE_DIM:
            v = added_row(v, -dot(v, loc)[:, None], loc)
        squared_length = dot(v, v)

    noise = squared_length
    if FAMILY == "von_mises_fisher" and not TWO_SPHERE:
        minus, plus = wood_ends(kappa, seed, row, degrees, FAST)
    else:
        chi_squared = squared_length
        if OTHER_DIM:
            chi_squared = 2.0 * gamma(row * 0.0 + 0.5 * degrees, seed, row, LENGTH, FAST)
        if FAMILY == "spherical_cauchy":
            minus, plus = uniform_ends(chi_squared, normal)
            minus, plus = boosted(minus, plus, 1.0 + kappa)
        elif TWO_SPHERE and FAMILY == "von_mises_fisher":
            minus, plus = von_mises_fisher_ends_3(chi_squared, kappa)
        elif TWO_SPHERE:
            minus, plus = power_spherical_ends_3(chi_squared, kappa)
        else:
            noise = gamma(kappa + 0.5 * degrees, seed, row, GAMMA, FAST)
            total = noise + 0.5 * chi_squared
            minus, plus = chi_squared / total, 2.0 * (noise / total)
    stretch = tl.sqrt(minus / squared_length * plus)
    x = added_row(scaled_row(0.5 * (plus - minus)[:, None], loc), stretch[:, None], v)
    return x, minus, plus, noise


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
    """Draw ROWS rows. DIRECTIONS is "one", "each" if every row has its own, or "some" that repeat."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)
    there = row_mask[:, None]
    column, masks = quarters(DIM, QUARTER, QUADS)
    if DIRECTIONS == "one":
        loc = load_row(loc_ptr + column, masks, True, QUARTER)
    else:
        direction = row if DIRECTIONS == "each" else row % directions
        loc = load_row(loc_ptr + direction[:, None] * DIM + column, masks, there, QUARTER)
    if loc_ptr.dtype.element_ty != tl.float32:  # half precision is normalised in float32
        loc = scaled_row(1.0 / tl.maximum(tl.sqrt(dot(loc, loc)), 1e-12)[:, None], loc)

    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=1.0)
    x, minus, plus, noise = point(
        loc, kappa, seed, row, column, masks, degrees, FAMILY, OTHER_DIM, TWO_SPHERE, FAST, DIM
    )
    if NEEDS_SCALARS:
        tl.store(scalars_ptr + row, minus, mask=row_mask)
        tl.store(scalars_ptr + rows + row, plus, mask=row_mask)
        if FAMILY == "power_spherical" or TWO_SPHERE:  # other draws have no noise
            tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
    store_row(x_ptr + row[:, None] * DIM + column, x, masks, there, QUARTER)


class Layout(NamedTuple):
    """The shapes to which directions and concentrations must be expanded for draws of a given shape, or None."""

    loc_shape: tuple[int, ...] | None
    kappa_shape: tuple[int, ...] | None

    def arranged(self, loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        """Return m directions, such that row r has direction r mod m, and one κ per row or one for all."""
        if self.loc_shape is not None:
            loc = loc.expand(self.loc_shape)
        if self.kappa_shape is not None:
            kappa = kappa.expand(self.kappa_shape)
        return loc, kappa


@functools.lru_cache(1024)
def layout(loc: torch.Size, kappa: torch.Size, shape: torch.Size) -> Layout:
    """Return the layout of parameters of these shapes."""
    tile = Tile.of(loc[:-1], shape)
    repeats = tile is not None and tile.cycles
    return Layout(None if repeats else (*shape, loc[-1]), None if kappa.numel() == 1 else tuple(shape))


def draw(tensors: Tensors, options: DrawOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return points x, and (x, scalars) if a gradient is needed, see ``native.draw``.

    The noise of Power Spherical draws is the Gamma variable that dt/dκ needs. With ``dim`` = 3 the noise is the squared
    length of the tangent vector. Other draws leave it uninitialised.
    """
    (loc, kappa), (family, dim, shape, generator, _) = tensors, options
    x = torch.empty((*shape, loc.shape[-1]), dtype=loc.dtype, device=loc.device)
    scalars = torch.empty((3, *shape), dtype=kappa.dtype, device=loc.device) if any(needed) else None
    arranged = layout(loc.shape, kappa.shape, shape).arranged(loc, kappa)
    write(x, scalars, *arranged, random_seed(loc.device, generator), family, dim)
    return x, () if scalars is None else (x, scalars)


def write(
    x: Tensor, scalars: Tensor | None, loc: Tensor, kappa: Tensor, seed: Tensor | int, family: str, dim: int
) -> None:
    """Write n draws to ``x``, and their scalars to ``scalars`` if they are needed.

    The n or fewer directions and κ are arranged as by ``Layout``. A ``seed`` that is a tensor is read by the kernel,
    again in each replay of a CUDA graph.
    """
    width = x.shape[-1]
    rows, directions, kappa_stride = x.numel() // width, loc.numel() // width, int(kappa.numel() > 1)
    in_memory = isinstance(seed, Tensor)
    quarter, rows_per_program, quads, warps = tile(width, family, 256, 8, 8)
    kind = "one" if directions == 1 else "each" if directions == rows else "some"
    options = in_memory, scalars is not None, family, dim != width, dim == 3, runs_fast(x.device), kind
    launch(
        _draw,
        (blocks(rows, rows_per_program), 1),
        (x, scalars, loc, kappa, seed if in_memory else None),
        (0 if in_memory else seed, rows, directions, kappa_stride, float(dim - 1)),
        (*options, width, quarter, rows_per_program, quads),
        warps,
    )


@functools.cache
def tile(
    width: int, family: str | None, quads_per_program: int, quads_per_thread: int, rows_per_thread: int
) -> tuple[int, int, int, int]:
    """Return QUARTER, ROWS, QUADS and the number of warps of a program, for rows of ``width`` coordinates.

    A quad is four coordinates. A program has ``quads_per_program``, unless a single row has more, and up to four warps
    of threads with at most ``quads_per_thread`` and ``rows_per_thread``. ``family`` is that of the draws, if there are
    any.
    """
    quarter = blocks(width, 4)
    quads = next_power_of_two(quarter)
    rows = max(1, quads_per_program // quads)
    if family == "von_mises_fisher":
        # Because of its rejection, a program takes as long as the row with the most attempts.
        rows = min(rows, 32)
    few, many = (rows * quads // (32 * each) for each in (quads_per_thread, _MAX_QUADS_PER_THREAD))
    return quarter, rows, quads, max(1, min(few, 4), min(many, 16), rows // (32 * rows_per_thread))
