"""Elementwise functions with many intermediate values per row, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from powerspherical._torch.modes import differentiates_through_functions, transforms_active

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])

#: Rows whose quadrature nodes are held in memory at a time.
CHUNK = 1 << 12


def in_chunks(function: Callable[..., Result], *rows: Tensor, chunk: int = CHUNK) -> Result:
    """``function`` of tensors of one shape, elementwise, ``chunk`` rows at a time; run again in the backward pass."""
    shape = rows[0].shape
    if rows[0].numel() <= chunk:
        return function(*rows)
    # Checkpoints work by hooks, which torch.func and forward-mode AD refuse.
    keep_all = not torch.is_grad_enabled() or transforms_active() or differentiates_through_functions()
    parts = []
    for part in zip(*(row.reshape(-1).split(chunk) for row in rows), strict=True):
        if keep_all:
            parts.append(function(*part))
        else:
            parts.append(checkpoint(function, *part, use_reentrant=False, preserve_rng_state=False))
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).reshape(shape)
    first, second = (torch.cat(part).reshape(shape) for part in zip(*parts, strict=True))
    return first, second
