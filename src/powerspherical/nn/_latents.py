"""Latents and their rate as a function of a head's outputs: z = radius·x with x from q, and KL(q‖U).

In plain eager mode this is one autograd function, because every node of the autograd graph costs host time. Elsewhere
(``torch.compile``, ``torch.func``, tracing) it is a composition, which a compiler can fuse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.composites import composite, is_ours
from powerspherical._torch.modes import is_plain
from powerspherical.families import Family, family_named
from powerspherical.nn import _parameters
from powerspherical.nn._parameters import Bounds
from powerspherical.sampling.operator import draw, draw_gradients, plain_draw


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
        return _plain_latents(outputs, dim, Bounds(minimum, maximum), family, radius, dtype)
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
    """``_composition`` for one of our families."""
    return _composition(outputs, dim, minimum, maximum, family_named(name), radius, dtype)


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
        dim, family = x.shape[-1], ctx.family
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            loc, kappa = _parameters.composition(outputs, dim, ctx.bounds)
            _, slope = family.relative_entropy_and_slope(kappa, dim)
        in_loc = in_kappa = None
        if grad is not None:
            grad = _scaled(grad.to(x.dtype), ctx.radius, x.dtype)
            in_loc, in_kappa = draw_gradients(grad, x, loc, *scalars, kappa, dim, family.name, True, True)
        if grad_rate is not None:
            in_kappa = grad_rate * slope if in_kappa is None else torch.addcmul(in_kappa, grad_rate, slope)
        return _parameters.gradient(outputs, loc, in_loc, in_kappa, ctx.bounds), *[None] * 5


#: The C++ ``apply``. Python's override looks for transforms and inspects the signature.
_plain_latents = super(torch.autograd.Function, _PlainLatents).apply
