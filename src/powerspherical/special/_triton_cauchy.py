"""KL(spherical Cauchy‖uniform) and its derivative as one Triton kernel, in float32. ``mobius`` has the formulas."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import triton
import triton.language as tl
from torch import Tensor

from powerspherical.special._triton_launch import value_and_slope
from powerspherical.special.mobius import log_rule
from powerspherical.special.triton_elementary import log1p


@triton.jit
def cauchy_relative_entropy(kappa, rule_ptr, scale, NODES: tl.constexpr):
    """(d-1)/2 E log(1 + s sinh²) and (d-1)/(1+κ) E s sinh cosh/(1 + s sinh²), with ``scale`` = d-1.

    On the circle, where NODES is 0, they are log(1+q) and κ/((κ+2)(1+κ)).
    """
    growth = 1.0 + kappa
    q = 0.25 * kappa * (kappa / growth)
    if NODES == 0:
        value, slope = log1p(q), kappa / (kappa + 2.0) / growth
    else:
        sinh = 0.5 * kappa * ((kappa + 2.0) / growth)
        cosh = sinh + 1.0 / growth
        # For large κ the square would overflow, and we use log(1 + s sinh²) = 2 log sinh + log(sinh⁻² + s).
        large = sinh > 1e15
        near, far = tl.where(large, 1.0, q), tl.where(large, sinh, 1.0)
        square, small = 4.0 * near * (1.0 + near), (1.0 / far) * (1.0 / far)
        logs, means = kappa * 0.0, kappa * 0.0
        for i in range(NODES):
            node_ptr = rule_ptr + (NODES - 1 - i)  # the smallest terms first
            s, weight = tl.load(node_ptr), tl.load(node_ptr + 2 * NODES)
            product = square * s
            logs += weight * tl.where(large, tl.log(small + s), log1p(product))
            means += weight * s / tl.where(large, small + s, 1.0 + product)
        value = 0.5 * scale * (logs + tl.where(large, 2.0 * tl.log(far), 0.0))
        slope = scale * (means * tl.where(large, cosh / far, sinh * cosh) / growth)
    return value, slope


@triton.jit(do_not_specialize=["count"])
def _relative_entropy(
    value_ptr,
    slope_ptr,
    kappa_ptr,
    rule_ptr,
    count: tl.int64,
    scale: tl.float32,
    NODES: tl.constexpr,
    NEEDS_SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = index < count
    kappa = tl.load(kappa_ptr + index, mask=there, other=1.0)
    value, slope = cauchy_relative_entropy(kappa, rule_ptr, scale, NODES)
    tl.store(value_ptr + index, value, mask=there)
    if NEEDS_SLOPE:
        tl.store(slope_ptr + index, slope, mask=there)


def cauchy_constants(like: Tensor, dim: int) -> tuple[Tensor, int, float]:
    """Return the rule, NODES and ``scale`` of ``cauchy_relative_entropy``, on the device of ``like``."""
    rule = log_rule(like, dim)
    return rule, 0 if dim == 2 else rule.shape[1], dim - 1.0


def relative_entropy(kappa: Tensor, dim: int, *, needs_slope: bool) -> tuple[Tensor, Tensor]:
    """Return KL(spherical Cauchy‖uniform) and its derivative in κ.

    Args:
        kappa: κ ≥ 0, any shape, float32.
        dim: d.
        needs_slope: if False, the derivative is an empty tensor.
    """
    rule, nodes, scale = cauchy_constants(kappa, dim)
    return value_and_slope(
        _relative_entropy,
        kappa,
        tables=[rule],
        numbers=(scale,),
        constants=(nodes,),
        needs_slope=needs_slope,
    )
