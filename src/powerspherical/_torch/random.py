"""Gamma variables with a generator: torch has them as private functions only."""

from __future__ import annotations

import torch
from torch import Tensor


def standard_gamma(shape: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One Gamma variable for each entry of ``shape``, its shape parameter; NaN where that is NaN."""
    # torch draws a number even where the shape is NaN: adding 0·shape hands the NaN on.
    return torch._standard_gamma(shape, generator=generator).add_(shape, alpha=0)


def standard_gamma_slope(shape: Tensor, gamma: Tensor) -> Tensor:
    """dG/dα of Gamma variables G of shape α at a fixed probability; relative error up to 1e-3."""
    return torch._standard_gamma_grad(shape, gamma)
