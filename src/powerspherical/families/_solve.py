"""Inverting an increasing function of the concentration."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope, with_derivatives
from powerspherical._torch.modes import can_look

_STEPS = 60
_LONGEST_STEP = 4.0  # in log κ: far beyond the solution a quadrature may have nothing left to integrate
_SMALL_STEP = 1e-8  # Newton's method squares the error: after a step this small only rounding is left
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
    goal = torch.where(target > 0, goal, 0.0)  # so that the search ends where the target is 0 or NaN, too
    low, high = torch.full_like(target, _LOG_SMALLEST), torch.full_like(target, _LOG_LARGEST)
    x = torch.zeros_like(target)
    for _ in range(_STEPS):
        now, slope = value_and_slope(lambda y: height(torch.exp(y)), x)
        error = now - goal
        low, high = torch.where(error > 0, low, x), torch.where(error > 0, x, high)
        there = x - (error / slope).clamp(-_LONGEST_STEP, _LONGEST_STEP)
        # At the solution the step is zero and ends where the bracket does.
        x = torch.where((there >= low) & (there <= high), there, (low + high) / 2)
        if can_look() and bool(((error / slope).abs() < _SMALL_STEP).all()):
            break
    kappa = torch.where(x > _LOG_LARGEST - 1, torch.inf, torch.exp(x))
    return torch.where(target > 0, kappa, torch.where(target == 0, 0.0, torch.nan))
