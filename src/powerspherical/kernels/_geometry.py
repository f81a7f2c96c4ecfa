"""The part of a draw that every family shares: directions, the point x from t, and the way back.

Written with in-place operations on one (…, d) buffer: for large batches the memory traffic, not the
arithmetic, is what a draw costs beyond its Gaussian noise. No matrix product is used, because those follow
settings that must not reach a sampler (autocast, TF32, ``torch.set_float32_matmul_precision``).
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Elements of a CPU tensor multiplied at a time by ``row_dot``: the product then stays in the cache.
_BLOCK = 1 << 17

#: Up to this dimension v may be so short that the rounding of its projection shows, see ``tangent_gaussian``.
_PROJECT_TWICE = 8


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner products over the last axis of two tensors of the same shape."""
    if a.numel() <= _BLOCK or a.dim() == 1 or a.device.type != "cpu":
        return (a * b).sum(-1)
    # Block by block along the first axis. Flattening instead could copy: ``b`` may be an expanded view.
    out = a.new_empty(a.shape[:-1])
    inner = a.numel() // a.shape[0]
    if inner > _BLOCK and a.dim() > 2:
        for index in range(a.shape[0]):
            out[index] = row_dot(a[index], b[index])
    else:
        rows = max(_BLOCK // inner, 1)
        for x, y, result in zip(a.split(rows), b.split(rows), out.split(rows), strict=True):
            torch.sum(x * y, -1, out=result)
    return out


def tangent_gaussian(loc: Tensor) -> tuple[Tensor, Tensor]:
    """A standard normal vector v of the tangent space at each unit vector ``loc``, and S = ‖v‖² > 0.

    S ~ χ²_{d-1} and v/‖v‖ are independent, so a family may use S up in the draw of t.
    """
    dim = loc.shape[-1]
    if dim == 2:
        return _circle_tangent(loc)
    noise = torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
    # v = ε - (ε·μ)μ leaves a rounding error of about eps|ε·μ| along μ, by which ‖x‖ is off by eps/‖v‖: too
    # much where v is short, as happens in low dimensions. Projecting the result again removes it.
    for _ in range(2 if dim <= _PROJECT_TWICE else 1):
        noise.addcmul_(row_dot(noise, loc).unsqueeze(-1), loc, value=-1)
    return noise, torch.linalg.vector_norm(noise, dim=-1).square_()


def _circle_tangent(loc: Tensor) -> tuple[Tensor, Tensor]:
    """On the circle the tangent at μ is the line of (-μ₂, μ₁): no projection, no rounding."""
    length = torch.randn(loc.shape[:-1], dtype=loc.dtype, device=loc.device)
    # torch's float32 normals are exactly 0 once in 2²⁴; v must have a direction nevertheless.
    length.masked_fill_(length == 0, 1e-9)
    first, second = loc.unbind(-1)
    return torch.stack((second.neg(), first), -1).mul_(length.unsqueeze(-1)), length.square()


def cosine(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """t from its distances to both ends, as a new tensor."""
    return (one_plus_t - one_minus_t).mul_(0.5)


def place_(v: Tensor, squared_length: Tensor, loc: Tensor, one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """x = tμ + √(1-t²) v/‖v‖, written over v, whose squared length is ``squared_length``."""
    stretch = (one_minus_t * one_plus_t).div_(squared_length).sqrt_()
    t = cosine(one_minus_t, one_plus_t)
    return v.mul_(stretch.unsqueeze(-1)).addcmul_(t.unsqueeze(-1), loc)


def pull_back_loc(grad: Tensor, along: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The gradient in μ by rotation coupling: t g - (g·μ)x, with g the gradient in x and ``along`` = g·μ.

    A change dμ carries x along in the rotation that takes μ to μ + dμ in their plane: dx = t dμ - (x·dμ)μ. It
    has the law of x at the new μ, and less variance than differentiating the projection.
    """
    out = x.new_empty(x.shape)  # contiguous, however ``grad`` is laid out
    return torch.mul(grad, t.unsqueeze(-1), out=out).addcmul_(along.unsqueeze(-1), x, value=-1)


def pull_back_cosine(
    grad: Tensor, along: Tensor, x: Tensor, loc: Tensor, one_minus_t: Tensor, one_plus_t: Tensor
) -> Tensor:
    """The gradient in t with μ and v/‖v‖ held: g·μ - t (g·x - t g·μ)/(1-t²).

    The bracket is the product of the tangential parts of g and x. Taken so, its rounding error is of second
    order; taken as it stands, of first, which the division by 1-t² ~ 1/κ would turn into a bias at large κ.
    """
    t = cosine(one_minus_t, one_plus_t)
    slope = torch.addcmul(grad, along.unsqueeze(-1), loc, value=-1)
    offset = torch.addcmul(x, t.unsqueeze(-1), loc, value=-1)
    squared_sine = (one_minus_t * one_plus_t).clamp_(min=torch.finfo(t.dtype).tiny)
    return along - row_dot(slope, offset).mul_(t).div_(squared_sine)
