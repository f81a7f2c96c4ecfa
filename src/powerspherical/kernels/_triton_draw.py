"""One fused Triton kernel that draws on the sphere: noise, cosine and point without a round trip to memory.

A program has a few rows and all their coordinates in registers; x is written once, and beside it the three scalars a
row that the backward pass needs, see ``_operator``. The steps are those of ``_geometry``, ``power_spherical`` and
``von_mises_fisher``, in float32. Row r has the direction number r modulo the number of directions: one for each row,
one for all, or a batch of them under a sample shape.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels._triton_random import (
    GAMMA,
    NORMALS,
    PROPOSALS,
    bits,
    gamma,
    normal_pair,
    uniform,
)

POWER_SPHERICAL = tl.constexpr(0)
VON_MISES_FISHER = tl.constexpr(1)

#: Up to this dimension the projection is repeated, see ``_geometry.tangent_gaussian``.
_PROJECT_TWICE = 8
_ELEMENTS = 1024  # coordinates that a program has, if a single row has no more


@triton.jit
def _von_mises_fisher_cosine(squared_length, kappa, degrees, seed, row, FAST: tl.constexpr):
    """1-t and 1+t by Wood's rejection as in ``von_mises_fisher._draw``; the loop stays on the device."""
    longer, shorter = tl.maximum(2.0 * kappa, degrees), tl.minimum(2.0 * kappa, degrees)
    root = longer * tl.sqrt(
        1.0 + (shorter / longer) * (shorter / longer)
    )  # the hypotenuse; a square could overflow
    b = degrees / (2.0 * kappa + root)
    x0 = 2.0 * kappa / (root + degrees)
    one_minus_t = kappa  # where κ is NaN, so is what is drawn
    one_plus_t = kappa
    pending = (kappa == kappa).to(tl.int32)
    length = squared_length
    attempt = 0
    while tl.max(pending, 0) > 0:
        if attempt > 0:  # the first candidate takes the length at hand, later ones need their own
            length = 2.0 * gamma(kappa * 0.0 + 0.5 * degrees, seed, row, PROPOSALS + 2 * attempt + 1, FAST)
        i, j, k, _ = bits(seed, (row * 0).to(tl.int32), row, PROPOSALS + 2 * attempt)
        normal, _ = normal_pair(i, j, FAST)
        far = tl.sqrt(normal * normal + length) + tl.abs(normal)
        far = far * far
        z = tl.where(normal > 0, length, far)
        rest = tl.where(normal > 0, far, length)
        scaled = b * z
        denominator = rest + scaled
        ratio = 0.5 * (rest - z) * x0 * (1.0 + b) / denominator
        log_acceptance = degrees * (_log1p(-ratio) + ratio)
        accepted = (log_acceptance >= tl.log(uniform(k))) & (pending > 0)
        one_minus_t = tl.where(accepted, 2.0 * scaled / denominator, one_minus_t)
        one_plus_t = tl.where(accepted, 2.0 * rest / denominator, one_plus_t)
        pending = tl.where(accepted, 0, pending)
        attempt += 1
    return one_minus_t, one_plus_t


@triton.jit
def _log1p(x):
    """log(1+x), to rounding also where x is small (Kahan)."""
    y = 1.0 + x
    safe = tl.where(y == 1.0, 2.0, y)
    return tl.where(y == 1.0, x, tl.log(safe) * (x / (safe - 1.0)))


