"""Inverses of increasing functions of the concentration."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope, with_derivatives
from powerspherical._torch.modes import can_look

_STEPS = 60
_LONGEST_STEP = 4.0  # in log κ; far beyond the solution a quadrature may underflow
_SMALL_STEP = 1e-8  # Newton's method squares the error, so after such a step only rounding errors are left
_LOG_SMALLEST, _LOG_LARGEST = math.log(1e-30), math.log(1e30)

Function = Callable[[Tensor], Tensor]


def _slope(kappa: Tensor, target: Tensor, goal: Tensor, value: Function, height: Function) -> Tensor:
    return 1 / value_and_slope(value, kappa)[1]


@with_derivatives(_slope, None, from_output=True)
def increasing_inverse(target: Tensor, goal: Tensor, value: Function, height: Function) -> Tensor:
    """Return the κ ≥ 0 with value(κ) = target, or infinity if no κ reaches the target. Differentiable in ``target``.

    Args:
        target: numbers ≥ 0, float64.
        goal: height(κ) at the solution, of the same shape.
        value: an increasing function of κ with value(0) = 0.
        height: an increasing function of value(κ) that is nearly linear in log κ for small and for large κ.

    ``value`` and ``height`` must not capture tensors that ``torch.func`` transforms.
    """
    goal = torch.where(target > 0, goal, 0.0)  # so that the search also ends if a target is 0 or NaN
    low, high = torch.full_like(target, _LOG_SMALLEST), torch.full_like(target, _LOG_LARGEST)
    x = torch.zeros_like(target)
    for _ in range(_STEPS):
        reached, slope = value_and_slope(lambda y: height(torch.exp(y)), x)
        error = reached - goal
        low, high = torch.where(error > 0, low, x), torch.where(error > 0, x, high)
        newton = x - (error / slope).clamp(-_LONGEST_STEP, _LONGEST_STEP)
        # The comparisons include equality: at the solution the step is zero and x is an end of the bracket.
        x = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if can_look() and bool(((error / slope).abs() < _SMALL_STEP).all()):
            break
    kappa = torch.where(x > _LOG_LARGEST - 1, torch.inf, torch.exp(x))
    return torch.where(target > 0, kappa, torch.where(target == 0, 0.0, torch.nan))
