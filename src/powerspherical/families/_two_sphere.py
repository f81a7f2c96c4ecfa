"""Draws on the sphere of R³ in closed form: no rejection, no Gamma variable, no quadrature.

Half the squared length S of the tangent Gaussian vector is exponential, so u = e^{-S/2} is uniform and can be the
probability P(T ≤ t). Both distribution functions can be solved for t:

    Power Spherical    u = ((1+t)/2)^{κ+1},
    von Mises–Fisher   u = (e^{κ(1+t)} - 1)/(e^{2κ} - 1).

The slopes d artanh(t)/dκ are taken at a fixed probability and depend on t and κ alone. All functions take and return
tensors of one shape, float32 or float64, and are accurate to a few units in the last place, in 1-t as well as in 1+t.
κ = 0 is the uniform distribution; NaN gives NaN. ``sampling.triton.two_sphere`` has the same formulas for CUDA.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: A smaller κ is not distinguished from this one, by which the formulas can divide.
LEAST_KAPPA = 1e-20

#: From this κ on 1+t is 2 - (1-t): the probability that it is small, and loses digits, is less than e^{-2κ}.
LARGE_KAPPA = 10.0

#: A smaller 1-t is not distinguished from this one, by which the formulas can divide; neither is a smaller 1+t.
LEAST_END = 1e-30

#: Below this κ the slope of von Mises–Fisher is a quotient of power series with so many terms.
SMALL_KAPPA = 0.5
TERMS = {torch.float32: 4, torch.float64: 7}


def power_spherical_ends(squared_length: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t of a draw from S = ``squared_length``: log((1+t)/2) = -S/(2(κ+1))."""
    log_half = squared_length / (kappa + 1).mul_(-2)
    return torch.expm1(log_half).mul_(-2), log_half.exp_().mul_(2)


def power_spherical_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    """d artanh(t)/dκ = -log((1+t)/2)/((κ+1)(1-t))."""
    near = one_minus_t < one_plus_t
    minus = one_minus_t.clamp(min=LEAST_END)
    log_half = torch.where(
        near, torch.log1p(minus * -0.5), torch.log(one_plus_t.clamp(min=LEAST_END).mul_(0.5))
    )
    return log_half.div_(minus).div_((kappa + 1).neg_())


def von_mises_fisher_ends(squared_length: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t of a draw from S = ``squared_length``.

    κ(1-t) = -log q with q = u + (1-u)e^{-2κ} = 1 - (1-u)(1-e^{-2κ}), the first where q is small, the second where it is
    near 1; κ(1+t) = log(1 + u(e^{2κ}-1)).
    """
    kappa = kappa.clamp(min=LEAST_KAPPA)
    double, log_u = kappa * -2, squared_length * -0.5
    u, minus_rest = torch.exp(log_u), torch.expm1(log_u)  # u and -(1-u)
    complement = torch.expm1(double).mul_(minus_rest)  # 1-q
    q = torch.addcmul(u, minus_rest, double.exp_(), value=-1)
    log_q = torch.where(complement < 0.5, torch.log1p(-complement), q.log_())
    one_minus_t = log_q.div_(kappa).neg_()
    small = kappa.clamp(max=LARGE_KAPPA)
    close = torch.expm1(small + small).mul_(u).log1p_().div_(small)
    return one_minus_t, torch.where(kappa < LARGE_KAPPA, close, 2 - one_minus_t)


def von_mises_fisher_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    """d artanh(t)/dκ = [E(a)/a - e^{-a} E(b)/b]/E(2κ) with E(z) = 1 - e^{-z}, a = κ(1+t), b = κ(1-t).

    The difference cancels where κ is small. There both numerator and denominator are expanded, see ``_series_slope``.
    """
    large = kappa.clamp(min=SMALL_KAPPA)
    a, b = large * one_plus_t.clamp(min=LEAST_END), large * one_minus_t.clamp(min=LEAST_END)
    minus_a, minus_b = a.neg(), b.neg()
    first = torch.expm1(minus_a).div_(a)  # -E(a)/a
    second = torch.expm1(minus_b).div_(b).mul_(minus_a.exp_())
    far = first.sub_(second).div_(torch.expm1(large * -2))
    return torch.where(kappa < SMALL_KAPPA, _series_slope(one_minus_t, one_plus_t, kappa), far)


def _series_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    """The slope of von Mises–Fisher for κ < ``SMALL_KAPPA``.

    It is κ/sinh κ times the sum over k ≥ 1 of κ^{2k-2} p_k (1/(2k)! - κt/(2k+1)!) with p_k = 1 + t² + … + t^{2k-2}. No
    term cancels. With x = κ² and c_k the bracket, s_k = c_k + x s_{k+1} and h_k = s_k + xt² h_{k+1} end in the sum h_1.
    """
    # Larger κ have the other formula: clamping them keeps the series finite.
    kappa = kappa.clamp(max=SMALL_KAPPA)
    tilt = (one_plus_t - one_minus_t).mul_(kappa).mul_(0.5)
    square, tilt_square = kappa * kappa, tilt * tilt
    partial = total = torch.zeros_like(kappa)
    sinhc = torch.zeros_like(kappa)  # sinh κ/κ
    for k in range(TERMS[kappa.dtype], 0, -1):
        bracket = tilt * (-1 / math.factorial(2 * k + 1)) + 1 / math.factorial(2 * k)
        partial = torch.addcmul(bracket, square, partial)
        total = torch.addcmul(partial, tilt_square, total)
        sinhc.add_(1 / math.factorial(2 * k + 1)).mul_(square)
    return total.div_(sinhc.add_(1))
