"""Devices without float64, such as Apple's GPUs (``mps``): what needs float64 is computed on the CPU there.

On other devices these functions do nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.private import F

#: The type of such devices.
WITHOUT_FLOAT64 = "mps"


def has_float64(device: torch.device) -> bool:
    """Whether a device has float64."""
    return device.type != WITHOUT_FLOAT64


def with_float64(x: Tensor) -> Tensor:
    """Return x on a device that has float64: x itself, or a copy on the CPU; differentiable."""
    return x if has_float64(x.device) else x.cpu()


def back(value: Tensor, like: Tensor) -> Tensor:
    """Return ``value`` on the device of ``like``, from which ``with_float64`` may have moved it; differentiable."""
    return value if has_float64(like.device) else value.to(like.device)


def needs_float64(function: F) -> F:
    """Decorate a function of tensors so that it may compute in float64, and returns tensors on their device.

    Arguments and results may be tuples of tensors, such as a ``Cosine``. The results must not be float64.
    """

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        devices = [x.device for x in args if isinstance(x, Tensor) and x.device.type == WITHOUT_FLOAT64]
        if not devices:
            return function(*args)
        found = function(*(_mapped(Tensor.cpu, x) for x in args))
        return _mapped(lambda x: x.to(devices[0]), found)

    return wrapped  # type: ignore[return-value]


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to a tensor or to each tensor of a tuple. Return anything else as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if not isinstance(value, tuple):
        return value
    parts = [_mapped(function, x) for x in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
