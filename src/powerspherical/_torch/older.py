"""What older versions of torch lack or get wrong. Each function names the version from which on it can go."""

from __future__ import annotations

from torch import Tensor

from powerspherical._torch import TORCH
from powerspherical._torch.private import F, transforms_active, untraced


def booleans(flags: Tensor) -> list[bool]:
    """Return ``flags.tolist()``, which before torch 2.9 fails under the transforms of ``torch.func``."""
    if TORCH < (2, 9) and transforms_active():
        return [bool(flag) for flag in flags]
    return flags.tolist()


def untraced_number(function: F) -> F:
    """Decorate a function that returns a float: ``untraced``, but for torch 2.6, whose compiler fails on the result."""
    return function if TORCH < (2, 7) else untraced(function)
