"""Which dtype arguments are computed in: float64 and float32 in themselves, half precision in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def computing(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_vectors_as(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Unit vectors in ``dtype``; after a conversion to more digits they are normalised to these digits."""
    if value.dtype == dtype:
        return value
    converted = value.to(dtype)
    if torch.finfo(dtype).eps < torch.finfo(value.dtype).eps:
        return torch.nn.functional.normalize(converted, dim=-1)
    return converted