@triton.jit
def _draw(
    x_ptr,
    rows_ptr,
    loc_ptr,
    kappa_ptr,
    seed_ptr,
    rows,
    directions,
    kappa_stride,
    dim,
    degrees,
    FAMILY: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
    PROJECTIONS: tl.constexpr,
    CIRCLE: tl.constexpr,
    FAST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    seed = tl.load(seed_ptr)
    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=there, other=1.0)
    column = tl.arange(0, 4 * QUADS)[None, :]
    inside = column < dim
    loc = tl.load(
        loc_ptr + (row % directions)[:, None] * dim + column, mask=inside & there[:, None], other=0.0
    ).to(tl.float32)

    quad = tl.arange(0, QUADS)[None, :]
    a, b, c, d = bits(seed, quad, row[:, None], NORMALS)
    first, second = normal_pair(a, b, FAST)
    third, fourth = normal_pair(c, d, FAST)
    noise = tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (ROWS, 4 * QUADS))
    noise = tl.where(inside, noise, 0.0)
    if CIRCLE:
        # The tangent is the line of (-μ₂, μ₁): no projection, and no length of exactly zero.
        length = tl.sum(tl.where(column == 0, noise, 0.0), 1)
        length = tl.where(length == 0.0, 1e-9, length)
        other = tl.sum(tl.where(column == 1, loc, 0.0), 1)
        one = tl.sum(tl.where(column == 0, loc, 0.0), 1)
        across = tl.where(column == 0, -other[:, None], tl.where(column == 1, one[:, None], 0.0))
        noise = across * length[:, None]
        squared_length = length * length
    else:
        for _ in tl.static_range(PROJECTIONS):
            noise = noise - tl.sum(noise * loc, 1)[:, None] * loc
        squared_length = tl.sum(noise * noise, 1)

    if FAMILY == POWER_SPHERICAL:
        larger = gamma(kappa + 0.5 * degrees, seed, row, GAMMA, FAST)
        total = larger + 0.5 * squared_length
        one_minus_t = squared_length / total
        one_plus_t = 2.0 * (larger / total)
    else:
        one_minus_t, one_plus_t = _von_mises_fisher_cosine(squared_length, kappa, degrees, seed, row, FAST)

    t = 0.5 * (one_plus_t - one_minus_t)
    stretch = tl.sqrt(one_minus_t * one_plus_t / squared_length)
    x = t[:, None] * loc + stretch[:, None] * noise
    tl.store(x_ptr + row[:, None] * dim + column, x.to(x_ptr.dtype.element_ty), mask=inside & there[:, None])
    tl.store(rows_ptr + row, one_minus_t, mask=there)
    tl.store(rows_ptr + rows + row, one_plus_t, mask=there)
    tl.store(rows_ptr + 2 * rows + row, squared_length, mask=there)


def draw(
    loc: Tensor, concentration: Tensor, seed: Tensor, family: int, dtype: torch.dtype, *, fast: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (n, d) in ``dtype``, and 1-t, 1+t and ‖v‖², each (n,).

    Args:
        loc: directions (m, d), contiguous, of any floating dtype; m divides n, and row r has direction r mod m.
        concentration: κ (n,), float32; may be an expanded view.
        seed: one random int64, on the device: a replayed CUDA graph reads it anew.
        family: ``POWER_SPHERICAL`` or ``VON_MISES_FISHER``.
        dtype: of x.
        fast: whether to take the hardware's approximate functions.
    """
    (directions, dim), rows = loc.shape, len(concentration)
    quads = triton.next_power_of_2(triton.cdiv(dim, 4))
    x = torch.empty(rows, dim, dtype=dtype, device=loc.device)
    scalars = torch.empty(3, rows, dtype=torch.float32, device=loc.device)
    if rows:
        rows_a_program = max(1, _ELEMENTS // (4 * quads))
        _draw[(triton.cdiv(rows, rows_a_program),)](
            x,
            scalars,
            loc,
            concentration,
            seed,
            rows,
            directions,
            concentration.stride(0),
            dim,
            float(dim - 1),
            FAMILY=family,
            ROWS=rows_a_program,
            QUADS=quads,
            PROJECTIONS=2 if dim <= _PROJECT_TWICE else 1,
            CIRCLE=dim == 2,
            FAST=fast,
            num_warps=_warps(rows_a_program * 4 * quads),
        )
    return x, *scalars.unbind()


def _warps(elements: int) -> int:
    return 4 if elements <= 4096 else 8 if elements <= 8192 else 16 if elements <= 16384 else 32
