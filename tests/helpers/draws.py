"""Draws with what the backward pass keeps of them, and the derivative of the cosine t = μᵀx in κ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical import sampling
from powerspherical.families import Family


class Draw(NamedTuple):
    """Points, and for each of them 1-t, 1+t and the random number from which the family drew t."""

    x: Tensor
    minus: Tensor
    plus: Tensor
    noise: Tensor


def draw(
    family: Family, loc: Tensor, kappa: Tensor, shape: Sequence[int] | None = None, dim: int | None = None
) -> Draw:
    """Draw differentiable points, and by the operator of compiled code what belongs to them, on the active engine."""
    shape = torch.broadcast_shapes(loc.shape[:-1], kappa.shape) if shape is None else shape
    dim = loc.shape[-1] if dim is None else dim
    seed = int(torch.randint(2**31, ()))
    torch.manual_seed(seed)
    values = loc.detach(), kappa.detach()
    _, scalars = torch.ops.powerspherical.draw(*values, shape, False, 0, dim, family.name, None, None)
    torch.manual_seed(seed)
    return Draw(sampling.draw(family, loc, kappa, shape, dim), *scalars)


def slopes(
    family: Family, minus: Tensor, plus: Tensor, noise: Tensor, kappa: Tensor, dim: int, width: int = 2
) -> Tensor:
    """Return d artanh(t)/dκ = (dt/dκ)/(1-t²) in float64, as the backward pass of the active engine computes it.

    The points have d = ``width``. If the gradient in x is parallel to μ, dt/dκ is all that is left.
    """
    pole = torch.eye(1, width, dtype=kappa.dtype, device=kappa.device).expand(*kappa.shape, width)
    x, scalars = (1 - minus).unsqueeze(-1) * pole, torch.stack((minus, plus, noise))
    grad = pole / (minus * plus).unsqueeze(-1)  # of this size, so that nothing underflows at large κ
    _, slope = torch.ops.powerspherical.draw_backward(
        grad, x, pole.contiguous(), scalars, kappa, dim, family.name, False, True
    )
    return slope.double()


def exact_ends(minus: Tensor, plus: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1-t and 1+t in float64. In float32 they do not sum to 2: the smaller one determines t."""
    minus, plus = minus.double(), plus.double()
    near = minus < plus
    return torch.where(near, minus, 2 - plus), torch.where(near, 2 - minus, plus)
