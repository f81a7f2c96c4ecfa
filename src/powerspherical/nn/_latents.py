"""Latents and their rate as a function of a head's outputs: z = radius·x with x from q, and KL(q‖U).

In plain eager mode this is one autograd function, because every node of the autograd graph costs host time. On CUDA,
eager or compiled, one Triton kernel computes all of it and another one the gradient. Elsewhere (``torch.func``,
tracing, compiled code for other devices) it is a composition of torch operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.composites import composite, is_ours
from powerspherical._torch.modes import is_batch_of_gradients, is_plain, is_recording_operations
from powerspherical._torch.random import compiled_seed
from powerspherical._torch.triton import triton_takes
from powerspherical.families import Family, family_named
from powerspherical.nn import _parameters
from powerspherical.nn._parameters import FUSED_DTYPES, Bounds
from powerspherical.sampling.operator import draw, draw_gradients, plain_draw
from powerspherical.sampling.triton import fused

#: Largest dimension of the kernels, which hold whole rows in registers.
FUSED_DIM = 1024


def drawn_latents(
    outputs: Tensor,
    dim: int,
    minimum: float,
    maximum: float,
    family: Family,
    radius: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return z of shape (…, d) and its rate of shape (…).

    Args:
        outputs: (v, r) of shape (…, d + 1), which give μ and κ as in ``_parameters.parameters``.
        dim: d ≥ 2.
        minimum, maximum: the bounds of κ.
        family: the family of q.
        radius: the length of z.
        dtype: the dtype of z. The rate is float64 for float64 outputs, otherwise float32.

    z is differentiable once, the rate twice. Their accuracy is that of ``sampling.draw`` and of
    ``Family.relative_entropy``.

    >>> from powerspherical.families import POWER_SPHERICAL
    >>> outputs = torch.tensor([[3.0, 4.0, 20.0], [0.0, 1.0, 5.0]])
    >>> z, rate = drawn_latents(outputs, 2, 0.0, 1e6, POWER_SPHERICAL, 2.0, torch.bfloat16)
    >>> z.shape, z.dtype, rate
    (torch.Size([2, 2]), torch.bfloat16, tensor([1.5827, 0.9226]))
    """
    if torch.is_grad_enabled() and outputs.requires_grad and is_plain(outputs):
        bounds = Bounds(minimum, maximum)
        if _runs_fused(outputs, dim, family):
            return _fused_latents(outputs, dim, bounds, family, radius, dtype, None)
        return _plain_latents(outputs, dim, bounds, family, radius, dtype)
    if is_ours(type(family)):
        return _recorded(outputs, dim, minimum, maximum, family.name, radius, dtype)
    return _composition(outputs, dim, minimum, maximum, family, radius, dtype)


