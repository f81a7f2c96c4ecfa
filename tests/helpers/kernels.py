"""Six families as the quadrature sees them: log-kernels, functions of κ, and no other closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helpers.examples import FAMILIES
from powerspherical.families import Family
from powerspherical.quadrature.cosine import Cosine


def kernel(function: Callable[[Cosine, Tensor, int], Tensor], **known: Any) -> Family:
    """Return a family with this log-kernel. Nothing else is known of it but ``known``."""

    def log_kernel(self: Family, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return function(t, kappa, dim)

    return type(
        "Kernel", (Family,), {"name": "kernel", "title": "kernel", "log_kernel": log_kernel, **known}
    )()


def squared(t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    return -kappa * t.minus.square()


def mixed(t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """A Power Spherical plus a von Mises–Fisher kernel of 3κ."""
    return torch.logaddexp(-kappa * torch.log1p(t.minus / t.plus), -3 * kappa * t.minus)


def pole(t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """A von Mises–Fisher kernel with a pole at the antipode."""
    return -kappa * t.minus - 0.3 * kappa / (1 + kappa) * torch.log(t.plus / 2)


KERNELS = {
    **{
        cls.family.name: kernel(
            cls.family.log_kernel, key=cls.family.key, offset=staticmethod(cls.family.offset)
        )
        for cls in FAMILIES
    },
    **{function.__name__: kernel(function) for function in (squared, mixed, pole)},
}
