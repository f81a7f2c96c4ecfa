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
    """Draw uniform unit vectors of the given shape (…, d), as normalised Gaussian vectors.

    Args:
        shape: (…, d).
        dtype, device: of the result. Default: torch's.
        generator: source of the random numbers. Default: torch's generator for the device.

    >>> x = uniform((1000, 3))
    >>> x.shape, x.norm(dim=-1).allclose(torch.ones(1000))
    (torch.Size([1000, 3]), True)
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
