"""Random numbers: Gamma draws, seeds, and checks of the caller's generator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from powerspherical._torch import private
from powerspherical._torch.precision import has_float64


def standard_gamma(shape: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw one Gamma variable per entry of ``shape``, the shape parameter. NaN parameters give NaN."""
    # torch draws a number even if the parameter is NaN. Adding 0·shape propagates the NaN.
    # Before 2.13 torch has no such function for Apple's GPUs.
    draw = (private.standard_gamma if has_float64(shape.device) else None) or _gamma_by_rejection
    return draw(shape, generator=generator).add_(shape, alpha=0)


def uniform_doubles(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw float64 numbers, uniform in (0, 1), of the shape of ``like``: on its device if that has float64."""
    if not has_float64(like.device):  # two numbers with 24 bits each
        coarse, fine = torch.rand((2, *like.shape), device=like.device, generator=generator).cpu().double()
        return coarse + 2**-24 * fine + 2**-49
    u = torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=generator)
    # torch's uniform numbers are multiples of 2^-53 from 0 on. Moving them to the mid-points avoids 0 and 1.
    return u * (1 - 2**-53) + 2**-54


def _gamma_by_rejection(shape: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw Gamma variables by Marsaglia & Tsang (2000), where torch has no function for it."""
    raised = shape < 1  # a variable of shape+1 times u^(1/shape) has the smaller shape
    scale = (shape + raised.to(shape.dtype) - 1 / 3).flatten()
    result, pending = torch.empty_like(scale), torch.arange(scale.numel(), device=shape.device)
    while pending.numel():
        d = scale[pending]
        z, u = (torch.empty_like(d) for _ in range(2))
        z, u = z.normal_(generator=generator), u.uniform_(generator=generator)
        w = z / (9 * d).sqrt()
        # z²/2 + d(1 - v + log v) with v = (1+w)³. Here the terms of first and second order in w are gone: for a large d
        # they would lose all digits.
        inside = w.clamp(min=-1 + torch.finfo(w.dtype).eps)
        log_acceptance = d * (3 * (torch.log1p(inside) - inside + 0.5 * inside * inside) - inside**3)
        rejected = (w <= -1) | (torch.log(u) >= log_acceptance)  # NaN is not rejected: the loop must end
        result[pending] = d * (1 + w) ** 3
        pending = pending[rejected]
    boost = torch.empty_like(scale).uniform_(generator=generator).view(shape.shape) ** (1 / shape)
    return result.view(shape.shape) * torch.where(raised, boost, 1.0)


def from_generator(generator: torch.Generator | None) -> dict[str, Any]:
    """Return ``generator`` as keyword arguments for torch's random functions, or no arguments if it is None.

    An explicit ``generator=None`` selects an overload that ``torch.compile`` cannot trace for dynamic shapes.
    """
    return {} if generator is None else {"generator": generator}


class KeyedGenerator(torch.Generator):
    """A generator for one draw, with a key of 63 bits for kernels.

    Seeds of torch's CPU generators have 32 bits. The others choose one of 4,093 places in the sequence of that seed.
    """

    def __new__(cls, key: int) -> Self:
        generator = super().__new__(cls)
        generator.manual_seed(key)
        torch.empty((key >> 32) % 4093, device="cpu").uniform_(generator=generator)
        return generator

    def __init__(self, key: int) -> None:
        self.key = key


def check_generator(generator: torch.Generator, device: torch.device) -> None:
    """Raise unless ``generator`` can draw on ``device``."""
    if torch.compiler.is_compiling():
        private.graph_break(
            "torch.compile cannot trace a draw from a torch.Generator. Leave out the generator (compiled draws "
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
