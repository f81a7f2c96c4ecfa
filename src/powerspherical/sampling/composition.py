"""Draws and their gradients as torch operations: for families of one's own, and where there is no kernel.

We avoid matrix products: they depend on settings that must not affect a sampler (autocast, TF32,
``torch.set_float32_matmul_precision``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from powerspherical._torch.random import standard_gamma
from powerspherical._torch.vectors import unit_vectors_as
from powerspherical.families import family_named
from powerspherical.kernels.layout import in_dtype_of
from powerspherical.kernels.registry import DrawOptions, Gradients, Tensors
from powerspherical.quadrature.cosine import Cosine

#: Up to this dimension a tangent vector may be short. Its part along μ is then subtracted twice: the rounding error of
#: the first time would change ‖x‖ by eps/‖v‖.
_SHORT_DIM = 8


def tangent_gaussian(loc: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a standard normal vector v = ε - (ε·μ)μ in the tangent space at each unit vector μ of ``loc`` (…, d).

    Returns v and S = ‖v‖² > 0. S ~ χ²_{d-1} is independent of v/‖v‖, so a family may use S to draw t.
    """
    if loc.shape[-1] == 2:  # the tangent space is spanned by (-μ₂, μ₁), so no projection is needed
        length = torch.empty(loc.shape[:-1], dtype=loc.dtype, device=loc.device).normal_(generator=generator)
        # torch's float32 normals are exactly 0 once in 2²⁴, but v needs a direction.
        length.masked_fill_(length == 0, 1e-9)
        first, second = loc.unbind(-1)
        return torch.stack((-second, first), -1).mul_(length.unsqueeze(-1)), length.square()
    v = torch.empty_like(loc, memory_format=torch.contiguous_format).normal_(generator=generator)
    for _ in range(2 if loc.shape[-1] <= _SHORT_DIM else 1):
        v.addcmul_((v * loc).sum(-1, keepdim=True), loc, value=-1)
    return v, torch.linalg.vector_norm(v, dim=-1).square()


def draw(tensors: Tensors, options: DrawOptions, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return points x in the dtype of ``loc``, and (x, scalars) if a gradient is needed. See ``native.draw``."""
    (loc, kappa), (family, dim, shape, generator, _) = tensors, options
    unit, kappa = unit_vectors_as(loc, kappa.dtype).expand(*shape, -1), _finite(kappa).expand(shape)
    v, squared_length = tangent_gaussian(unit, generator)
    chi_squared = squared_length
    if dim != loc.shape[-1]:
        chi_squared = standard_gamma(torch.full_like(squared_length, (dim - 1) / 2), generator).mul_(2)
    t, noise = family_named(family).draw_cosine(chi_squared, kappa, dim, generator)
    stretch = (t.minus / squared_length * t.plus).sqrt_()
    x = v.mul_(stretch.unsqueeze(-1)).addcmul_((t.plus - t.minus).unsqueeze(-1), unit, value=0.5)
    x = x.to(loc.dtype)
    return x, (x, torch.stack((*t, noise))) if any(needed) else ()


def draw_gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: DrawOptions
) -> Gradients:
    """Return the gradients in ``loc`` and in κ, given the gradient g (…, d) in x. See ``native.draw_gradients``.

    - In ``loc``: t g - (g·μ)x, by rotation coupling. The rotation that takes μ to μ + dμ in their plane moves x by
      dx = t dμ - (x·dμ)μ. This gradient has less variance than that of the projection.
    - In κ, the sum over its rows of w((1-t²) g·μ - t(g·x - t g·μ)), where w is (dt/dκ)/(1-t²). As t changes, x moves
      along the meridian through μ and v/‖v‖.
    """
    (grad,), (loc, kappa), (x, scalars), (family, dim, *_) = grads, tensors, kept, options
    assert grad is not None
    minus, plus, _ = scalars
    unit = unit_vectors_as(loc, kappa.dtype)
    grad, x, cosine = grad.to(kappa.dtype), x.to(kappa.dtype), 0.5 * (plus - minus).unsqueeze(-1)
    along = (grad * unit).sum(-1, keepdim=True)
    in_loc = in_kappa = None
    if needed[1]:
        slope = slopes(family, scalars, kappa, dim)
        # g·x - t g·μ as the inner product of the tangential parts of g and x, whose rounding error is of second order.
        # The plain difference has a first-order error, which is a bias at large κ, where 1-t² ~ 1/κ.
        across = ((grad - along * unit) * (x - cosine * unit)).sum(-1)
        in_kappa = slope * (minus * plus * along.squeeze(-1) - cosine.squeeze(-1) * across)
        in_kappa = in_kappa.sum_to_size(kappa.shape)
    if needed[0]:
        in_loc = in_dtype_of((cosine * grad - along * x).sum_to_size(loc.shape), loc)
    return in_loc, in_kappa


def slopes(family: str, scalars: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Return d artanh(t)/dκ of each row, given the scalars of ``draw``."""
    minus, plus, noise = scalars
    return family_named(family).slope(Cosine(minus, plus), noise, _finite(kappa).expand(noise.shape), dim)


def _finite(kappa: Tensor) -> Tensor:
    """Return κ with the largest number in place of ∞, where formulas are ∞ - ∞. The points are μ either way."""
    return kappa.clamp(max=torch.finfo(kappa.dtype).max)
