"""The functions of ``bessel`` and their derivatives in the C library, on the CPU in float32."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from powerspherical.special._debye import kernel_table
from powerspherical.special._native_launch import value_and_slope
from powerspherical.special.bessel import hankel_range, recurrence_steps


@functools.lru_cache(1024)
def _parameters(order: float) -> tuple[int, tuple[float, float, float, float]]:
    """Return the number of recurrence steps and the numbers (top, start, half, constant) of c/bessel_functions.h."""
    steps, top = recurrence_steps(order, torch.float32)
    start, constant = hankel_range(order, torch.float32)
    return steps, (top, start, order + 0.5, constant)


def evaluate(form: str, kappa: Tensor, order: float, *, needs_slope: bool) -> tuple[Tensor, Tensor]:
    """Return a function of κ and its derivative. The arguments are those of ``_triton_bessel.evaluate``."""
    steps, numbers = _parameters(order)
    table = kernel_table(kappa, order, numbers[0])
    return value_and_slope(form, kappa, table=table, steps=steps, numbers=numbers, needs_slope=needs_slope)