def _composition(
    outputs: Tensor,
    dim: int,
    minimum: float,
    maximum: float,
    family: Family,
    radius: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """``drawn_latents`` as torch operations and operators."""
    loc, kappa = _parameters.parameters(outputs, dim, Bounds(minimum, maximum))
    assert kappa is not None  # as there is an r
    return _scaled(draw(family, loc, kappa), radius, dtype), family.relative_entropy(kappa, dim)


@composite(
    "latents",
    "Tensor outputs, int dim, float minimum, float maximum, str family, float radius, ScalarType dtype",
    "(Tensor, Tensor)",
)
def _recorded(
    outputs: Tensor,
    dim: int,
    minimum: float,
    maximum: float,
    name: str,
    radius: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """``_composition`` for one of our families, but ``torch.compile`` on CUDA sees the fused kernels."""
    family = family_named(name)
    if is_recording_operations() and _runs_fused(outputs, dim, family):
        bounds, seed = Bounds(minimum, maximum), compiled_seed(outputs.device)
        return _FusedLatents.apply(outputs, dim, bounds, family, radius, dtype, seed)
    return _composition(outputs, dim, minimum, maximum, family, radius, dtype)


def _runs_fused(outputs: Tensor, dim: int, family: Family) -> bool:
    """Whether the Triton kernels serve these outputs."""
    return (
        outputs.is_cuda
        and dim <= FUSED_DIM
        and outputs.numel() > 0
        and family.name in fused.FAMILIES
        and triton_takes(outputs, FUSED_DTYPES)
    )


def _scaled(x: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """Return radius·x in ``dtype``, rounded once."""
    return (x if radius == 1 else radius * x).to(dtype)


class _PlainLatents(torch.autograd.Function):
    """``drawn_latents`` in plain eager mode."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        dim: int,
        bounds: Bounds,
        family: Family,
        radius: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        loc, kappa = _parameters.values(outputs, dim, bounds)
        assert kappa is not None
        x, *scalars = plain_draw(loc, kappa, kappa.shape, None, dim, family.name)
        rate, slope = family.relative_entropy_and_slope(kappa, dim)
        ctx.bounds, ctx.family, ctx.radius = bounds, family, radius
        ctx.save_for_backward(outputs, x, loc, *scalars, kappa, slope)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return _scaled(x, radius, dtype), rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_rate: Tensor | None) -> tuple[Tensor | None, ...]:
        outputs, x, loc, *scalars, kappa, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            return _differentiable_gradient(ctx, grad, grad_rate, outputs, x, *scalars), *[None] * 5
        return _gradient(ctx, grad, grad_rate, outputs, loc, kappa, slope, x, *scalars), *[None] * 5


class _FusedLatents(torch.autograd.Function):
    """``drawn_latents`` with Triton, in eager mode and in compiled code."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        dim: int,
        bounds: Bounds,
        family: Family,
        radius: float,
        dtype: torch.dtype,
        seed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        from powerspherical.nn import _triton_latents

        outputs = outputs.contiguous()
        key = fused.random_seed(outputs.device) if seed is None else seed
        z, rate, *saved = _triton_latents.draw_latents(outputs, dim, bounds, family, radius, dtype, key)
        ctx.bounds, ctx.family, ctx.radius = bounds, family, radius
        ctx.save_for_backward(outputs, *saved)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return z, rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_rate: Tensor | None) -> tuple[Tensor | None, ...]:
        outputs, x, scalars = ctx.saved_tensors
        given = [one for one in (grad, grad_rate) if one is not None]
        if not given:
            return (None,) * 7
        # Gradients that will be differentiated, or that belong to a transform, need torch operations.
        plain = is_plain(*given) and not any(map(is_batch_of_gradients, given))
        if torch.is_grad_enabled() or not (plain or is_recording_operations()):
            return _differentiable_gradient(ctx, grad, grad_rate, outputs, x, *scalars[:3]), *[None] * 6
        from powerspherical.nn import _triton_latents

        gradient = _triton_latents.pull_back_latents(
            outputs, x, scalars, grad, grad_rate, ctx.bounds, ctx.family, ctx.radius
        )
        return gradient, *[None] * 6


def _differentiable_gradient(
    ctx: Any, grad: Tensor | None, grad_rate: Tensor | None, outputs: Tensor, x: Tensor, *scalars: Tensor
) -> Tensor | None:
    """``_gradient`` with μ, κ and the derivative of the rate as differentiable functions of the outputs."""
    dim = x.shape[-1]
    loc, kappa = _parameters.composition(outputs, dim, ctx.bounds)
    assert kappa is not None
    _, slope = ctx.family.relative_entropy_and_slope(kappa, dim)
    return _gradient(ctx, grad, grad_rate, outputs, loc, kappa, slope, x, *scalars)


def _gradient(
    ctx: Any,
    grad: Tensor | None,
    grad_rate: Tensor | None,
    outputs: Tensor,
    loc: Tensor,
    kappa: Tensor,
    slope: Tensor,
    x: Tensor,
    *scalars: Tensor,
) -> Tensor | None:
    """Return the gradient in the outputs, given those in z and the rate, μ, κ, dKL/dκ, and the results of the draw."""
    in_loc = in_kappa = None
    if grad is not None:
        grad = _scaled(grad.to(x.dtype), ctx.radius, x.dtype)
        needs = True, True
        in_loc, in_kappa = draw_gradients(grad, x, loc, *scalars, kappa, x.shape[-1], ctx.family.name, *needs)
    if grad_rate is not None:
        in_kappa = grad_rate * slope if in_kappa is None else torch.addcmul(in_kappa, grad_rate, slope)
    return _parameters.gradient(outputs, loc, in_loc, in_kappa, ctx.bounds)


#: The C++ ``apply``. Python's override looks for transforms and inspects the signature.
_plain_latents = super(torch.autograd.Function, _PlainLatents).apply
_fused_latents = super(torch.autograd.Function, _FusedLatents).apply
