"""KL(PS‖uniform) and its derivative or E T in the C library, on the CPU in float32."""

from __future__ import annotations

from torch import Tensor

from powerspherical.special._native_launch import value_and_slope
from powerspherical.special.gamma import stirling_excess_pairs


def relative_entropy(
    kappa: Tensor, beta: float, steps: int, b: float, terms: int, *, needs_slope: bool, mean: bool = False
) -> tuple[Tensor, Tensor]:
    """Return KL(PS‖uniform) and its derivative in κ. The arguments are those of ``_triton_gamma.relative_entropy``."""
    return value_and_slope(
        "power_entropy_and_mean" if mean else "power_entropy",
        kappa,
        table=stirling_excess_pairs(kappa, b, terms),
        steps=steps,
        terms=terms,
        numbers=(beta, b, 0.0, 0.0),
        needs_slope=needs_slope or mean,
    )
