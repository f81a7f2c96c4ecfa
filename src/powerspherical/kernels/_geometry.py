"""The part of a draw that every family shares: directions, the point x from t, and the way back.

Written with in-place operations on one (…, d) buffer: for large batches the memory traffic, not the
arithmetic, is what a draw costs beyond its Gaussian noise. No matrix product is used, because those follow
settings that must not reach a sampler (autocast, TF32, ``torch.set_float32_matmul_precision``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical.kernels.precision import unit_vectors_as

#: Elements of a CPU tensor that ``_by_rows`` treats at a time: what is computed from them stays in the cache.
_BLOCK = 1 << 17

#: Up to this dimension v may be so short that the rounding of its projection shows, see ``tangent_gaussian``.
_PROJECT_TWICE = 8


def _by_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``function`` from tensors (…, d), and rows (…), to rows (…); on the CPU a block of rows at a time."""
    first = tensors[0]
    if first.numel() <= _BLOCK or first.dim() == 1 or first.device.type != "cpu":
        return function(*tensors)
    # Block by block along the first axis. Flattening instead could copy: a tensor may be an expanded view.
    out = first.new_empty(first.shape[:-1])
    inner = first.numel() // first.shape[0]
    if inner > _BLOCK and first.dim() > 2:
        for index in range(first.shape[0]):
            out[index] = _by_rows(function, *(x[index] for x in tensors))
    else:
        rows = max(_BLOCK // inner, 1)
        for result, *blocks in zip(out.split(rows), *(x.split(rows) for x in tensors), strict=True):
            result.copy_(function(*blocks))
    return out


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner products over the last axis of two tensors of the same shape."""
    return _by_rows(lambda x, y: (x * y).sum(-1), a, b)


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


def pull_back(
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    slope: Tensor | None,
    *,
    needs_loc: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """From the gradient in x to that in ``loc``, in its shape, and that in κ, of each row; ``slope`` is dt/dκ.

    Each is there where it is needed, the second where there is a slope. A loc of half precision is normalised to the
    digits of the rows first, as in the draw.
    """
    dtype = one_minus_t.dtype
    unit = unit_vectors_as(loc, dtype).expand(x.shape)
    grad, x = grad.to(dtype), x.to(dtype)
    along = row_dot(grad, unit)
    t = cosine(one_minus_t, one_plus_t)
    grad_loc = grad_concentration = None
    if slope is not None:
        across = _by_rows(_tangential_product, grad, x, unit, along, t)
        grad_concentration = pull_back_cosine(along, across, t, one_minus_t * one_plus_t).mul_(slope)
    if needs_loc:
        grad_loc = pull_back_loc(grad, along, x, t).sum_to_size(loc.shape)
        if loc.dtype != dtype:  # the gradient is tangential: normalising only scales it
            grad_loc = grad_loc.div_(torch.linalg.vector_norm(loc.to(dtype), dim=-1, keepdim=True))
        grad_loc = grad_loc.to(loc.dtype)
    return grad_loc, grad_concentration


def pull_back_loc(grad: Tensor, along: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The gradient in μ by rotation coupling: t g - (g·μ)x, with g the gradient in x and ``along`` = g·μ.

    A change dμ carries x along in the rotation that takes μ to μ + dμ in their plane: dx = t dμ - (x·dμ)μ. It
    has the law of x at the new μ, and less variance than differentiating the projection.
    """
    out = x.new_empty(x.shape)  # contiguous, however ``grad`` is laid out
    return torch.mul(grad, t.unsqueeze(-1), out=out).addcmul_(along.unsqueeze(-1), x, value=-1)


def _tangential_product(grad: Tensor, x: Tensor, loc: Tensor, along: Tensor, t: Tensor) -> Tensor:
    """The product of the tangential parts of g and x, which is g·x - t g·μ.

    Taken so, its rounding error is of second order; taken as it stands, of first, which the division by 1-t² ~ 1/κ
    would turn into a bias at large κ.
    """
    slope = torch.addcmul(grad, along.unsqueeze(-1), loc, value=-1)
    offset = torch.addcmul(x, t.unsqueeze(-1), loc, value=-1)
    return slope.mul_(offset).sum(-1)


def pull_back_cosine(along: Tensor, across: Tensor, t: Tensor, squared_sine: Tensor) -> Tensor:
    """The gradient in t with μ and v/‖v‖ held: g·μ - t (g·x - t g·μ)/(1-t²), the bracket being ``across``."""
    return along - across * t / squared_sine.clamp(min=torch.finfo(t.dtype).tiny)
