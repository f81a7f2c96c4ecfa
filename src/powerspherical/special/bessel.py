"""The modified Bessel function of the first kind, as the von Mises–Fisher distribution needs it.

With ν = d/2-1 the log-partition relative to the uniform distribution is

    G(κ) = log E_U e^{κt} = log ₀F₁(; d/2; κ²/4) = lnΓ(ν+1) - ν log(κ/2) + log I_ν(κ).

Its derivative is the ratio A(κ) = I_{ν+1}(κ)/I_ν(κ) = E t, and the relative entropy is κA - G.
``moments.von_mises_fisher`` has the only formula, that of A'; the other functions are its integrals, as ``tables``.

Errors are stated for d from 2 to 1e7 and κ from 0 to 1e9. d need not be an integer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical.special.curves import inverse_mean, value

_FAMILY = "von_mises_fisher"


def bessel_ratio_slope(kappa: Tensor, dim: float) -> Tensor:
    """Return A'_d(κ), the variance of t under the von Mises–Fisher distribution, in the shape of ``kappa``.

    Relative error about 2e-15 (float64) and 2e-7 (float32). Differentiable once.

    >>> bessel_ratio_slope(torch.tensor([0.0, 1.0]), 3)  # 1/d at κ = 0
    tensor([0.3333, 0.2759])
    """
    return value(kappa, _FAMILY, "variance", dim)


def bessel_ratio(kappa: Tensor, dim: float) -> Tensor:
    """Return A_d(κ) = I_{d/2}(κ)/I_{d/2-1}(κ), the mean of t under the von Mises–Fisher distribution.

    The result has the shape of ``kappa``.

    >>> bessel_ratio(torch.tensor(1.0, dtype=torch.float64), 3)  # coth 1 - 1
    tensor(0.3130, dtype=torch.float64)
    """
    return value(kappa, _FAMILY, "mean", dim)


def bessel_ratio_complement(kappa: Tensor, dim: float) -> Tensor:
    """Return 1 - A_d(κ), accurate also where A_d is nearly 1, in the shape of ``kappa``; differentiable twice.

    >>> kappa = torch.tensor(1e9)
    >>> bessel_ratio_complement(kappa, 3), 1 - bessel_ratio(kappa, 3)  # 1/κ; the subtraction loses it
    (tensor(1.0000e-09), tensor(0.))
    """
    return value(kappa, _FAMILY, "loss", dim)


def log_hyp0f1(kappa: Tensor, dim: float) -> Tensor:
    """Return G(κ) = log ₀F₁(; d/2; κ²/4) = log E_U e^{κt}, the von Mises–Fisher log-partition relative to the uniform.

    The result has the shape of ``kappa``. Differentiable three times.

    >>> log_hyp0f1(torch.tensor(1.0, dtype=torch.float64), 3).exp()  # sinh 1
    tensor(1.1752, dtype=torch.float64)
    """
    return value(kappa, _FAMILY, "log_partition", dim)


def log_bessel_i(order: float, x: Tensor) -> Tensor:
    """Return log I_ν(x), the modified Bessel function of the first kind, for any real order ν ≥ 0 and x ≥ 0.

    Args:
        order: ν ≥ 0, a Python number (not a tensor).
        x: argument, any shape, float32 or float64; log I_ν(0) is -inf for ν > 0 and 0 for ν = 0.

    The error is a few rounding errors of the largest of ν log(x/2), lnΓ(ν+1) and x. The result does not overflow
    and is differentiable in x.

    >>> log_bessel_i(0.5, torch.tensor(1e4, dtype=torch.float64))  # x - ½ log(2πx)
    tensor(9994.4759, dtype=torch.float64)
    """
    if not order >= 0:
        raise ValueError(f"order must be a number ≥ 0, got {order}")
    growth = log_hyp0f1(x, 2 * order + 2)
    if order == 0:
        return growth
    return torch.xlogy(order, x / 2) + (growth - math.lgamma(order + 1))


def bessel_ratio_inverse(ratio: Tensor, dim: float, complement: Tensor | None = None) -> Tensor:
    """Return the κ with A_d(κ) = ratio.

    Args:
        ratio: mean resultant length in [0, 1), any shape, float32 or float64. The result has its shape and dtype.
        dim: ambient dimension d ≥ 2.
        complement: 1 - ratio, if it is known more accurately than by subtraction.

    Exact to a few rounding errors of ``ratio`` and ``complement``. Differentiable in ``ratio``; ``complement`` gets no
    gradient.

    >>> kappa = bessel_ratio_inverse(torch.tensor(0.5, dtype=torch.float64), 768)
    >>> bessel_ratio(kappa, 768)
    tensor(0.5000, dtype=torch.float64)
    """
    return inverse_mean(ratio, 1 - ratio if complement is None else complement, _FAMILY, dim)
