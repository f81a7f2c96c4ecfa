"""Tools that the special functions share: polynomials, quadrature nodes, ``log1p(x) - x``, derivatives, kernels."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerspherical._torch.constants import tensor_constant
from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.modes import is_compiling, is_plain, plain_apply
from powerspherical._torch.triton import triton_takes
from powerspherical.special._native_launch import native_takes


def horner(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return the polynomial ``c[0] + c[1] x + c[2] x² + …``, of degree at least one."""
    value = (x * coefficients[-1]).add_(coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        value = (value * x).add_(coefficient)
    return value


def legendre(count: int) -> tuple[list[float], list[float]]:
    """Return the nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


@tensor_constant
def _columns(rows: tuple[tuple[float, ...], ...]) -> list[tuple[float, ...]]:
    """The transpose of ``rows``, padded with zeros: one column of coefficients per power."""
    return list(itertools.zip_longest(*rows, fillvalue=0.0))


def polynomials(rows: tuple[tuple[float, ...], ...], x: Tensor) -> tuple[Tensor, ...]:
    """Several polynomials at the same points, each given by its coefficients as in ``horner``.

    In eager mode, one operation per power evaluates all of them. Compiled, each becomes a chain of literals that fuses.
    """
    if is_compiling():
        return tuple(horner(row, x) for row in rows)
    table = _columns(x, rows)
    *rest, value = table.view(*table.shape, *(1,) * x.dim()).unbind()
    for coefficients in reversed(rest):
        value = torch.addcmul(coefficients, value, x)
    return value.unbind()


_LOG1PMX_NODES = {torch.float64: 11, torch.float32: 5}
_LOG1PMX_TERMS = {torch.float64: 15, torch.float32: 7}


@tensor_constant
def _log1pmx_rule(count: int) -> list[list[float]]:
    nodes, weights = legendre(count)
    return [nodes, [-node * weight for node, weight in zip(nodes, weights, strict=True)]]


def log1pmx_near_zero(x: Tensor) -> Tensor:
    """Return ``log1p(x) - x`` for -0.4 < x < 1, without cancellation near zero.

    In eager mode this is -x² ∫₀¹ s/(1+xs) ds by Gauss–Legendre. A node axis takes few operations, whose number
    dominates the time of small batches. Compiled, it is the series of 2 atanh(r), r = x/(2+x), whose many operations
    the compiler fuses into one.
    """
    if is_compiling():
        r = x / (2 + x)
        r2 = r * r
        return r * (r2 * horner([2 / (2 * k + 3) for k in range(_LOG1PMX_TERMS[x.dtype])], r2) - x)
    nodes, weights = _log1pmx_rule(x, _LOG1PMX_NODES[x.dtype]).unbind()
    return x * x * (weights / (1 + x.unsqueeze(-1) * nodes)).sum(-1)


def runs_fused(kappa: Tensor) -> bool:
    """Whether fused kernels compute functions of the tensor: in plain eager mode and in float32.

    On CUDA they are Triton kernels, and on the CPU functions of the C library. Either may be missing.
    """
    return is_plain(kappa) and (native_takes(kappa) or triton_takes(kappa))


def kernels(functions: str, kappa: Tensor) -> ModuleType:
    """Return the module with the fused kernels for "bessel", "gamma" or "cauchy", where ``runs_fused``."""
    return _module(f"powerspherical.special._{'native' if native_takes(kappa) else 'triton'}_{functions}")


#: Modules with kernels are imported at their first use: they import the functions that use them, and one needs Triton.
_module = functools.cache(importlib.import_module)


#: Computes (value, derivative) of a function of (kappa, dim) in one kernel. The derivative may be left empty if the
#: last argument, ``needs_slope``, is False.
FusedKernel = Callable[[Tensor, float, bool], tuple[Tensor, Tensor]]


def with_derivative(
    derivative: Callable[..., Tensor], *, fused: FusedKernel | None = None
) -> Callable[..., Any]:
    """Decorate ``f(kappa, dim)`` with its derivative ``derivative(kappa, dim)`` in kappa, and check the dtype of kappa.

    The derivative may be decorated in the same way, which gives derivatives of higher order.
    ``f.and_slope(kappa, dim)`` returns the value and the derivative.

    Args:
        derivative: function of (kappa, dim).
        fused: the value and the derivative as one kernel. It replaces f where ``runs_fused``; elsewhere (other dtypes
            and devices, ``torch.func``, ``torch.compile``) f runs as it is written.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        smooth = with_derivatives(derivative)(function)
        kernel = None if fused is None else _differentiable(fused, derivative)

        @functools.wraps(function)
        def checked(kappa: Tensor, dim: float) -> Tensor:
            if not isinstance(kappa, Tensor) or kappa.dtype not in (torch.float32, torch.float64):
                kind = kappa.dtype if isinstance(kappa, Tensor) else type(kappa).__name__
                raise ValueError(f"{function.__name__} takes a float32 or float64 tensor, got {kind}")
            if kernel is not None and runs_fused(kappa):
                return kernel(kappa, dim)
            return smooth(kappa, dim)

        def and_slope(kappa: Tensor, dim: float) -> tuple[Tensor, Tensor]:
            if fused is not None and not torch.is_grad_enabled() and runs_fused(kappa):
                return fused(kappa, dim, True)
            return smooth(kappa, dim), derivative(kappa, dim)

        checked.and_slope = and_slope  # type: ignore[attr-defined]
        return checked

    return decorate


def _differentiable(
    fused: FusedKernel, derivative: Callable[..., Tensor]
) -> Callable[[Tensor, float], Tensor]:
    """The value of a fused kernel, differentiable: its derivative comes from the same call."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, kappa: Tensor, dim: float) -> Tensor:
            value, slope = fused(kappa, dim, True)
            ctx.dim = dim
            ctx.save_for_backward(kappa, slope)
            return value

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            kappa, slope = ctx.saved_tensors
            # The gradient itself may be differentiated or transformed.
            if torch.is_grad_enabled() or not is_plain(grad):
                slope = derivative(kappa, ctx.dim)
            return grad * slope, None

    apply = plain_apply(Fused)

    def differentiable(kappa: Tensor, dim: float) -> Tensor:
        if torch.is_grad_enabled() and kappa.requires_grad:
            value: Tensor = apply(kappa, dim)
            return value
        return fused(kappa, dim, False)[0]

    return differentiable
