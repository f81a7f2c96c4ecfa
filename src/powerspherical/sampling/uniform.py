"""Draws from the uniform distribution on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.vectors import computing
from powerspherical.families import SPHERICAL_CAUCHY
from powerspherical.sampling.draws import draw


def uniform(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw uniform unit vectors of the given shape (…, d), d ≥ 2.

    Args:
        shape: (…, d).
        dtype, device: of the result. Default: torch's.
        generator: source of the random numbers. Default: torch's generator for the device.

    >>> x = uniform((1000, 3))
    >>> x.shape, x.norm(dim=-1).allclose(torch.ones(1000))
    (torch.Size([1000, 3]), True)
    """
    *batch, dim = shape
    if dim < 2:
        raise ValueError(f"shape must be (…, d) with d ≥ 2 (2 is the circle), got {tuple(shape)}")
    # Made on the device: a copy from the host would be a synchronisation.
    pole = torch.eye(1, dim, dtype=dtype, device=device)[0]
    # The uniform is the member κ = 0 of every family. This one draws it fastest.
    kappa = torch.zeros((), dtype=computing(pole.dtype), device=pole.device)
    return draw(SPHERICAL_CAUCHY, pole, kappa, batch, generator=generator)
