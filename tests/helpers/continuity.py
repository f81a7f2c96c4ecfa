"""Checks that a function does not jump where it switches from one formula to another."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

FLOAT, DOUBLE = torch.float32, torch.float64
TOLERANCE = {DOUBLE: 3e-14, FLOAT: 1e-6}
STEP = {DOUBLE: 1e-8, FLOAT: 1e-3}  # large enough to cross the branch point in spite of rounding
KAPPAS = torch.tensor([1e-3, 0.4, 3.0, 30.0, 500.0, 1e6], dtype=DOUBLE)


def assert_no_jump(
    function: Callable[[Tensor], Tensor],
    points: Tensor | list[float],
    dtype: torch.dtype,
    tolerance: float = 0.0,
) -> None:
    """Check that between x(1-h) and x(1+h) the function changes as its derivative predicts."""
    x = torch.as_tensor(points, dtype=dtype).clone().requires_grad_()
    value = function(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    below, above = (x * (1 - STEP[dtype])).detach(), (x * (1 + STEP[dtype])).detach()
    jump = (function(above) - function(below)).double() - slope.double() * (above - below).double()
    worst = (jump / value.double()).abs().max().item()
    assert worst <= max(tolerance, TOLERANCE[dtype]), f"{worst:.1e}"


def assert_continuous_in_dim(
    function: Callable[[Tensor, float], Tensor], dim: int, dtype: torch.dtype
) -> None:
    """Compare the function at d and at the float before d. Near a zero, errors are relative to about 1/d."""
    kappa = KAPPAS.to(dtype)
    here, before = function(kappa, dim).double(), function(kappa, math.nextafter(dim, 0)).double()
    worst = ((here - before) / here.abs().clamp(min=1e-2 / dim)).abs().max().item()
    assert worst <= TOLERANCE[dtype], f"{worst:.1e}"
