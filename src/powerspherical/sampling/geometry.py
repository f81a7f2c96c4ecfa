"""The part of a draw that all families share: tangent directions, the point x for a cosine t, and its gradients.

- Large batches are limited by memory traffic, so we work in place on one (…, d) buffer.
- Small batches are limited by the number of operations. An operation with a Python number costs twice as much, because
  torch makes a tensor of it first.
- We avoid matrix products: they depend on settings that must not affect a sampler (autocast, TF32,
  ``torch.set_float32_matmul_precision``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from powerspherical.engines import block_size
from powerspherical.sampling.native import standard_normals
from powerspherical.sampling.precision import unit_vectors_as

#: Elements per block of a CPU tensor.
_BLOCK = 1 << 17

#: Up to these dimensions ``tangent_gaussian`` projects explicitly, and projects twice.
_PROJECT_DIM, _PROJECT_TWICE_DIM = 16, 8


def _blocks(first: Tensor, *others: Tensor, most: int = 16) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of the same rows of tensors (…, d) and (…), one block of rows at a time on the CPU.

    Results of a block stay in the cache and need little memory. With several threads there are at most about ``most``
    blocks, because the threads wait for each other at the end of each operation.
    """
    size = block = first.numel()
    least = block_size(_BLOCK)
    if size > least and first.dim() > 1 and first.is_cpu:
        block = least if torch.get_num_threads() == 1 else max(size // most, least)
    if size <= block:
        yield first, *others
        return
    # Split along the first axis. Flattening could copy, because a tensor may be an expanded view.
    inner = size // first.shape[0]
    if inner > block and first.dim() > 2:
        for index in range(first.shape[0]):
            yield from _blocks(first[index], *(x[index] for x in others), most=most)
    else:
        rows = max(block // inner, 1)
        yield from zip(first.split(rows), *(x.split(rows) for x in others), strict=True)


def _by_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a ``function`` of tensors (…, d) and (…) that returns (…), block by block."""
    if tensors[0].numel() <= block_size(_BLOCK):
        return function(*tensors)
    out = tensors[0].new_empty(tensors[0].shape[:-1])
    for *blocks, result in _blocks(*tensors, out):
        result.copy_(function(*blocks))
    return out


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products (…) of two tensors (…, d) of the same shape."""
    return _by_rows(_row_dot, a, b)


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def tangent_gaussian(loc: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Draw a standard normal vector v = ε - (ε·μ)μ in the tangent space at each unit vector μ of ``loc`` (…, d).

    Returns (ε, ε·μ, S) with S = ‖v‖² > 0. ``place_`` subtracts (ε·μ)μ later, which saves a pass over memory. In low
    dimensions, returns (v, None, S). S ~ χ²_{d-1} is independent of v/‖v‖, so a family may use S to draw t.
    """
    dim = loc.shape[-1]
    if dim == 2:
        v, squared_length = _circle_tangent(loc, generator)
        return v, None, squared_length
    noise = standard_normals(loc.shape, loc, generator)
    if dim > _PROJECT_DIM:
        along = row_dot(noise, loc)
        return noise, along, _squared_length(noise).addcmul_(along, along, value=-1)
    # In low dimensions v may be short, and then ‖ε‖² - (ε·μ)² loses digits. Also, ε - (ε·μ)μ has a rounding error of
    # about eps|ε·μ| along μ, which changes ‖x‖ by eps/‖v‖. In the lowest dimensions a second projection removes it.
    for _ in range(2 if dim <= _PROJECT_TWICE_DIM else 1):
        noise.addcmul_(row_dot(noise, loc).unsqueeze(-1), loc, value=-1)
    return noise, None, _squared_length(noise)


def _squared_length(v: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(v, dim=-1)
    return length.mul_(length)


def _circle_tangent(loc: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw v and ‖v‖² on the circle, where the tangent at μ is spanned by (-μ₂, μ₁) and no projection is needed."""
    length = standard_normals(loc.shape[:-1], loc, generator)
    # torch's float32 normals are exactly 0 once in 2²⁴, but v needs a direction.
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
    """Return x = tμ + √(1-t²) v/‖v‖. The first three arguments come from ``tangent_gaussian`` and are overwritten."""
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
    """Return the gradients in ``loc`` and in κ, given the gradient g (…, d) in x.

    - In ``loc``: t g - (g·μ)x, by rotation coupling. The rotation that takes μ to μ + dμ in their plane moves x by
      dx = t dμ - (x·dμ)μ. The moved x has the law at the new μ, and this gradient has less variance than that of the
      projection. None unless ``needs_loc``.
    - In κ, one number per row: s((1-t²) g·μ - t(g·x - t g·μ)), where ``slope`` is s = (dt/dκ)/(1-t²). As t changes,
      x moves along the meridian through μ and v/‖v‖. The result overwrites ``slope``. None if ``slope`` is None.

    Half-precision ``loc`` is converted and normalised first, as in the draw.
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
        if loc.dtype != dtype:  # the gradient is tangential, so normalising loc only scales it
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
    """Compute ``pull_back`` for one block: write the gradient in ``loc`` to ``grad_loc`` and that in κ to ``slope``."""
    along = _row_dot(grad, loc)
    double_t = one_plus_t - one_minus_t
    along_column, double_t_column = along.unsqueeze(-1), double_t.unsqueeze(-1)
    if slope is not None:
        # g·x - t g·μ as the inner product of the tangential parts of g and x, whose rounding error is of second order.
        # The plain difference has a first-order error, which is a bias at large κ, where 1-t² ~ 1/κ.
        across = torch.addcmul(grad, along_column, loc, value=-1, out=grad_loc)
        across = across.mul_(torch.addcmul(x, double_t_column, loc, value=-0.5)).sum(-1)
        squared_sine = one_minus_t * one_plus_t
        slope.mul_(squared_sine.mul_(along).addcmul_(double_t, across, value=-0.5))
    if grad_loc is not None:
        along.neg_()
        torch.mul(x, along_column, out=grad_loc).addcmul_(double_t_column, grad, value=0.5)
