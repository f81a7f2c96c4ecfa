"""A draw and its rate: z = radius·x with x from q, and KL(q‖U).

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
from powerspherical.sampling.operator import draw, draw_gradients, plain_draw


def drawn_latents(
    family: Family, loc: Tensor, concentration: Tensor, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return z of shape (…, d) and its rate of shape (…).

    Args:
        family: the family of q.
        loc: mean directions μ, unit vectors of shape (…, d), float32 or float64.
        concentration: κ ≥ 0 of shape (…), in the dtype of ``loc``.
        radius: the length of z.
        dtype: the dtype of z. The rate has that of ``loc``.

    z is differentiable once, the rate twice. Their accuracy is that of ``sampling.draw`` and of
    ``Family.relative_entropy``.

    >>> from powerspherical.families import POWER_SPHERICAL
    >>> loc = torch.eye(3)
    >>> z, rate = drawn_latents(POWER_SPHERICAL, loc, torch.tensor([0.0, 1.0, 2.0]), 2.0, torch.bfloat16)
    >>> z.shape, z.dtype, rate
    (torch.Size([3, 3]), torch.bfloat16, tensor([0.0000, 0.1931, 0.4319]))
    """
    if torch.is_grad_enabled() and loc.requires_grad and is_plain(loc, concentration):
        return _plain_latents(loc, concentration, family, radius, dtype)
    if is_ours(type(family)):
        return _composition(loc, concentration, family.name, radius, dtype)
    z = _scaled(draw(family, loc, concentration), radius, dtype)
    return z, family.relative_entropy(concentration, loc.shape[-1])


@composite(
    "latents",
    "Tensor loc, Tensor concentration, str family, float radius, ScalarType dtype",
    "(Tensor, Tensor)",
)
def _composition(
    loc: Tensor, concentration: Tensor, name: str, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """``drawn_latents`` as torch operations, for one of our families."""
    family = family_named(name)
    z = _scaled(draw(family, loc, concentration), radius, dtype)
    return z, family.relative_entropy(concentration, loc.shape[-1])


def _scaled(x: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """Return radius·x in ``dtype``, rounded once."""
    return (x if radius == 1 else radius * x).to(dtype)


class _PlainLatents(torch.autograd.Function):
    """``drawn_latents`` in plain eager mode."""

    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, concentration: Tensor, family: Family, radius: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        dim = loc.shape[-1]
        x, *scalars = plain_draw(loc, concentration, concentration.shape, None, dim, family.name)
        rate, slope = family.relative_entropy_and_slope(concentration, dim)
        ctx.family, ctx.radius = family, radius
        ctx.save_for_backward(x, loc, *scalars, concentration, slope)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        z = _scaled(x, radius, dtype)
        return z, rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_rate: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, slope = ctx.saved_tensors
        x, *_, concentration = saved
        dim = x.shape[-1]
        in_loc = in_concentration = None
        if grad is not None:
            grad = _scaled(grad.to(x.dtype), ctx.radius, x.dtype)
            in_loc, in_concentration = draw_gradients(grad, *saved, dim, ctx.family.name, True, True)
        if grad_rate is not None:
            if torch.is_grad_enabled():  # the gradient itself will be differentiated
                _, slope = ctx.family.relative_entropy_and_slope(concentration, dim)
            if in_concentration is None:
                in_concentration = grad_rate * slope
            else:
                in_concentration = torch.addcmul(in_concentration, grad_rate, slope)
        return in_loc, in_concentration, None, None, None


#: The C++ ``apply``. Python's override looks for transforms and inspects the signature.
_plain_latents = super(torch.autograd.Function, _PlainLatents).apply
