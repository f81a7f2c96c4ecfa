"""Normalised vectors, and the cosine t of two unit vectors in the form 1-t and 1+t."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.modes import differentiates_through_functions, is_plain, is_plain_backward
from powerspherical.distributions._fused import Plan, fused_plan
from powerspherical.quadrature.cosine import Cosine


def cosine_between(x: Tensor, loc: Tensor) -> Cosine:
    """Return the cosine t = xᵀμ over the last axis. Arguments broadcast; differentiable twice.

    1-t and 1+t are ‖x-μ‖²/2 and ‖x+μ‖²/2. The dot product would lose digits of 1-t, which a large concentration
    multiplies. Derivatives are tangential to the sphere. In float32 and plain eager mode, one fused kernel computes the
    ends and another one their gradients (see ``_fused``).
    """
    if differentiates_through_functions():
        return Cosine(*_expanded_ends(x, loc))
    if is_plain(x, loc):
        return Cosine(*_EagerEnds.apply(x, loc, fused_plan("ends", x, loc)))
    return Cosine(*_CosineEnds.apply(x, loc))


class _CosineEnds(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
        return _ends(x, loc)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.set_materialize_grads(False)  # most families use only one of the ends

    @staticmethod
    def backward(
        ctx: Any, grad_minus: Tensor | None, grad_plus: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        grad = _grad_of_cosine(grad_minus, grad_plus)
        if grad is None:
            return None, None
        x, loc, one_minus_t, one_plus_t = ctx.saved_tensors
        return _gradients(grad, x, loc, (one_minus_t, one_plus_t), ctx.needs_input_grad)


def _ends(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
    return _half_square_(x - loc), _half_square_(x + loc)


def _half_square_(vector: Tensor) -> Tensor:
    """Return ‖v‖²/2. Overwrites v."""
    return vector.mul_(vector).sum(-1).mul_(0.5)


class _EagerEnds(torch.autograd.Function):
    """``_CosineEnds`` in plain eager mode, with a fused kernel if there is a ``plan``.

    A ``Function`` without ``setup_context`` takes less time to call.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, loc: Tensor, plan: Plan | None) -> tuple[Tensor, Tensor]:
        ends = _ends(x, loc) if plan is None else plan.forward(x, loc, x, x, needs_ends=True)[1:]
        ctx.plan = plan
        ctx.save_for_backward(x, loc, *ends)
        ctx.set_materialize_grads(False)
        return ends

    @staticmethod
    def backward(
        ctx: Any, grad_minus: Tensor | None, grad_plus: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        grad = _grad_of_cosine(grad_minus, grad_plus)
        if grad is None:
            return None, None, None
        x, loc, one_minus_t, one_plus_t = ctx.saved_tensors
        ends = one_minus_t, one_plus_t
        needed = ctx.needs_input_grad[:2]
        # The gradient itself may be differentiated or transformed.
        if ctx.plan is None or not is_plain_backward(grad):
            return *_gradients(grad, x, loc, ends, needed), None
        in_x, in_loc, _ = ctx.plan.backward(grad, x, loc, x, x, ends, (*needed, False))
        return in_x, in_loc, None


def _grad_of_cosine(grad_minus: Tensor | None, grad_plus: Tensor | None) -> Tensor | None:
    """Return the gradient of t, given those of 1-t and 1+t. None means zero."""
    if grad_minus is None:
        return grad_plus
    return -grad_minus if grad_plus is None else grad_plus - grad_minus


def _gradients(
    grad: Tensor, x: Tensor, loc: Tensor, ends: tuple[Tensor, Tensor], needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients in x and loc for the gradient of t, None where not ``needed``.

    The derivative of t in x is μ - tx. We compute it as v + s(1-st)x with v = μ - sx, where s = ±1 is the sign of t.
    Near t = ±1 both terms are small. The derivative in μ is likewise x - tμ = -sv + s(1-st)μ.
    """
    one_minus_t, one_plus_t = ends
    near = one_minus_t < one_plus_t
    sign = torch.where(near, 1.0, -1.0).to(x.dtype)
    signed_grad = (grad * sign).unsqueeze(-1)
    along = signed_grad * torch.where(near, one_minus_t, one_plus_t).unsqueeze(-1)
    difference = torch.addcmul(loc, x, sign.unsqueeze(-1), value=-1)
    in_x = in_loc = None
    if needed[0]:
        in_x = torch.addcmul(grad.unsqueeze(-1) * difference, along, x).sum_to_size(x.shape)
    if needed[1]:
        in_loc = torch.addcmul(along * loc, signed_grad, difference, value=-1).sum_to_size(loc.shape)
    return in_x, in_loc


def _expanded_ends(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``cosine_between`` by torch operations, for modes that ignore custom backwards.

    ``_torch.derivatives`` says which. Normalising both vectors first makes the derivatives tangential.
    """
    unit_x, unit_loc = (v / torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (x, loc))
    return 0.5 * (unit_x - unit_loc).square().sum(-1), 0.5 * (unit_x + unit_loc).square().sum(-1)


def directions_of(vectors: Tensor, shortest: float = 0.0) -> Tensor:
    """Return v/‖v‖ along the last axis, without overflow or underflow.

    If no |vᵢ| exceeds ``shortest``, v is replaced by v + e₁. The direction is then the first unit vector e₁ to
    rounding, and its derivative is finite, so that an optimiser can leave this point.
    """
    lowest, highest = (extreme(vectors.detach(), -1, keepdim=True) for extreme in (torch.amin, torch.amax))
    longest = torch.maximum(-lowest, highest)  # many times faster on a CPU than torch's norm of order ∞
    missing = longest <= shortest
    moved = torch.cat((vectors[..., :1] + missing, vectors[..., 1:]), -1)
    # Scaling by a constant changes neither the direction nor its derivative.
    scaled = moved / torch.where(missing, 1.0, longest)
    return scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
