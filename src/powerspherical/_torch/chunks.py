"""Elementwise functions with many intermediate values per entry, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from powerspherical import engines
from powerspherical._torch.modes import differentiates_through_functions, transforms_active
from powerspherical._torch.private import is_exporting

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])

#: How many entries are computed at a time, each with its quadrature nodes.
CHUNK = 1 << 12


def in_chunks(function: Callable[..., Result], *tensors: Tensor, chunk: int = CHUNK) -> Result:
    """Apply an elementwise ``function`` to tensors of one shape, ``chunk`` entries at a time.

    The backward pass computes each chunk again instead of storing its intermediate values. An exported program has no
    chunks: their number would fix the batch size.
    """
    shape, chunk = tensors[0].shape, min(chunk, engines.largest_block)
    if is_exporting() or tensors[0].numel() <= chunk:
        return function(*tensors)
    # Checkpoints use hooks, which torch.func and forward-mode AD do not support.
    keep_all = not torch.is_grad_enabled() or transforms_active() or differentiates_through_functions()
    parts = []
    for part in zip(*(x.reshape(-1).split(chunk) for x in tensors), strict=True):
        if keep_all:
            parts.append(function(*part))
        else:
            parts.append(checkpoint(function, *part, use_reentrant=False, preserve_rng_state=False))
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).reshape(shape)
    first, second = (torch.cat(part).reshape(shape) for part in zip(*parts, strict=True))
    return first, second
