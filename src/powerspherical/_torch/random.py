"""Random numbers from the caller's generator, and Gamma draws, which torch has only as private functions.

A compiler cannot fuse torch's Gamma draws with other operations, because they are rejection loops. For it we write the
first attempts of such a loop as torch operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.modes import is_compiling

#: Attempts of a compiled Gamma draw. From shape 1 on each one is accepted with a probability of at least 0.952, so that
#: all six fail once in 10⁸ draws, and once in 10¹⁰ from shape 2 on. Such a draw keeps its last candidate.
_ATTEMPTS = 6


def standard_gamma(shape: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one Gamma variable per entry of ``shape``, the shape parameter. NaN parameters give NaN.

    While ``torch.compile`` traces the call, it is a sequence of elementwise operations that the compiler can fuse.
    """
    if is_compiling():
        return _fusible_gamma(shape)
    # torch draws a number even if the parameter is NaN. Adding 0·shape propagates the NaN.
    return torch._standard_gamma(shape, generator=generator).add_(shape, alpha=0)


def _fusible_gamma(shape: Tensor) -> Tensor:
    """Draw Gamma variables with a fixed number of attempts, after Marsaglia & Tsang (2000).

    With d = shape - 1/3 a candidate is d(1+w)³, where w = z/√(9d) and z is normal. Its acceptance probability is
    exp(3d(log(1+w) - w + w²/2 - w³/3)). For shapes below 1, Gamma(shape) = Gamma(shape + 1) · U^{1/shape}.
    """
    small = shape < 1
    d = torch.where(small, shape + 1, shape) - 1 / 3
    scale = torch.rsqrt(9 * d)
    value, pending = d, torch.ones_like(shape, dtype=torch.bool)
    for _ in range(_ATTEMPTS):
        w = torch.randn_like(shape) * scale
        inside = w > -1
        w = torch.where(inside, w, 0.0)
        accepted = inside & (torch.log(torch.rand_like(shape)) < 3 * d * _log1p_remainder(w))
        value = torch.where(pending, d * (1 + w) ** 3, value)
        pending = pending & ~accepted
    return torch.where(small, value * torch.exp(torch.log(torch.rand_like(shape)) / shape), value)


def _log1p_remainder(w: Tensor) -> Tensor:
    """Return log(1+w) - w + w²/2 - w³/3 in float32. Near 0, where the terms cancel, by its power series."""
    near = w.abs() < 0.25
    s = torch.where(near, w, 0.0)
    series = torch.full_like(s, 1 / 10)
    for n in range(9, 3, -1):
        series = series * -s + 1 / n
    far = torch.where(near, 1.0, w)
    return torch.where(near, -series * s**4, torch.log1p(far) - far + far * far * (0.5 - far / 3))


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
