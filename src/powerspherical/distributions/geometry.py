"""Normalised vectors, and the cosine t of two unit vectors in the form 1-t and 1+t."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical.quadrature.cosine import Cosine


def cosine_between(x: Tensor, loc: Tensor) -> Cosine:
    """Return the cosine t = xᵀμ over the last axis. Arguments broadcast; differentiable to any order.

    1-t and 1+t are ‖x-μ‖²/2 and ‖x+μ‖²/2. The dot product would lose digits of 1-t, which a large concentration
    multiplies. Derivatives are tangential to the sphere.
    """
    x, loc = _tangential(x), _tangential(loc)
    minus, plus = 0.5 * (x - loc).square().sum(-1), 0.5 * (x + loc).square().sum(-1)
    # Both ends have the derivative of the smaller one. That of the other is a small difference of large vectors.
    t = torch.where(minus < plus, -minus, plus)
    change = t - t.detach()
    return Cosine(minus.detach() - change, plus.detach() + change)


def _tangential(vectors: Tensor) -> Tensor:
    """Return unit vectors v unchanged, with the derivatives of v/‖v‖: normalising again would round them."""
    unit = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors.detach() + (unit - unit.detach())
