"""Draws and their gradients as torch operations: for families of one's own, and where there is no kernel.

We avoid matrix products: they depend on settings that must not affect a sampler (autocast, TF32,
``torch.set_float32_matmul_precision``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.vectors import unit_vectors_as
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


def placed(v: Tensor, squared_length: Tensor, loc: Tensor, t: Cosine) -> Tensor:
    """Return x = tμ + √(1-t²) v/‖v‖. Overwrites v."""
    stretch = (t.minus / squared_length * t.plus).sqrt_()
    return v.mul_(stretch.unsqueeze(-1)).addcmul_((t.plus - t.minus).unsqueeze(-1), loc, value=0.5)


def pull_back(
    grad: Tensor, x: Tensor, loc: Tensor, t: Cosine, slope: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients in ``loc`` and in κ, given the gradient g (…, d) in x.

    - In ``loc``: t g - (g·μ)x, by rotation coupling. The rotation that takes μ to μ + dμ in their plane moves x by
      dx = t dμ - (x·dμ)μ. The moved x has the law at the new μ, and this gradient has less variance than that of the
      projection.
    - In κ, one number per row: w((1-t²) g·μ - t(g·x - t g·μ)), where ``slope`` is w = (dt/dκ)/(1-t²). As t changes, x
      moves along the meridian through μ and v/‖v‖. None if ``slope`` is None.

    Half-precision ``loc`` is converted and normalised first, as in the draw.
    """
    dtype = t.dtype
    unit = unit_vectors_as(loc, dtype)
    grad, x, cosine = grad.to(dtype), x.to(dtype), 0.5 * (t.plus - t.minus).unsqueeze(-1)
    along = (grad * unit).sum(-1, keepdim=True)
    in_kappa = None
    if slope is not None:
        # g·x - t g·μ as the inner product of the tangential parts of g and x, whose rounding error is of second order.
        # The plain difference has a first-order error, which is a bias at large κ, where 1-t² ~ 1/κ.
        across = ((grad - along * unit) * (x - cosine * unit)).sum(-1)
        in_kappa = slope * (t.minus * t.plus * along.squeeze(-1) - cosine.squeeze(-1) * across)
    in_loc = (cosine * grad - along * x).sum_to_size(loc.shape)
    if loc.dtype != dtype:  # the gradient is tangential, so normalising loc only scales it
        in_loc = (in_loc / torch.linalg.vector_norm(loc.to(dtype), dim=-1, keepdim=True)).to(loc.dtype)
    return in_loc, in_kappa
