"""Draws from the Power Spherical distribution, density ∝ (1+t)^κ."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from powerspherical.kernels._gamma import LARGE, log_gamma_slope_
from powerspherical.kernels._operator import register, relative_slope
from powerspherical.special import POWER_TILT

#: Rows from which on an expansion of some twenty operations takes no more time than torch's derivative at small shapes.
_MANY = 1 << 14


@functools.lru_cache(1024)
def _half_degrees(dim: int, dtype: torch.dtype) -> Tensor:
    """β = (d-1)/2. For a small batch, making a tensor of a number takes longer than adding it."""
    return torch.tensor(
        (dim - 1) / 2, dtype=dtype, device="cpu"
    )  # such a number goes with tensors of any device


def _draw(
    squared_length: Tensor, concentration: Tensor, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """1-t, 1+t and G, where (1+t)/2 = G/(G + H) ~ Beta(β+κ, β) with G ~ Gamma(β+κ), H ~ Gamma(β), β = (d-1)/2.

    Half the squared length of the tangent Gaussian is that H: ‖v‖² ~ χ²_{d-1}, independent of v/‖v‖.
    """
    shape = concentration + _half_degrees(dim, concentration.dtype)
    # torch draws a number even where the shape is NaN: 0·shape hands the NaN on.
    gamma = torch._standard_gamma(shape, generator).add_(shape, alpha=0)
    del shape  # in low dimensions a number a row is not nothing
    total = gamma.add(squared_length, alpha=0.5)
    half = gamma / total  # 2G may overflow
    return squared_length / total, half.add_(half), gamma


def _derivative(
    one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, concentration: Tensor, dim: int
) -> Tensor:
    """(dt/dκ)/(1-t²). In float64 at a fixed probability, exactly; in float32 at a fixed H, ½ dlog G/dα.

    Both are derivatives of a draw and have the same mean. The second takes torch's own derivative of a Gamma draw, or
    for many rows of large shapes an expansion, right to 1e-3, where the first takes a quadrature; its variance is up to
    twice as large. The expansion takes the same time for all shapes, and less than torch's derivative at small ones.
    """
    if one_minus_t.dtype == torch.float64:
        return relative_slope(POWER_TILT, one_minus_t, one_plus_t, concentration, dim)
    shape = concentration + _half_degrees(dim, concentration.dtype)
    if (dim - 1) / 2 >= LARGE and noise.numel() >= _MANY and noise.is_cpu:
        return log_gamma_slope_(shape.contiguous(), noise).mul_(0.5)  # the noise is G
    return torch._standard_gamma_grad(shape, noise).div_(noise + noise)


_sample = register("power_spherical", _draw, _derivative)


def power_spherical(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int] | None = None,
    dim: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points x of the unit sphere with density ∝ (1 + μᵀx)^κ, differentiable once in both arguments.

    Args:
        loc: the mean directions μ, unit vectors, of shape (…, d), of any floating dtype.
        concentration: κ ≥ 0, of shape (…), float64 where ``loc`` is, else float32; right up to 1e9 and
            beyond. NaN gives NaN.
        shape: batch shape of the draws. Default: the broadcast of ``loc.shape[:-1]`` and ``concentration.shape``.
        dim: dimension used for the law of t = μᵀx. Default: ``loc.shape[-1]``.
        generator: source of the random numbers, on the device of ``loc``. Default: torch's generator of that device.
    """
    return _sample(loc, concentration, shape, dim, generator)
