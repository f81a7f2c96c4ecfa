"""The parameters μ and κ of a head, as a function of its outputs (v, r).

In plain eager mode this is one autograd function, because every node of the autograd graph costs host time. One kernel
computes both parameters and another one the gradient, with Triton on CUDA and in C on the CPU. Elsewhere
(``torch.compile``, ``torch.func``, tracing, export) it is a composition of torch operations, which a compiler can fuse.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from powerspherical._native import library
from powerspherical._torch.composites import composite
from powerspherical._torch.modes import is_plain, is_plain_backward, plain_apply
from powerspherical._torch.triton import triton_takes
from powerspherical.distributions.geometry import directions_of
from powerspherical.sampling.precision import computing

#: v counts as zero if no |vᵢ| exceeds this. The gradient of v/‖v‖ grows as 1/‖v‖.
SHORT = 1e-12

#: Largest dimension of the kernels. A program holds whole rows in registers.
LARGEST_DIM = 1 << 14

FUSED_DTYPES = torch.float32, torch.float16, torch.bfloat16


class Bounds(NamedTuple):
    """Bounds of κ, 0 ≤ minimum < maximum ≤ ∞."""

    minimum: float
    maximum: float

    @property
    def span(self) -> float:
        """The width of the interval."""
        return self.maximum - self.minimum


def parameters(outputs: Tensor, dim: int, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
    """Return the directions μ = v/‖v‖ of shape (…, d) and the concentrations κ of shape (…).

    Args:
        outputs: (v, r) of shape (…, d + 1) in any floating dtype, or v of shape (…, d). κ is then None.
        dim: d ≥ 2.
        bounds: the bounds of κ, see ``bounded``.

    The results are float64 for float64 outputs, otherwise float32. Their relative error is a few times the rounding
    error of that dtype. A v whose coordinates are all at most ``SHORT`` gives the first unit vector, with a finite
    gradient. Differentiable to any order.

    >>> loc, concentration = parameters(torch.tensor([3.0, 4.0, 20.0]), 2, Bounds(1.0, 11.0))
    >>> loc, concentration
    (tensor([0.6000, 0.8000]), tensor(7.6667))
    """
    if not is_plain(outputs):
        loc, *rest = _composition_operator(outputs, dim, bounds.minimum, bounds.maximum)
        return loc, rest[0] if rest else None
    if torch.is_grad_enabled() and outputs.requires_grad:
        result: tuple[Tensor, Tensor | None] = _plain_parameters(outputs, dim, bounds)
        return result
    return values(outputs, dim, bounds)


def bounded(raw: Tensor, bounds: Bounds) -> Tensor:
    """Return κ = minimum + s/(1 + s/span) with s = softplus(r)."""
    softplus = functional.softplus(raw)
    if bounds.maximum == math.inf:
        return softplus + bounds.minimum
    excess = softplus / (1 + softplus / bounds.span)
    return (bounds.minimum + excess).clamp(max=bounds.maximum)  # guards against rounding


def composition(outputs: Tensor, dim: int, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
    """``parameters`` as torch operations."""
    outputs = outputs.to(computing(outputs.dtype))
    if outputs.shape[-1] == dim:
        return directions_of(outputs, SHORT), None
    vectors, raw = outputs.split((dim, 1), -1)
    return directions_of(vectors, SHORT), bounded(raw.squeeze(-1), bounds)


@composite("parameters", "Tensor outputs, int dim, float minimum, float maximum", "Tensor[]")
def _composition_operator(outputs: Tensor, dim: int, minimum: float, maximum: float) -> list[Tensor]:
    """``composition`` as one operator under ``torch.compile``: [μ] or [μ, κ], because it cannot return None."""
    loc, kappa = composition(outputs, dim, Bounds(minimum, maximum))
    return [loc] if kappa is None else [loc, kappa]


def gradient(
    outputs: Tensor, loc: Tensor, grad_loc: Tensor | None, grad_kappa: Tensor | None, bounds: Bounds
) -> Tensor | None:
    """Return the gradient in the outputs, given those in μ and κ. None means zero.

    It is differentiable if gradients are recorded and ``loc`` is a function of the outputs.
    """
    grads = [grad for grad in (grad_loc, grad_kappa) if grad is not None]
    if not grads:
        return None
    if is_plain_backward(*grads) and (kernels := _kernels(outputs, loc.shape[-1])) is not None:
        result: Tensor = kernels.gradient(outputs, loc, grad_loc, grad_kappa, *bounds)
        return result
    return _composed_gradient(outputs, loc, grad_loc, grad_kappa, bounds)


def _composed_gradient(
    outputs: Tensor, loc: Tensor, grad_loc: Tensor | None, grad_kappa: Tensor | None, bounds: Bounds
) -> Tensor:
    """``gradient`` as torch operations."""
    dim = loc.shape[-1]
    exact = outputs.to(loc.dtype)
    parts = []
    if grad_loc is None:
        parts.append(torch.zeros_like(loc))
    else:
        length = (exact[..., :dim] * loc).sum(-1, keepdim=True)
        # For a short v, μ is the direction of v + e₁, whose length is vᵀμ + μ₁.
        length = length + torch.where(length > SHORT, 0.0, loc[..., :1])
        along = (grad_loc * loc).sum(-1, keepdim=True)
        parts.append(torch.addcmul(grad_loc, loc, along, value=-1) / length)
    if outputs.shape[-1] > dim:
        raw = exact[..., dim:]
        if grad_kappa is None:
            parts.append(torch.zeros_like(raw))
        else:
            slope = torch.sigmoid(raw) / (1 + functional.softplus(raw) / bounds.span).square()
            parts.append(grad_kappa.unsqueeze(-1) * slope)
    return torch.cat(parts, -1).to(outputs.dtype)


def _kernels(outputs: Tensor, dim: int) -> Any:
    """Return the module that computes on these outputs in plain eager mode, with Triton or in C, or None."""
    if outputs.numel() == 0 or outputs.dtype not in FUSED_DTYPES:
        return None
    if dim <= LARGEST_DIM and triton_takes(outputs, FUSED_DTYPES):
        from powerspherical.nn import _triton_parameters

        return _triton_parameters
    if outputs.is_cpu and library.usable():
        from powerspherical.nn import _native_parameters

        return _native_parameters
    return None


def values(outputs: Tensor, dim: int, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
    """``parameters`` in plain eager mode, without derivatives."""
    kernels = _kernels(outputs, dim)
    if kernels is None:
        return composition(outputs, dim, bounds)
    loc, kappa = kernels.values(outputs, dim, *bounds)
    return loc, kappa


class _PlainParameters(torch.autograd.Function):
    """``parameters`` in plain eager mode."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, dim: int, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
        loc, kappa = values(outputs, dim, bounds)
        ctx.bounds = bounds
        ctx.save_for_backward(outputs, loc)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return loc, kappa

    @staticmethod
    def backward(
        ctx: Any, grad_loc: Tensor | None, grad_kappa: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        outputs, loc = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            loc, _ = composition(outputs, loc.shape[-1], ctx.bounds)
        return gradient(outputs, loc, grad_loc, grad_kappa, ctx.bounds), None, None


_plain_parameters = plain_apply(_PlainParameters)
