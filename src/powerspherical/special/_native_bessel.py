"""The functions of ``bessel`` and their derivatives in the C library, on the CPU in float32."""

from __future__ import annotations

from torch import Tensor

from powerspherical.special._debye import kernel_table
from powerspherical.special._native_launch import value_and_slope
from powerspherical.special.bessel import kernel_numbers


def evaluate(form: str, kappa: Tensor, order: float, *, needs_slope: bool) -> tuple[Tensor, Tensor]:
    """Return a function of κ and its derivative. The arguments are those of ``_triton_bessel.evaluate``."""
    steps, numbers = kernel_numbers(order)
    table = kernel_table(kappa, order, numbers[0])
    return value_and_slope(form, kappa, table=table, steps=steps, numbers=numbers, needs_slope=needs_slope)
