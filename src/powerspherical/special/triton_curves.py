"""Curves in Triton: for kernels of other folders, and as a kernel of its own."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.memory import empty, readable
from powerspherical._torch.triton import Launch, blocks
from powerspherical.special.tables import TOP

_TOP = tl.constexpr(2.0**TOP)
_LOG_2 = tl.constexpr(0.6931471805599453)
_BLOCK = 256


@triton.jit
def curve(kappa, rows_ptr, first, last, gain, decay, WIDTH: tl.constexpr):
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
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = index < count
    kappa = tl.load(kappa_ptr + index, mask=there, other=1.0)
    gain, decay = tl.cast(gain, kappa.dtype), tl.cast(decay, kappa.dtype)
    value, slope = curve(kappa, rows_ptr, first.to(tl.int32), last.to(tl.int32), gain, decay, WIDTH)
    tl.store(value_ptr + index, value, mask=there)
    if NEEDS_SLOPE:
        tl.store(slope_ptr + index, slope, mask=there)


def value_and_slope(
    kappa: Tensor, rows: Tensor, numbers: tuple[int, float, float], *, needs_slope: bool
) -> tuple[Tensor, Tensor]:
    """Return a curve, and its derivative in κ. The arguments are those of ``_native_curves.value_and_slope``."""
    kappa, shape = readable(kappa), tuple(kappa.shape)
    value = empty(kappa, shape, kappa.dtype)
    slope = empty(kappa, shape if needs_slope else (0,), kappa.dtype)
    if count := kappa.numel():
        launch = _launch(count, *rows.shape, *numbers, needs_slope, kappa.dtype, kappa.device)
        launch((value, slope, kappa, rows))
    return value, slope


@functools.lru_cache(1024)
def _launch(
    count: int, cells: int, width: int, first: int, gain: float, decay: float, needs_slope: bool,
    dtype: torch.dtype, device: torch.device,
) -> Launch:  # fmt: skip
    """Return the launch of the kernel. The dtype and the device are only part of the cache's key."""
    numbers = count, first, cells - 1, gain, decay
    return Launch(_evaluate, (blocks(count, _BLOCK), 1), numbers, (needs_slope, width, _BLOCK), num_warps=4)
