"""Draws from the uniform distribution on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.random import check_generator, from_generator


def uniform(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw uniform unit vectors, as normalised Gaussian vectors.

    Args:
        shape: shape (…, d) of the result.
        dtype: a floating dtype. Default: torch's default dtype.
        device: default: torch's default device.
        generator: source of the random numbers. Default: torch's generator for the device.

    >>> import torch
    >>> x = uniform((5, 3), dtype=torch.float64)
    >>> x.shape, torch.allclose(x.norm(dim=-1), torch.ones(5, dtype=torch.float64))
    (torch.Size([5, 3]), True)
    """
    if generator is not None:
        check_generator(generator, torch.empty(0, device=device).device)
    with torch.no_grad():
        noise = torch.randn(shape, dtype=dtype, device=device, **from_generator(generator))
        norm = torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
        # torch's float32 normals can be exactly 0. A zero vector is replaced by the first unit vector.
        missing = (norm == 0).to(noise.dtype)
        noise[..., :1].add_(missing)
        return noise.div_(norm.add_(missing))
