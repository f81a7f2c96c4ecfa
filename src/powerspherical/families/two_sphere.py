"""Quantiles on S², the sphere of R³, in closed form.

Power Spherical has P(T ≤ t) = ((1+t)/2)^{κ+1}, and von Mises–Fisher (e^{κ(1+t)} - 1)/(e^{2κ} - 1). Both can be solved
for t. ``formulas.maps`` has the draws, by inversion of the uniform number e^{-S/2}, and ``formulas.slopes`` their
slopes. ``docs/mathematics.md`` derives them.

Tensors have one shape, float32 or float64. The results, 1-t as well as 1+t, are accurate to a few units in the last
place. Only the error of a very small 1+t of Power Spherical is larger: it grows like |log(1+t)|. κ = 0 is the uniform
distribution, and NaN gives NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.elementary import log1p
from powerspherical.formulas.maps import LARGE_KAPPA, power_spherical_ends_3, von_mises_fisher_ends_3


def _squared_length(u: Tensor, complement: Tensor) -> Tensor:
    """The S with e^{-S/2} = u, given u and ``complement`` = 1-u; NaN for u outside [0, 1]."""
    near = complement < 0.5
    log_u = torch.where(near, log1p(-torch.where(near, complement, 0.0)), torch.log(u))
    return torch.where(log_u <= 0, -2 * log_u, torch.nan)


def power_spherical_quantile(u: Tensor, complement: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, given u and ``complement`` = 1-u."""
    return power_spherical_ends_3(_squared_length(u, complement), kappa)


def von_mises_fisher_quantile(u: Tensor, complement: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, given u and ``complement`` = 1-u.

    Unlike ``von_mises_fisher_ends_3``, a small 1+t keeps its digits at any κ: κ(1+t) = log(1 + e^x) with
    x = 2κ + log u + log(1-e^{-2κ}).
    """
    squared_length = _squared_length(u, complement)
    one_minus_t, one_plus_t = von_mises_fisher_ends_3(squared_length, kappa)
    far = (one_minus_t > 1.5) & (kappa >= LARGE_KAPPA)
    large = torch.where(far, kappa, LARGE_KAPPA)
    exponent = 2 * large - 0.5 * squared_length + log1p(-torch.exp(-2 * large))
    return one_minus_t, torch.where(
        far, torch.logaddexp(exponent, torch.zeros_like(exponent)) / large, one_plus_t
    )
