"""Elementwise functions with many intermediate values a row, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])

#: Rows whose quadrature nodes are held in memory at a time.
CHUNK = 1 << 12


def in_chunks(function: Callable[..., Result], *rows: Tensor) -> Result:
    """``function`` of tensors of one shape, elementwise over them; if differentiated, it is run again in backward."""
    shape = rows[0].shape
    if rows[0].numel() <= CHUNK:
        return function(*rows)
    # torch.func refuses the hooks by which a checkpoint works.
    keep_all = not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
    parts = []
    for chunk in zip(*(row.reshape(-1).split(CHUNK) for row in rows), strict=True):
        if keep_all:
            parts.append(function(*chunk))
        else:
            parts.append(checkpoint(function, *chunk, use_reentrant=False, preserve_rng_state=False))
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).reshape(shape)
    first, second = (torch.cat(part).reshape(shape) for part in zip(*parts, strict=True))
    return first, second
