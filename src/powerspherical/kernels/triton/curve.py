"""Functions of κ as tables of polynomials (``special.tables``): inside other kernels, and as a kernel of their own."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.registry import Table, register_curve
from powerspherical.kernels.triton.vectors import program_rows

_TOP = tl.constexpr(2.0**64)  # where the tables end
_LOG_2 = tl.constexpr(0.6931471805599453)
_BLOCK = 256


@triton.jit
def table_value(kappa, rows_ptr, first, last, gain, decay, WIDTH: tl.constexpr):
    """Return a curve and its derivative at ``kappa``. The rows have WIDTH numbers; see ``curves.table``."""
    inside = tl.where(kappa > _TOP, _TOP, tl.where(kappa < 0.0, 0.0, kappa)).to(kappa.dtype)  # keeps NaN
    if kappa.dtype == tl.float64:
        cell = (inside.to(tl.int64, bitcast=True) >> 49).to(tl.int32) - first
    else:
        cell = (inside.to(tl.int32, bitcast=True) >> 20) - first
    row_ptr = rows_ptr + tl.minimum(tl.maximum(cell, 0), last) * WIDTH
    scale = tl.load(row_ptr + 1)
    x = inside * scale + tl.load(row_ptr)
    value = tl.load(row_ptr + (WIDTH - 1))
    slope = value * 0.0
    for i in tl.static_range(WIDTH - 2, 1, -1):
        slope = slope * x + value
        value = value * x + tl.load(row_ptr + i)
    slope = tl.where(kappa < 0.0, 0.0, slope * scale)
    octaves = tl.log2(tl.maximum(kappa, _TOP) / _TOP)
    grown = value + tl.where(gain == 0.0, 0.0, gain * _LOG_2 * octaves)
    grown = tl.where(decay == 0.0, grown, grown * tl.exp2(-decay * octaves))
    outside = kappa > _TOP
    value = tl.where(outside, grown, value)
    rise = tl.where(decay == 0.0, gain, -decay * value)  # κ times the slope
    slope = tl.where(outside, rise / tl.where(outside, kappa, 1.0), slope)
    return value.to(kappa.dtype), slope.to(kappa.dtype)


@triton.jit(do_not_specialize=["first", "last", "count"])
def _evaluate(
    value_ptr,
    slope_ptr,
    kappa_ptr,
    rows_ptr,
    count: tl.int64,
    first: tl.int64,
    last: tl.int64,
    gain: tl.float64,
    decay: tl.float64,
    NEEDS_SLOPE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index, there = program_rows(count, BLOCK)
    kappa = tl.load(kappa_ptr + index, mask=there, other=1.0)
    gain, decay = tl.cast(gain, kappa.dtype), tl.cast(decay, kappa.dtype)
    value, slope = table_value(kappa, rows_ptr, first.to(tl.int32), last.to(tl.int32), gain, decay, WIDTH)
    tl.store(value_ptr + index, value, mask=there)
    if NEEDS_SLOPE:
        tl.store(slope_ptr + index, slope, mask=there)


def curve(kappa: Tensor, table: Table, slope: Tensor | None = None) -> Tensor:
    """Return a function of κ, and write its derivative to ``slope``."""
    rows, (first, gain, decay) = table
    value, count = torch.empty_like(kappa, memory_format=torch.contiguous_format), kappa.numel()
    cells, width = rows.shape
    numbers, constants = (count, first, cells - 1, gain, decay), (slope is not None, width, _BLOCK)
    launch(_evaluate, (blocks(count, _BLOCK), 1), (value, slope, kappa, rows), numbers, constants)
    return value


register_curve("triton", curve)
