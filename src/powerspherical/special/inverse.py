"""The concentration that gives a wanted divergence from the uniform."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerspherical.special.tilt import Tilt

_STEPS = 5  # from the guess to rounding, for d up to 1e7 and nats from 1e-300 on


class _FromRelativeEntropy(torch.autograd.Function):
    """Newton's method on log KL(κ) = log nats in log κ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(nats: Tensor, tilt: Tilt, dim: int) -> Tensor:
        # In float64: e^{nats/β} magnifies the rounding of nats.
        target = nats.double()
        zero = target == 0
        safe = torch.where(zero, 1.0, target)
        kappa = tilt.concentration_guess(safe, dim)
        for _ in range(_STEPS):
            divergence = tilt.relative_entropy(kappa, dim)
            slope = kappa * kappa * tilt.variance_statistic(kappa, dim)
            kappa = kappa * torch.exp(divergence / slope * torch.log(safe / divergence))
        return torch.where(zero, 0.0, kappa).to(nats.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tilt, int], output: Tensor) -> None:
        _, ctx.tilt, ctx.dim = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        return grad / (kappa * ctx.tilt.variance_statistic(kappa, ctx.dim)), None, None


def concentration_from_relative_entropy(tilt: Tilt, nats: Tensor, dim: int) -> Tensor:
    """The κ ≥ 0 with KL(p‖U) = nats; differentiable twice for nats > 0 (the derivative at 0 is infinite).

    NaN where nats < 0.
    """
    return _FromRelativeEntropy.apply(nats, tilt, dim)
