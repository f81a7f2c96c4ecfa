"""Working precision: float64 and float32 compute in themselves, half precision in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def computing(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtype`` are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_vectors_as(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert unit vectors to ``dtype``. A conversion to higher precision normalises them again."""
    if value.dtype == dtype:
        return value
    converted = value.to(dtype)
    if torch.finfo(dtype).eps < torch.finfo(value.dtype).eps:
        return torch.nn.functional.normalize(converted, dim=-1)
    return converted
