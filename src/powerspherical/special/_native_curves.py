"""Curves by the C library, on the CPU."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from powerspherical._native import library
from powerspherical._torch.memory import empty, readable

#: The fewest values per thread, about 100 µs of work. With fewer, a thread would cost more time than it saves.
_PER_THREAD = 1 << 15

#: ``curve_call`` in c/call.h.
_CALL = struct.Struct("4P5q2d").pack

_SIZES = {torch.float32: 4, torch.float64: 8}


def takes(kappa: Tensor) -> bool:
    """Whether the library can compute curves of the tensor."""
    return kappa.is_cpu and kappa.dtype in _SIZES and library.usable()


def value_and_slope(
    kappa: Tensor, rows: Tensor, numbers: tuple[int, float, float], *, needs_slope: bool
) -> tuple[Tensor, Tensor]:
    """Return a curve, and its derivative in κ, at every element of ``kappa``.

    Args:
        kappa: any shape and strides; the library ``takes`` it.
        rows, numbers: see ``curves.table``.
        needs_slope: whether the second result is needed. If not, it is an empty tensor.
    """
    kappa, shape = readable(kappa), tuple(kappa.shape)
    value = empty(kappa, shape, kappa.dtype)
    slope = empty(kappa, shape if needs_slope else (0,), kappa.dtype)
    count, (first, gain, decay) = kappa.numel(), numbers
    call = _CALL(
        value.data_ptr(), slope.data_ptr() if needs_slope else 0, kappa.data_ptr(), rows.data_ptr(),
        count, first, rows.size(0) - 1, _SIZES[kappa.dtype], library.threads(count, _PER_THREAD), gain, decay,
    )  # fmt: skip
    library.function("curve")(call)
    return value, slope
