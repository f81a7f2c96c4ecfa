"""``_parameters`` with Triton: one kernel for μ and κ, one for the gradient in the head's outputs, in float32."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.memory import empty, readable
from powerspherical._torch.triton import Launch, blocks, next_power_of_two
from powerspherical.nn._parameters import SHORT
from powerspherical.special.triton_elementary import exp, log1p

SHORT_VECTOR = tl.constexpr(SHORT)

#: Coordinates per program, unless a single row has more.
_BLOCK = 2048


@triton.jit
def softplus_and_slope(x):
    """log(1 + e^x) and its derivative. NaN stays NaN."""
    decay = exp(-tl.abs(x))
    return tl.where(x > 0, x, 0.0) + log1p(decay), tl.where(x > 0, 1.0, decay) / (1.0 + decay)


@triton.jit
def concentration(raw, minimum, maximum, span, BOUNDED: tl.constexpr):
    """κ and dκ/dr, as in ``_parameters.bounded``, where ``span`` = maximum - minimum."""
    softplus, slope = softplus_and_slope(raw)
    if BOUNDED:
        shrink = 1.0 / (1.0 + softplus / span)
        kappa = minimum + softplus * shrink
        kappa = tl.where(kappa > maximum, maximum, kappa)  # guards against rounding
        slope = slope * shrink * shrink
    else:
        kappa = minimum + softplus
    return kappa, slope


@triton.jit(do_not_specialize=["rows"])
def _values(
    loc_ptr,
    kappa_ptr,
    outputs_ptr,
    rows: tl.int64,
    minimum: tl.float32,
    maximum: tl.float32,
    span: tl.float32,
    BOUNDED: tl.constexpr,
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
    short = longest <= SHORT_VECTOR
    v = tl.where(short[:, None] & (column == 0), v + 1.0, v)
    # Scaling by a constant changes the direction by rounding only, and avoids overflow of the squares.
    v = v / tl.where(short, 1.0, longest)[:, None]
    loc = v / tl.sqrt(tl.sum(v * v, 1))[:, None]
    tl.store(loc_ptr + row[:, None] * DIM + column, loc, mask=mask)
    if ENTRIES > DIM:
        raw = tl.load(outputs_ptr + row * ENTRIES + DIM, mask=row_mask, other=0.0).to(tl.float32)
        kappa, _ = concentration(raw, minimum, maximum, span, BOUNDED)
        tl.store(kappa_ptr + row, kappa, mask=row_mask)


@triton.jit(do_not_specialize=["rows"])
def _gradient(
    gradient_ptr,
    outputs_ptr,
    loc_ptr,
    grad_loc_ptr,
    grad_kappa_ptr,
    rows: tl.int64,
    span: tl.float32,
    BOUNDED: tl.constexpr,
    HAS_LOC: tl.constexpr,
    HAS_KAPPA: tl.constexpr,
    DIM: tl.constexpr,
    ENTRIES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the gradient in ROWS rows of outputs, as in ``_parameters.gradient``."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    column = tl.arange(0, COLUMNS)[None, :]
    mask = row_mask[:, None] & (column < DIM)
    place = row[:, None] * ENTRIES + column
    if HAS_LOC:
        v = tl.load(outputs_ptr + place, mask=mask, other=0.0).to(tl.float32)
        # Ones in place of rows that do not exist keep their length from being 0.
        loc = tl.load(loc_ptr + row[:, None] * DIM + column, mask=mask, other=1.0)
        grad = tl.load(grad_loc_ptr + row[:, None] * DIM + column, mask=mask, other=0.0)
        length = tl.sum(v * loc, 1)
        first = tl.sum(tl.where(column == 0, loc, 0.0), 1)
        length = tl.where(length > SHORT_VECTOR, length, length + first)
        gradient = (grad - loc * tl.sum(grad * loc, 1)[:, None]) / length[:, None]
    else:
        gradient = tl.zeros((ROWS, COLUMNS), tl.float32)
    tl.store(gradient_ptr + place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    if ENTRIES > DIM:
        slope = tl.zeros((ROWS,), tl.float32)
        if HAS_KAPPA:
            raw = tl.load(outputs_ptr + row * ENTRIES + DIM, mask=row_mask, other=0.0).to(tl.float32)
            _, slope = concentration(raw, 0.0, span, span, BOUNDED)
            slope = slope * tl.load(grad_kappa_ptr + row, mask=row_mask, other=0.0)
        tl.store(gradient_ptr + row * ENTRIES + DIM, slope.to(gradient_ptr.dtype.element_ty), mask=row_mask)


def values(outputs: Tensor, dim: int, minimum: float, maximum: float) -> tuple[Tensor, Tensor | None]:
    """Return μ and κ, see ``_parameters.parameters``. The outputs are float32 or half precision."""
    outputs = readable(outputs)
    *batch, entries = outputs.shape
    loc = empty(outputs, (*batch, dim), torch.float32)
    kappa = empty(outputs, tuple(batch), torch.float32) if entries > dim else None
    launch = _values_launch(loc.numel() // dim, dim, entries, minimum, maximum, outputs.dtype, outputs.device)
    launch((loc, loc if kappa is None else kappa, outputs))
    return loc, kappa


def gradient(
    outputs: Tensor,
    loc: Tensor,
    grad_loc: Tensor | None,
    grad_kappa: Tensor | None,
    minimum: float,
    maximum: float,
) -> Tensor:
    """Return the gradient in the outputs, given μ and the gradients in μ and κ. None means zero."""
    outputs = readable(outputs)
    result = empty(outputs, tuple(outputs.shape), outputs.dtype)
    dim, entries = loc.shape[-1], outputs.shape[-1]
    grads = [loc if grad is None else readable(grad) for grad in (grad_loc, grad_kappa)]
    needs = grad_loc is not None, grad_kappa is not None
    rows = loc.numel() // dim
    launch = _gradient_launch(rows, dim, entries, maximum - minimum, *needs, outputs.dtype, outputs.device)
    launch((result, outputs, loc, *grads))
    return result


def _tile(dim: int) -> tuple[int, int]:
    """Return the number of rows and padded columns of a program."""
    columns = next_power_of_two(dim)
    return max(1, _BLOCK // columns), columns


@functools.lru_cache(1024)
def _values_launch(
    rows: int,
    dim: int,
    entries: int,
    minimum: float,
    maximum: float,
    dtype: torch.dtype,
    device: torch.device,
) -> Launch:
    tile = _tile(dim)
    numbers = rows, minimum, maximum, maximum - minimum
    constants = math.isfinite(maximum), dim, entries, *tile
    return Launch(_values, (blocks(rows, tile[0]), 1), numbers, constants, num_warps=4)


@functools.lru_cache(1024)
def _gradient_launch(
    rows: int,
    dim: int,
    entries: int,
    span: float,
    needs_loc: bool,
    needs_kappa: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Launch:
    tile = _tile(dim)
    constants = math.isfinite(span), needs_loc, needs_kappa, dim, entries, *tile
    return Launch(_gradient, (blocks(rows, tile[0]), 1), (rows, span), constants, num_warps=4)
