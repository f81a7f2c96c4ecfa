"""Small tools that the special functions share: polynomials, quadrature nodes, ``log1p(x) - x``, derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerspherical._torch.constants import tensor_constant
from powerspherical._torch.derivatives import with_derivatives


def horner(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """The polynomial ``c[0] + c[1] x + c[2] x² + …``, of degree one at least."""
    value = (x * coefficients[-1]).add_(coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        value = (value * x).add_(coefficient)
    return value


def legendre(count: int) -> tuple[list[float], list[float]]:
    """Return the nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


_LOG1PMX_NODES = {torch.float64: 11, torch.float32: 5}
_LOG1PMX_TERMS = {torch.float64: 15, torch.float32: 7}


@tensor_constant
def _log1pmx_rule(count: int) -> list[list[float]]:
    nodes, weights = legendre(count)
    return [nodes, [-node * weight for node, weight in zip(nodes, weights, strict=True)]]


def log1pmx_near_zero(x: Tensor) -> Tensor:
    """``log1p(x) - x`` for -0.4 < x < 1, without the cancellation near zero.

    Eagerly, -x² ∫₀¹ s/(1+xs) ds by Gauss–Legendre: a node axis, because at small batches the number of operations
    is what costs. Compiled, the series of 2 atanh(r), r = x/(2+x): more operations, which fuse into one.
    """
    if torch.compiler.is_compiling():
        r = x / (2 + x)
        r2 = r * r
        return r * (r2 * horner([2 / (2 * k + 3) for k in range(_LOG1PMX_TERMS[x.dtype])], r2) - x)
    nodes, weights = _log1pmx_rule(x, _LOG1PMX_NODES[x.dtype]).unbind()
    return x * x * (weights / (1 + x.unsqueeze(-1) * nodes)).sum(-1)


def with_derivative(derivative: Callable[..., Tensor]) -> Callable[..., Any]:
    """Give ``f(kappa, dim)`` the derivative ``derivative(kappa, dim)`` in the float32 or float64 tensor kappa.

    The derivative is itself such a function, so chains of them can be differentiated as often as the chain is long.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        smooth = with_derivatives(derivative)(function)

        @functools.wraps(function)
        def checked(kappa: Tensor, dim: float) -> Tensor:
            if not isinstance(kappa, Tensor) or kappa.dtype not in (torch.float32, torch.float64):
                kind = kappa.dtype if isinstance(kappa, Tensor) else type(kappa).__name__
                raise ValueError(f"{function.__name__} takes a float32 or float64 tensor, got {kind}")
            return smooth(kappa, dim)

        return checked

    return decorate
