"""Queries about how the current call is run: a transform, tracing, capture or forward-mode AD."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from powerspherical._torch import TORCH, private
from powerspherical._torch.private import untraced


@untraced
def transforms_active() -> bool:
    """Whether a ``torch.func`` transform is running."""
    return private.transforms_active()


@untraced
def is_transformed() -> bool:
    """Whether a ``torch.func`` transform or forward-mode AD is running."""
    return private.transforms_active() or private.forward_mode_level() >= 0


@untraced
def is_exporting_to_onnx() -> bool:
    """Whether ``torch.onnx.export`` is tracing the call. Before torch 2.8 it is False."""
    return private.is_exporting() and torch.onnx.is_in_onnx_export()


def differentiates_through_functions() -> bool:
    """Whether the backward of an ``autograd.Function`` is ignored.

    Forward-mode AD ignores it. So do transforms inside ``torch.compile``: they differentiate the traced ``forward``.
    """
    return is_transformed() if is_compiling() else private.forward_mode_level() >= 0


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured on the tensor's stream."""
    if not tensor.is_cuda:
        return False
    with torch.cuda.device(tensor.device):
        return torch.cuda.is_current_stream_capturing()


def can_look() -> bool:
    """Whether the host can read tensor values now: not while tracing, capturing a CUDA graph or batching by vmap."""
    if is_compiling() or private.dispatch_modes():  # FakeTensorMode is such a mode
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return not private.is_batching()


def booleans(flags: Tensor) -> list[bool]:
    """Return ``flags.tolist()``, which before torch 2.9 fails under the transforms of ``torch.func``."""
    if TORCH < (2, 9) and private.transforms_active():
        return [bool(flag) for flag in flags]
    return flags.tolist()


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which matrix products on the tensor's device keep their dtype."""
    device = "cpu" if tensor.is_meta else tensor.device.type  # the meta device has no autocast
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
