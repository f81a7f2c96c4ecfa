"""Inverting an increasing function of the concentration."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope, with_derivatives

_STEPS = 60
_LOG_SMALLEST, _LOG_LARGEST = math.log(1e-30), math.log(1e30)

Function = Callable[[Tensor], Tensor]


def _slope(kappa: Tensor, target: Tensor, goal: Tensor, value: Function, height: Function) -> Tensor:
    return 1 / value_and_slope(value, kappa)[1]


@with_derivatives(_slope, None, from_output=True)
def increasing_inverse(target: Tensor, goal: Tensor, value: Function, height: Function) -> Tensor:
    """The κ ≥ 0 with value(κ) = target, for a ``value`` that increases from 0 at κ = 0; infinite where none is enough.

    Args:
        target: numbers ≥ 0, float64.
        goal: the ``height`` where ``value`` is the target, of its shape.
        value: the function; differentiated for the derivative of the result.
        height: an increasing function of ``value`` that is about linear in log κ both for small and for large κ.

    The two functions must not capture tensors, because ``torch.func`` could not see those.
    """
    low, high = torch.full_like(target, _LOG_SMALLEST), torch.full_like(target, _LOG_LARGEST)
    x = torch.zeros_like(target)
    for _ in range(_STEPS):
        now, slope = value_and_slope(lambda y: height(torch.exp(y)), x)
        error = now - goal
        low, high = torch.where(error > 0, low, x), torch.where(error > 0, x, high)
        step = x - error / slope
        x = torch.where((step > low) & (step < high), step, (low + high) / 2)
    kappa = torch.where(high >= _LOG_LARGEST, torch.inf, torch.exp(x))
    return torch.where(target > 0, kappa, torch.where(target == 0, 0.0, torch.nan))
