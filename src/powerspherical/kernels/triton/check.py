"""Checks of arguments with Triton: one kernel for the norms of vectors and for numbers, and one synchronisation."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import threading

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.registry import EXACT, HALVES, register
from powerspherical.kernels.triton.vectors import LARGEST_DIM, program_rows

_ELEMENTS = 4096  # coordinates per program, and numbers per program


#: For each thread and device a flag, which the kernel sets. A thread reads it before it checks again.
_FLAGS = threading.local()


@triton.jit(do_not_specialize=["rows", "count", "least", "most", "largest"])
def _check(
    flag_ptr,
    vectors_ptr,
    numbers_ptr,
    rows: tl.int64,
    count: tl.int64,
    least: tl.float64,
    most: tl.float64,
    largest: tl.float64,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """Set the flag unless ROWS squared norms lie in [least, most] and NUMBERS numbers in [0, largest]. NaN does not."""
    row, there = program_rows(rows, ROWS)
    column = tl.arange(0, triton.next_power_of_2(DIM))[None, :]
    mask = there[:, None] & (column < DIM)
    vector = tl.load(vectors_ptr + row[:, None] * DIM + column, mask=mask, other=0.0)
    if vectors_ptr.dtype.element_ty != tl.float64:
        vector = vector.to(tl.float32)
    square = tl.sum(vector * vector, 1)
    unit = (square >= least) & (square <= most)
    wrong = tl.max((there & (unit == 0)).to(tl.int32), 0)
    place, there = program_rows(count, NUMBERS)
    number = tl.load(numbers_ptr + place, mask=there, other=0.0)
    proper = (number >= 0.0) & (number <= largest)
    wrong |= tl.max((proper == 0).to(tl.int32), 0)
    if wrong > 0:
        tl.store(flag_ptr, 1)


def check(vectors: Tensor, numbers: Tensor | None, tolerance: float, largest: float) -> bool:
    """Whether vectors and numbers are as they should be, see ``native.check``."""
    dim, count = vectors.shape[-1], 0 if numbers is None else numbers.numel()
    rows, columns = vectors.numel() // dim, triton.next_power_of_2(dim)
    block = max(1, _ELEMENTS // columns)
    flags, device = vars(_FLAGS), vectors.device
    if device not in flags:
        flags[device] = torch.zeros(1, dtype=torch.int32, device=device)
    flag = flags[device]
    launch(
        _check,
        (max(blocks(rows, block), blocks(count, _ELEMENTS)), 1),
        (flag, vectors, numbers),
        (rows, count, (1 - tolerance) ** 2, (1 + tolerance) ** 2, largest),
        (dim, block, _ELEMENTS),
        4 if columns <= _ELEMENTS else 16,
    )
    passes = not flag.item()
    if not passes:
        flag.zero_()
    return passes


register("check", "triton", check, dtypes=(*EXACT, *HALVES), largest_dim=LARGEST_DIM)
