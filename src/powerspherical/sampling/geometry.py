"""The part of a draw that every family shares: directions, the point x from t, and the way back.

Written with in-place operations on one (…, d) buffer: for large batches the memory traffic, not the
arithmetic, is what a draw costs beyond its Gaussian noise. No matrix product is used, because those follow
settings that must not reach a sampler (autocast, TF32, ``torch.set_float32_matmul_precision``). For small batches it is
the number of operations that costs, and those with a Python number, which torch makes a tensor of, cost twice as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from powerspherical.sampling.precision import unit_vectors_as

#: Elements of a CPU tensor that are treated at a time.
_BLOCK = 1 << 17

#: Up to this dimension v may be so short that rounding shows, see ``tangent_gaussian``.
_SHORT, _SHORTEST = 16, 8


def _blocks(first: Tensor, *others: Tensor, most: int = 16) -> Iterator[tuple[Tensor, ...]]:
    """Tensors (…, d) and rows (…), on the CPU a block of rows at a time: views, the same rows of each.

    What is computed from a block stays in the cache, and takes little memory. With several threads there are about
    ``most`` blocks at most: at the end of each operation they wait for each other, and for whoever else holds a core.
    """
    size = block = first.numel()
    if size > _BLOCK and first.dim() > 1 and first.is_cpu:
        block = _BLOCK if torch.get_num_threads() == 1 else max(size // most, _BLOCK)
    if size <= block:
        yield first, *others
        return
    # Block by block along the first axis. Flattening instead could copy: a tensor may be an expanded view.
    inner = size // first.shape[0]
    if inner > block and first.dim() > 2:
        for index in range(first.shape[0]):
            yield from _blocks(first[index], *(x[index] for x in others), most=most)
    else:
        rows = max(block // inner, 1)
        yield from zip(first.split(rows), *(x.split(rows) for x in others), strict=True)


def _by_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``function`` from tensors (…, d), and rows (…), to rows (…), by ``_blocks``."""
    if tensors[0].numel() <= _BLOCK:
        return function(*tensors)
    out = tensors[0].new_empty(tensors[0].shape[:-1])
    for *blocks, result in _blocks(*tensors, out):
        result.copy_(function(*blocks))
    return out


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner products over the last axis of two tensors of the same shape."""
    return _by_rows(_row_dot, a, b)


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def tangent_gaussian(loc: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """A standard normal vector v of the tangent space at each unit vector ``loc``: ε, ε·μ and S = ‖v‖² > 0.

    ``place_`` subtracts (ε·μ)μ later, which saves a pass over memory. In low dimensions, returns (v, None, S).
    S ~ χ²_{d-1} and v/‖v‖ are independent, so a family may use S up in the draw of t.
    """
    dim = loc.shape[-1]
    if dim == 2:
        v, squared_length = _circle_tangent(loc, generator)
        return v, None, squared_length
    # Contiguous, also where loc is not.
    contiguous = loc.is_contiguous()
    noise = (
        torch.randn_like(loc, generator=generator)
        if contiguous
        else torch.randn(loc.shape, dtype=loc.dtype, device=loc.device, generator=generator)
    )
    if dim > _SHORT:
        along = row_dot(noise, loc)
        return noise, along, _squared_length(noise).addcmul_(along, along, value=-1)
    # In low dimensions v may be short. ‖ε‖² - (ε·μ)² would lose digits then, and ε - (ε·μ)μ leaves a rounding error of
    # about eps|ε·μ| along μ, by which ‖x‖ is off by eps/‖v‖: in the lowest, projecting the result again removes it.
    for _ in range(2 if dim <= _SHORTEST else 1):
        noise.addcmul_(row_dot(noise, loc).unsqueeze(-1), loc, value=-1)
    return noise, None, _squared_length(noise)


def _squared_length(v: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(v, dim=-1)
    return length.mul_(length)


def _circle_tangent(loc: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """On the circle the tangent at μ is the line of (-μ₂, μ₁): no projection, no rounding."""
    length = torch.randn(loc.shape[:-1], dtype=loc.dtype, device=loc.device, generator=generator)
    # torch's float32 normals are exactly 0 once in 2²⁴; v must have a direction nevertheless.
    length.masked_fill_(length == 0, 1e-9)
    first, second = loc.unbind(-1)
    return torch.stack((second.neg(), first), -1).mul_(length.unsqueeze(-1)), length.square()


def place_(
    noise: Tensor,
    along: Tensor | None,
    squared_length: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
) -> Tensor:
    """x = tμ + √(1-t²) v/‖v‖, written over the noise; the first three, used up, are what ``tangent_gaussian`` gave."""
    stretch = torch.div(one_minus_t, squared_length, out=squared_length).mul_(one_plus_t).sqrt_()
    double_t = one_plus_t - one_minus_t
    if along is not None:
        double_t.addcmul_(stretch, along, value=-2)
    for block, *rows, directions in _blocks(noise, stretch, double_t, loc, most=1):
        factor, double = (x.unsqueeze(-1) for x in rows)
        block.mul_(factor).addcmul_(double, directions, value=0.5)
    return noise


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
    """From the gradient g in x to that in ``loc``, in its shape, and that in κ, of each row.

    The first is t g - (g·μ)x, by rotation coupling: a change dμ carries x along in the rotation that takes μ to μ + dμ
    in their plane, dx = t dμ - (x·dμ)μ. It has the law of x at the new μ, and less variance than differentiating the
    projection. With ``slope`` s = (dt/dκ)/(1-t²), which is written over, the second is s((1-t²) g·μ - t(g·x - t g·μ)):
    as t moves, with μ and v/‖v‖ held, x moves along the meridian. Each is there where it is needed, the second where
    there is a slope. A loc of half precision is normalised to the digits of the rows first, as in the draw.
    """
    dtype = one_minus_t.dtype
    unit = unit_vectors_as(loc, dtype)
    if unit.shape != x.shape:
        unit = unit.expand(x.shape)
    if x.dtype != dtype:
        grad, x = grad.to(dtype), x.to(dtype)
    grad_loc = torch.empty_like(x) if needs_loc else None
    results = [result for result in (grad_loc, slope) if result is not None]
    for point, upstream, mu, minus, plus, *block in _blocks(
        x, grad, unit, one_minus_t, one_plus_t, *results, most=32
    ):
        target = None if grad_loc is None else block[0]
        rate = None if slope is None else block[-1]
        _pull_back_block(point, upstream, mu, minus, plus, target, rate)
    if grad_loc is not None:
        if grad_loc.shape != loc.shape:
            grad_loc = grad_loc.sum_to_size(loc.shape)
        if loc.dtype != dtype:  # the gradient is tangential: normalising only scales it
            grad_loc = grad_loc.div_(torch.linalg.vector_norm(loc.to(dtype), dim=-1, keepdim=True))
            grad_loc = grad_loc.to(loc.dtype)
    return grad_loc, slope


def _pull_back_block(
    x: Tensor,
    grad: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    grad_loc: Tensor | None,
    slope: Tensor | None,
) -> None:
    """``pull_back`` of a few rows: the gradient in ``loc`` is written to ``grad_loc``, that in κ over the slope."""
    along = _row_dot(grad, loc)
    double_t = one_plus_t - one_minus_t
    along_column, double_t_column = along.unsqueeze(-1), double_t.unsqueeze(-1)
    if slope is not None:
        # g·x - t g·μ as the product of the tangential parts of g and x: its rounding error is of second order, and as
        # it stands of first, which at large κ, where 1-t² ~ 1/κ, would be a bias.
        across = torch.addcmul(grad, along_column, loc, value=-1, out=grad_loc)
        across = across.mul_(torch.addcmul(x, double_t_column, loc, value=-0.5)).sum(-1)
        squared_sine = one_minus_t * one_plus_t
        slope.mul_(squared_sine.mul_(along).addcmul_(double_t, across, value=-0.5))
    if grad_loc is not None:
        along.neg_()
        torch.mul(x, along_column, out=grad_loc).addcmul_(double_t_column, grad, value=0.5)
