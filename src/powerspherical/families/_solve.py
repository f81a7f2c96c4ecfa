"""Inverting an increasing function of the concentration."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope, with_derivatives
from powerspherical._torch.modes import can_look

_STEPS = 60
_SETTLED = 1e-11  # a step of Newton's method this small leaves nothing but rounding
_LOG_SMALLEST, _LOG_LARGEST = math.log(1e-30), math.log(1e30)

Function = Callable[[Tensor], Tensor]


def _slope(kappa: Tensor, target: Tensor, value: Function, height: Function, goal: Function) -> Tensor:
    return 1 / value_and_slope(value, kappa)[1]


@with_derivatives(_slope, from_output=True)
def increasing_inverse(target: Tensor, value: Function, height: Function, goal: Function) -> Tensor:
    """The κ ≥ 0 with value(κ) = target, for a ``value`` that increases from 0 at κ = 0; infinite where none is enough.

    Args:
        target: numbers ≥ 0, float64.
        value: the function; differentiated for the derivative of the result.
        height: an increasing function of ``value`` that is about linear in log κ both for small and for large κ.
        goal: the height that belongs to a target.
    """
    wanted = goal(torch.where(target > 0, target, 1.0))
    low, high = torch.full_like(target, _LOG_SMALLEST), torch.full_like(target, _LOG_LARGEST)
    x = torch.zeros_like(target)
    for _ in range(_STEPS):
        now, slope = value_and_slope(lambda y: height(torch.exp(y)), x)
        error = now - wanted
        low, high = torch.where(error > 0, low, x), torch.where(error > 0, x, high)
        before, newton = x, x - error / slope
        x = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        if can_look() and not bool(((x - before).abs() > _SETTLED).any()):
            break
    kappa = torch.where(x > _LOG_LARGEST - 1e-6, torch.inf, torch.exp(x))
    return torch.where(target > 0, kappa, torch.where(target == 0, 0.0, torch.nan))
