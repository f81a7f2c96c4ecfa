"""Rows of vectors in the registers of a program, in float32, and how many of them a program has.

A call of Philox gives four numbers, one for each quarter of a row. So kernels that draw hold rows as tuples of four
tensors (rows, quarter), which saves putting the quarters together. Other kernels hold them as one tensor.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools

import triton
import triton.language as tl

from powerspherical.kernels.launch import blocks

#: The largest dimension. The registers of a program hold no longer rows.
LARGEST_DIM = 1 << 14

#: Quads per thread in programs of more than four warps, see ``program``.
_MAX_QUADS_PER_THREAD = 32

#: The most programs that add up the gradients of shared directions: eight for each multiprocessor of an H100.
_PROGRAMS = 1056


@triton.jit
def program_rows(rows, ROWS: tl.constexpr):
    """The rows of this program, and which of them exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return row, row < rows


@triton.jit
def quarters(DIM: tl.constexpr):
    """The columns of the first quarter of a row, and masks of the columns of all four."""
    QUARTER: tl.constexpr = triton.cdiv(DIM, 4)
    column = tl.arange(0, triton.next_power_of_2(QUARTER))[None, :]
    inside = column < QUARTER
    inside1, inside2 = inside & (column + QUARTER < DIM), inside & (column + 2 * QUARTER < DIM)
    return column, (inside, inside1, inside2, inside & (column + 3 * QUARTER < DIM))


@triton.jit
def load(source, masks, there, DIM: tl.constexpr):
    """Load the rows that are ``there``. ``source`` points to the first quarter."""
    QUARTER: tl.constexpr = triton.cdiv(DIM, 4)
    v0 = tl.load(source, mask=masks[0] & there, other=0.0).to(tl.float32)
    v1 = tl.load(source + QUARTER, mask=masks[1] & there, other=0.0).to(tl.float32)
    v2 = tl.load(source + 2 * QUARTER, mask=masks[2] & there, other=0.0).to(tl.float32)
    v3 = tl.load(source + 3 * QUARTER, mask=masks[3] & there, other=0.0).to(tl.float32)
    return v0, v1, v2, v3


@triton.jit
def store(target, v, masks, there, DIM: tl.constexpr):
    """Store the rows that are ``there``, in the dtype of ``target``, which points to the first quarter."""
    QUARTER: tl.constexpr = triton.cdiv(DIM, 4)
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
def scaled(s, a):
    """Rows s·a. The factor has shape (rows, 1)."""
    return s * a[0], s * a[1], s * a[2], s * a[3]


@triton.jit
def added(a, s, b):
    """Rows a + s·b. Compilers choose where to fuse operations, so without ``fma`` results would depend on options."""
    s, _ = tl.broadcast(s, b[0])
    return tl.fma(s, b[0], a[0]), tl.fma(s, b[1], a[1]), tl.fma(s, b[2], a[2]), tl.fma(s, b[3], a[3])


@triton.jit
def inverse_norm(square):
    """1/‖v‖ of half-precision unit vectors, which are normalised in float32."""
    return 1.0 / tl.maximum(tl.sqrt(square), 1e-12)


@triton.jit
def unit_rows(ptr, row, there, DIM: tl.constexpr):
    """Unit vectors as one tensor, and what they were multiplied by: 1, or for half precision 1/norm."""
    column = tl.arange(0, triton.next_power_of_2(DIM))[None, :]
    mask = there[:, None] & (column < DIM)
    vector = tl.load(ptr + row[:, None] * DIM + column, mask=mask, other=0.0).to(tl.float32)
    scale = there.to(tl.float32)
    if ptr.dtype.element_ty != tl.float32:
        scale = inverse_norm(tl.sum(vector * vector, 1))
        vector = vector * scale[:, None]
    return vector, scale


@triton.jit
def tile_row(row, inner, count, KIND: tl.constexpr):
    """The row of an argument that belongs to a row of the result, see ``layout.Tile``. KIND is that of ``kind``."""
    if KIND == "one":
        row = row * 0
    elif KIND == "some":  # 64-bit divisions take twenty times as long
        row = ((row.to(tl.int32) // tl.cast(inner, tl.int32)) % count.to(tl.int32)).to(tl.int64)
    elif KIND == "some of many":
        row = (row // inner) % count
    return row


def kind(count: int, rows: int) -> str:
    """Whether an argument has "one" row, "each" row its own, or "some" repeat, possibly "some of many"."""
    return "one" if count == 1 else "each" if count == rows else "some" if rows < 1 << 31 else "some of many"


# Kernels that sum the gradients of directions run on a grid. Along its first axis lie blocks of ROWS directions, along
# the second one the groups of rows that have them: of n programs each treats every n-th group, and writes one sum for
# each of its directions. If there is only one direction, a group is ROWS rows.


def grid(rows: int, count: int, block: int) -> tuple[int, tuple[int, int]]:
    """Return the number of directions of a group, and the grid, if ``rows`` have ``count`` directions in turn."""
    if count == 1:
        directions, groups = 1, blocks(rows, block)
    else:
        # Few directions are repeated, so that they fill a block. Programs with four groups write few partial sums.
        directions = count * max(1, min(block, rows) // max(count, 1))
        groups = blocks(rows, 4 * directions) if rows else 1
    programs = blocks(directions, block)
    return directions, (programs, max(1, min(groups, _PROGRAMS // max(programs, 1))))


@triton.jit
def store_sums(ptr, total, block, there, directions, SHARED: tl.constexpr, DIM: tl.constexpr):
    """Store the sums of a program on this grid."""
    column = tl.arange(0, triton.next_power_of_2(DIM))[None, :]
    inside = column < DIM
    dtype = ptr.dtype.element_ty
    part_ptr = ptr + tl.program_id(1).to(tl.int64) * directions * DIM
    if SHARED:
        tl.store(part_ptr + column, tl.sum(total, 0)[None, :].to(dtype), mask=inside)
    else:
        tl.store(part_ptr + block[:, None] * DIM + column, total.to(dtype), mask=there[:, None] & inside)


@functools.cache
def program(
    dim: int, family: str | None, quads_per_program: int, quads_per_thread: int, rows_per_thread: int
) -> tuple[int, int]:
    """Return ROWS and the number of warps of a program, for rows of ``dim`` coordinates in quarters.

    A quad is four coordinates. A program has ``quads_per_program``, unless a single row has more, and up to four warps
    of threads with at most ``quads_per_thread`` and ``rows_per_thread``. ``family`` is that of the draws, if there are
    any.
    """
    quads = triton.next_power_of_2(blocks(dim, 4))
    rows = max(1, quads_per_program // quads)
    if family == "von_mises_fisher":
        # Because of its rejection, a program takes as long as the row with the most attempts.
        rows = min(rows, 32)
    few, many = (rows * quads // (32 * each) for each in (quads_per_thread, _MAX_QUADS_PER_THREAD))
    return rows, max(1, min(few, 4), min(many, 16), rows // (32 * rows_per_thread))
