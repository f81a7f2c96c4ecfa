"""Normalised vectors, and the cosine t of two unit vectors in the form 1-t and 1+t."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.constants import tensor_constant
from powerspherical._torch.modes import differentiates_through_functions


def cosine_ends(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1-t and 1+t for t = xᵀμ over the last axis. Arguments broadcast; differentiable twice.

    They are ‖x-μ‖²/2 and ‖x+μ‖²/2. The dot product would lose digits of 1-t, which a large concentration multiplies.
    Derivatives are tangential to the sphere.
    """
    if differentiates_through_functions():
        return _expanded_ends(x, loc)
    return _CosineEnds.apply(x, loc)


class _CosineEnds(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 * (x - loc).square().sum(-1), 0.5 * (x + loc).square().sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, grad_minus: Tensor, grad_plus: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, loc, *ends = ctx.saved_tensors
        grad = (grad_plus - grad_minus).unsqueeze(-1)
        in_x = in_loc = None
        if ctx.needs_input_grad[0]:
            in_x = (grad * _tangential(loc, x, *ends)).sum_to_size(x.shape)
        if ctx.needs_input_grad[1]:
            in_loc = (grad * _tangential(x, loc, *ends)).sum_to_size(loc.shape)
        return in_x, in_loc


def _tangential(other: Tensor, x: Tensor, one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """Return the derivative of t in x, y - tx for the ``other`` vector y.

    It is computed as (y - sx) + s(1-st)x, where s = ±1 is the sign of t. Near t = ±1 both terms are small.
    """
    near = (one_minus_t < one_plus_t).unsqueeze(-1)
    sign = torch.where(near, 1.0, -1.0).to(x.dtype)
    short = sign * torch.where(near, one_minus_t.unsqueeze(-1), one_plus_t.unsqueeze(-1))
    return (other - sign * x) + short * x


def _expanded_ends(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``cosine_ends`` by torch operations, for modes that ignore custom backwards (see ``_torch.derivatives``).

    Normalising both vectors first makes the derivatives tangential.
    """
    unit_x, unit_loc = (v / torch.linalg.vector_norm(v, dim=-1, keepdim=True) for v in (x, loc))
    return 0.5 * (unit_x - unit_loc).square().sum(-1), 0.5 * (unit_x + unit_loc).square().sum(-1)


@tensor_constant
def _first_unit_vector(dim: int) -> list[float]:
    return [1.0] + [0.0] * (dim - 1)


def directions_of(vectors: Tensor, shortest: float = 0.0) -> Tensor:
    """Return v/‖v‖ along the last axis, without overflow or underflow.

    If no |vᵢ| exceeds ``shortest``, v is replaced by v + e₁. The direction is then the first unit vector e₁ to
    rounding, and its derivative is finite, so that an optimiser can leave this point.
    """
    longest = torch.linalg.vector_norm(vectors.detach(), math.inf, -1, keepdim=True)
    missing = longest <= shortest
    dim = operator.index(vectors.shape[-1])  # an integer under torch.jit.trace too
    moved = torch.addcmul(vectors, missing, _first_unit_vector(vectors, dim))
    # Scaling by a constant changes neither the direction nor its derivative.
    scaled = moved / torch.where(missing, 1.0, longest)
    return scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
