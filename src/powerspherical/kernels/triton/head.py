"""Parameters of a head with Triton: one kernel for μ and κ, one for the gradient in the head's outputs, in float32."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch, next_power_of_two
from powerspherical.kernels.layout import readable
from powerspherical.kernels.registry import Gradients, HeadOptions, Tensors, register
from powerspherical.kernels.triton.formulas import concentration

#: Coordinates per program, unless a single row has more.
_BLOCK = 2048


@triton.jit(do_not_specialize=["rows"])
def _values(
    loc_ptr,
    kappa_ptr,
    outputs_ptr,
    rows: tl.int64,
    minimum: tl.float32,
    maximum: tl.float32,
    rate: tl.float32,
    shortest: tl.float32,
    DIM: tl.constexpr,
    ENTRIES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write μ and κ of ROWS rows of ENTRIES outputs. ENTRIES is DIM if there is no r."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    column = tl.arange(0, COLUMNS)[None, :]
    mask = row_mask[:, None] & (column < DIM)
    v = tl.load(outputs_ptr + row[:, None] * ENTRIES + column, mask=mask, other=0.0).to(tl.float32)
    longest = tl.max(tl.abs(v), 1)
    short = longest <= shortest
    v = tl.where(short[:, None] & (column == 0), v + 1.0, v)
    # Scaling by a constant changes the direction by rounding only, and avoids overflow of the squares.
    v = v / tl.where(short, 1.0, longest)[:, None]
    loc = v / tl.sqrt(tl.sum(v * v, 1))[:, None]
    tl.store(loc_ptr + row[:, None] * DIM + column, loc, mask=mask)
    if ENTRIES > DIM:
        raw = tl.load(outputs_ptr + row * ENTRIES + DIM, mask=row_mask, other=0.0).to(tl.float32)
        kappa, _ = concentration(raw, minimum, maximum, rate)
        tl.store(kappa_ptr + row, kappa, mask=row_mask)


@triton.jit(do_not_specialize=["rows"])
def _gradient(
    gradient_ptr,
    outputs_ptr,
    loc_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    rows: tl.int64,
    rate: tl.float32,
    shortest: tl.float32,
    HAS_LOC: tl.constexpr,
    HAS_KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ENTRIES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradient in ROWS rows of outputs, given those in μ and κ."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    column = tl.arange(0, COLUMNS)[None, :]
    mask = row_mask[:, None] & (column < DIM)
    place = row[:, None] * ENTRIES + column
    dtype = gradient_ptr.dtype.element_ty
    if HAS_LOC:
        v = tl.load(outputs_ptr + place, mask=mask, other=0.0).to(tl.float32)
        # Ones in place of rows that do not exist keep their length from being 0.
        loc = tl.load(loc_ptr + row[:, None] * DIM + column, mask=mask, other=1.0)
        grad = tl.load(grad_loc_ptr + row[:, None] * DIM + column, mask=mask, other=0.0)
        length = tl.sum(v * loc, 1)
        first = tl.sum(tl.where(column == 0, loc, 0.0), 1)
        length = tl.where(length > shortest, length, length + first)
        gradient = (grad - loc * tl.sum(grad * loc, 1)[:, None]) / length[:, None]
    else:
        gradient = tl.zeros((ROWS, COLUMNS), tl.float32)
    tl.store(gradient_ptr + place, gradient.to(dtype), mask=mask)
    if ENTRIES > DIM:
        slope = tl.zeros((ROWS,), tl.float32)
        if HAS_KAPPA:
            raw = tl.load(outputs_ptr + row * ENTRIES + DIM, mask=row_mask, other=0.0).to(tl.float32)
            _, slope = concentration(raw, 0.0, float("inf"), rate)
            slope = slope * tl.load(grad_kappa_ptr + row, mask=row_mask, other=0.0)
        tl.store(gradient_ptr + row * ENTRIES + DIM, slope.to(dtype), mask=row_mask)


def _launch(
    kernel: object, tensors: Sequence[Tensor | None], rows: int, numbers: tuple, constants: tuple
) -> None:
    """Launch a kernel whose last constants are the size of a program. Those before are d and the number of entries."""
    columns = next_power_of_two(constants[-2])
    block = max(1, _BLOCK // columns)
    launch(kernel, (blocks(rows, block), 1), tensors, (rows, *numbers), (*constants, block, columns))


def head(tensors: Tensors, options: HeadOptions, needed: Sequence[bool]) -> tuple[Tensors, Tensors]:
    """Return (μ, κ) in float32 for the outputs (v, r) of a head, or (μ,) for v."""
    outputs, (dim, minimum, maximum, shortest) = readable(tensors[0]), options
    *batch, entries = outputs.shape
    loc = torch.empty((*batch, dim), dtype=torch.float32, device=outputs.device)
    kappa = loc.new_empty(batch) if entries > dim else None
    numbers = minimum, maximum, 1 / (maximum - minimum), shortest
    _launch(_values, (loc, kappa, outputs), outputs.numel() // entries, numbers, (dim, entries))
    return (loc,) if kappa is None else (loc, kappa), (loc,)


def head_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, saved: Tensors, options: HeadOptions
) -> Gradients:
    """Return the gradient in the outputs, given those in μ and κ. None means zero."""
    outputs, (dim, minimum, maximum, shortest) = readable(tensors[0]), options
    given = [None if grad is None else readable(grad) for grad in (*grads, None)[:2]]
    result, entries = torch.empty_like(outputs), outputs.shape[-1]
    numbers, constants = (
        (1 / (maximum - minimum), shortest),
        (*(grad is not None for grad in given), dim, entries),
    )
    _launch(
        _gradient,
        (result, outputs, readable(saved[0]), *given),
        outputs.numel() // entries,
        numbers,
        constants,
    )
    return (result,)


register(
    "head",
    "triton",
    head,
    head_gradients,
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    largest_dim=1 << 14,
)
