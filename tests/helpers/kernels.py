"""Six families as the quadrature sees them: log-kernels with scores by autograd, and no closed form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from helpers.examples import FAMILIES
from powerspherical.families import Family
from powerspherical.quadrature.cosine import Cosine


class Kernel(Family):
    """A family of which nothing is known but its log-kernel."""

    name = title = "kernel"
    offset = Family.mode_rapidity  # None: to be searched for

    def __init__(self, function: Callable[[Cosine, Tensor, int], Tensor]) -> None:
        self.function = function

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return self.function(t, kappa, dim)


def squared(t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    return -kappa * t.minus.square()


def mixed(t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """A Power Spherical plus a von Mises–Fisher kernel of 3κ."""
    return torch.logaddexp(-kappa * torch.log1p(t.minus / t.plus), -3 * kappa * t.minus)


def pole(t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """A von Mises–Fisher kernel with a pole at the antipode."""
    return -kappa * t.minus - 0.3 * kappa / (1 + kappa) * torch.log(t.plus / 2)


KERNELS = {
    **{cls.family.name: Kernel(cls.family.log_kernel) for cls in FAMILIES},
    **{function.__name__: Kernel(function) for function in (squared, mixed, pole)},
}
