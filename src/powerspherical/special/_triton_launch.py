"""Launching the kernels that compute a function of κ and its derivative at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.memory import empty, readable
from powerspherical._torch.triton import Launch, blocks

_BLOCK = 256


def value_and_slope(
    kernel: Any,
    kappa: Tensor,
    *,
    tables: Sequence[Tensor] = (),
    numbers: tuple[float, ...],
    constants: tuple[Any, ...],
    needs_slope: bool,
) -> tuple[Tensor, Tensor]:
    """Launch ``kernel`` on every element of ``kappa``; returns the value and its derivative.

    Args:
        kernel: takes pointers (value, slope, kappa, *tables), numbers (count, *numbers) and constants (*constants,
            NEEDS_SLOPE, BLOCK), in this order.
        kappa: float32, any shape and strides.
        tables: float32 tensors on the device of ``kappa``.
        numbers, constants: the kernel's own.
        needs_slope: if False, the derivative is an empty tensor.
    """
    kappa, shape = readable(kappa), tuple(kappa.shape)
    value = empty(kappa, shape, kappa.dtype)
    slope = empty(kappa, shape if needs_slope else (0,), kappa.dtype)
    if count := kappa.numel():
        launch = _launch(kernel, count, numbers, (*constants, needs_slope, _BLOCK), kappa.device)
        launch((value, slope, kappa, *tables))
    return value, slope


@functools.lru_cache(1024)
def _launch(
    kernel: Any, count: int, numbers: tuple[float, ...], constants: tuple[Any, ...], device: torch.device
) -> Launch:
    return Launch(kernel, (blocks(count, _BLOCK), 1), (count, *numbers), constants, num_warps=4)
