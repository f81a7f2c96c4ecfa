"""KL(spherical Cauchy‖uniform) and its derivative in the C library, on the CPU in float32."""

from __future__ import annotations

from torch import Tensor

from powerspherical.special._native_launch import value_and_slope
from powerspherical.special.mobius import log_rule


def relative_entropy(kappa: Tensor, dim: int, *, needs_slope: bool) -> tuple[Tensor, Tensor]:
    """Return KL(spherical Cauchy‖uniform) and its derivative in κ.

    The arguments are those of ``_triton_cauchy.relative_entropy``.
    """
    rule = log_rule(kappa, dim)
    return value_and_slope(
        "cauchy_entropy",
        kappa,
        table=rule,
        steps=0 if dim == 2 else rule.shape[1],
        numbers=(dim - 1.0, 0.0, 0.0, 0.0),
        needs_slope=needs_slope,
    )
