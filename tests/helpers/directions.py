"""Random unit vectors."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(
    *shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int | None = None
) -> Tensor:
    """Return random unit vectors of the given shape (…, d). With a seed, every call returns the same ones."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(noise, dim=-1).to(device, dtype)
