"""Unit vectors, the precision in which they are computed (float32 for half precision), and their cosines."""

from __future__ import annotations

import torch
from torch import Tensor


def computing(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtype`` are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_vectors_as(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert unit vectors to ``dtype``. A conversion to higher precision normalises them again."""
    if value.dtype == dtype:
        return value
    converted = value.to(dtype)
    if torch.finfo(dtype).eps < torch.finfo(value.dtype).eps:
        return torch.nn.functional.normalize(converted, dim=-1)
    return converted


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


def cosine_between(x: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1-t and 1+t for the cosine t = xᵀμ over the last axis. Arguments broadcast; differentiable to any order.

    They are ‖x-μ‖²/2 and ‖x+μ‖²/2. The dot product would lose digits of 1-t, which a large concentration multiplies.
    Derivatives are tangential to the sphere.
    """
    x, loc = _tangential(x), _tangential(loc)
    minus, plus = 0.5 * (x - loc).square().sum(-1), 0.5 * (x + loc).square().sum(-1)
    # Both ends have the derivative of the smaller one. That of the other is a small difference of large vectors.
    t = torch.where(minus < plus, -minus, plus)
    change = t - t.detach()
    return minus.detach() - change, plus.detach() + change


def _tangential(vectors: Tensor) -> Tensor:
    """Return unit vectors v unchanged, with the derivatives of v/‖v‖: normalising again would round them."""
    unit = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors.detach() + (unit - unit.detach())
