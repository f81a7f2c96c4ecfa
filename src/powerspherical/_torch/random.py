"""Random numbers: Gamma draws, seeds, and checks of the caller's generator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def standard_gamma(shape: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one Gamma variable per entry of ``shape``, the shape parameter. NaN parameters give NaN."""
    # torch draws a number even if the parameter is NaN. Adding 0·shape propagates the NaN.
    return torch._standard_gamma(shape, generator=generator).add_(shape, alpha=0)


def from_generator(generator: torch.Generator | None) -> dict[str, Any]:
    """Return ``generator`` as keyword arguments for torch's random functions, or no arguments if it is None.

    An explicit ``generator=None`` selects an overload that ``torch.compile`` cannot trace for dynamic shapes.
    """
    return {} if generator is None else {"generator": generator}


def check_generator(generator: torch.Generator, device: torch.device) -> None:
    """Raise unless ``generator`` can draw on ``device``."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(
            msg="torch.compile cannot trace a draw from a torch.Generator. Leave out the generator (compiled draws "
            "follow torch.manual_seed), or leave out fullgraph=True."
        )
    if not isinstance(generator, torch.Generator):
        raise ValueError(
            f"generator must be a torch.Generator, got {type(generator).__name__}: {generator!r}; "
            f"use torch.Generator({device.type!r}).manual_seed(seed)"
        )
    found = generator.device
    # A generator for "cuda" without an index works on any GPU.
    if found.type != device.type or found.index not in (None, device.index):
        raise ValueError(
            f"generator is on {found}, but the draws are on {device}: use torch.Generator({str(device)!r})"
        )
