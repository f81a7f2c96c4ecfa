"""Draws with Triton: one kernel draws the noise, the cosine and the point, without a round trip to memory.

A program holds a few rows with all their coordinates in registers. It writes x once and, if gradients are needed, three
scalars per row. The steps are those of ``sampling.composition`` and of each family's ``draw_cosine``, in float32.

With m directions, row r has direction r mod m. So m may be 1, the number of rows, or the size of a batch below a
sample shape.
"""

# mypy: ignore-errors

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.layout import DrawLayout
from powerspherical.kernels.registry import DrawOptions, Tensors
from powerspherical.kernels.triton import random, vectors
from powerspherical.kernels.triton.elementary import hypot, log1p
from powerspherical.kernels.triton.formulas import boosted, power_spherical_ends_3, von_mises_fisher_ends_3

#: Up to this dimension we project twice onto the tangent space, see ``composition.tangent_gaussian``.
_PROJECT_TWICE_DIM = tl.constexpr(8)


@triton.jit
def wood_ends(kappa, seed, row, degrees):
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
        half, usable = random.gamma_candidate(row * 0.0 + beta, seed, attempt, row, random.LENGTH)
        chi_squared = 2.0 * half
        i, j, k, _ = random.bits(seed, (row * 0 + attempt).to(tl.int32), row, random.PROPOSAL)
        normal, _ = random.normal_pair(i, j)
        near, far = uniform_ends(chi_squared, normal)
        scaled = b * near
        denominator = far + scaled
        ratio = 0.5 * (far - near) * x0 * (1.0 + b) / denominator
        log_acceptance = degrees * (log1p(-ratio) + ratio)
        # The comparison is written so that NaN is accepted. Otherwise the loop would not end.
        rejected = log_acceptance < tl.log(random.uniform(k))
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
def point(
    loc, kappa, seed, row, column, masks, FAMILY: tl.constexpr, LAW_DIM: tl.constexpr, DIM: tl.constexpr
):
    """Draw one point for each row, and return it, 1-t, 1+t, and the noise.

    The law of t is that of dimension LAW_DIM. The noise is that of ``Family.draw_cosine``.
    """
    DEGREES: tl.constexpr = LAW_DIM - 1.0
    v0, v1, v2, v3 = random.normals(seed, column, row[:, None], random.NORMALS)
    v0, v1 = tl.where(masks[0], v0, 0.0), tl.where(masks[1], v1, 0.0)
    if DIM == 2:
        # The tangent space is spanned by (-μ₂, μ₁), so no projection is needed. The length must not be 0.
        v0 = tl.where(masks[0] & (v0 == 0.0), 1e-9, v0)
        squared_length, normal = tl.sum(v0 * v0, 1), tl.sum(v1, 1)
        v = (-loc[1] * v0, loc[0] * v0, 0.0 * v2, 0.0 * v3)
    else:
        v = (v0, v1, tl.where(masks[2], v2, 0.0), tl.where(masks[3], v3, 0.0))
        # The part of v along μ is a normal variable, independent of the tangential part.
        normal = vectors.dot(v, loc)
        v = vectors.added(v, -normal[:, None], loc)
        if DIM <= _PROJECT_TWICE_DIM:
            v = vectors.added(v, -vectors.dot(v, loc)[:, None], loc)
        squared_length = vectors.dot(v, v)

    noise = squared_length
    if FAMILY == "von_mises_fisher" and LAW_DIM != 3:
        minus, plus = wood_ends(kappa, seed, row, DEGREES)
    else:
        chi_squared = squared_length
        if LAW_DIM != DIM:
            chi_squared = 2.0 * random.gamma(row * 0.0 + 0.5 * DEGREES, seed, row, random.LENGTH)
        if FAMILY == "spherical_cauchy":
            minus, plus = uniform_ends(chi_squared, normal)
            minus, plus = boosted(minus, plus, 1.0 + kappa)
        elif FAMILY == "von_mises_fisher":
            minus, plus = von_mises_fisher_ends_3(chi_squared, kappa)
        elif LAW_DIM == 3:
            minus, plus = power_spherical_ends_3(chi_squared, kappa)
        else:
            noise = random.gamma(kappa + 0.5 * DEGREES, seed, row, random.GAMMA)
            total = noise + 0.5 * chi_squared
            minus, plus = chi_squared / total, 2.0 * (noise / total)
    stretch = tl.sqrt(minus / squared_length * plus)
    x = vectors.added(vectors.scaled(0.5 * (plus - minus)[:, None], loc), stretch[:, None], v)
    return x, minus, plus, noise


@triton.jit(do_not_specialize=["seed", "rows", "directions", "kappa_stride"])
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
    SEED_IN_MEMORY: tl.constexpr,
    NEEDS_SCALARS: tl.constexpr,
    DIRECTIONS: tl.constexpr,
    FAMILY: tl.constexpr,
    LAW_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Draw ROWS rows. DIRECTIONS is that of ``vectors.kind``."""
    row, row_mask = vectors.program_rows(rows, ROWS)
    if SEED_IN_MEMORY:
        seed = tl.load(seed_ptr)
    there = row_mask[:, None]
    column, masks = vectors.quarters(DIM)
    if DIRECTIONS == "one":
        loc = vectors.load(loc_ptr + column, masks, True, DIM)
    else:
        direction = vectors.tile_row(row, 1, directions, DIRECTIONS)
        loc = vectors.load(loc_ptr + direction[:, None] * DIM + column, masks, there, DIM)
    if loc_ptr.dtype.element_ty != tl.float32:
        loc = vectors.scaled(vectors.inverse_norm(vectors.dot(loc, loc))[:, None], loc)

    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=row_mask, other=1.0)
    x, minus, plus, noise = point(loc, kappa, seed, row, column, masks, FAMILY, LAW_DIM, DIM)
    if NEEDS_SCALARS:
        tl.store(scalars_ptr + row, minus, mask=row_mask)
        tl.store(scalars_ptr + rows + row, plus, mask=row_mask)
        if FAMILY == "power_spherical" or LAW_DIM == 3:  # other draws have no noise
            tl.store(scalars_ptr + 2 * rows + row, noise, mask=row_mask)
    vectors.store(x_ptr + row[:, None] * DIM + column, x, masks, there, DIM)


def draw(tensors: Tensors, options: DrawOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return points x, and (x, scalars) if a gradient is needed, see ``native.draw``.

    The noise of Power Spherical draws is the Gamma variable that dt/dκ needs. With ``dim`` = 3 the noise is the squared
    length of the tangent vector. Other draws leave it uninitialised.
    """
    (loc, kappa), (family, dim, shape, generator, _) = tensors, options
    layout = DrawLayout.of(shape, loc.shape, kappa.shape)
    rows, width, directions, kappa_stride = layout.sizes
    x = torch.empty(layout.points, dtype=loc.dtype, device=loc.device)
    scalars = torch.empty((3, *shape), dtype=kappa.dtype, device=loc.device) if any(needed) else None
    memory, seed = random.random_seed(loc.device, generator)
    rows_per_program, warps = vectors.program(width, family, 256, 8, 8)
    constants = memory is not None, scalars is not None, vectors.kind(directions, rows), family, dim, width
    launch(
        _draw,
        (blocks(rows, rows_per_program), 1),
        (x, scalars, *layout.expanded(loc, kappa), memory),
        (seed, rows, directions, kappa_stride),
        (*constants, rows_per_program),
        warps,
    )
    return x, () if scalars is None else (x, scalars)
