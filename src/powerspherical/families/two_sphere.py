"""Draws on S², the sphere of R³, in closed form: without rejection, Gamma variable or quadrature.

Let S be the squared length of the tangent Gaussian vector. At d = 3, S/2 is exponential, so u = e^{-S/2} is uniform. We
draw t by inversion, with u = P(T ≤ t). Both distribution functions can be solved for t:

    Power Spherical    u = ((1+t)/2)^{κ+1},
    von Mises–Fisher   u = (e^{κ(1+t)} - 1)/(e^{2κ} - 1).

The slopes d artanh(t)/dκ are derivatives at a fixed probability u, and functions of t and κ. ``docs/mathematics.md``
derives them.

All functions take and return tensors of one shape, float32 or float64. Their results, 1-t as well as 1+t, are accurate
to a few units in the last place. Only the error of a very small 1+t of Power Spherical is larger: it grows like
|log(1+t)|. κ = 0 is the uniform distribution, and NaN gives NaN. ``sampling.triton.two_sphere`` has the same formulas
for CUDA.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerspherical._torch.elementary import expm1, log1p

#: Smaller κ are replaced by this one, so that the formulas can divide by κ.
LEAST_KAPPA = 1e-20

#: From this κ on we compute 1+t as 2 - (1-t). A small 1+t would lose digits, but it is improbable: the probability of
#: 1+t < ε is about e^{-2κ}κε.
LARGE_KAPPA = 10.0

#: Smaller values of 1-t and 1+t are replaced by this one, so that the formulas can divide by them.
LEAST_END = 1e-30

#: Below this κ the slope of von Mises–Fisher is a quotient of two power series, with this number of terms.
SMALL_KAPPA = 0.5
_TERMS = {torch.float32: 4, torch.float64: 7}


def _squared_length(u: Tensor, complement: Tensor) -> Tensor:
    """The S with e^{-S/2} = u, given u and ``complement`` = 1-u; NaN for u outside [0, 1]."""
    near = complement < 0.5
    log_u = torch.where(near, log1p(-torch.where(near, complement, 0.0)), torch.log(u))
    return torch.where(log_u <= 0, -2 * log_u, torch.nan)


def power_spherical_ends(squared_length: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t of a draw, given S = ``squared_length``: log((1+t)/2) = -S/(2(κ+1))."""
    log_half = squared_length / (kappa + 1).mul_(-2)
    return expm1(log_half).mul_(-2), log_half.exp_().mul_(2)


def power_spherical_quantile(u: Tensor, complement: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, given u and ``complement`` = 1-u."""
    return power_spherical_ends(_squared_length(u, complement), kappa)


def power_spherical_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    """d artanh(t)/dκ = -log((1+t)/2)/((κ+1)(1-t))."""
    near = one_minus_t < one_plus_t
    minus = one_minus_t.clamp(min=LEAST_END)
    log_half = torch.where(near, log1p(minus * -0.5), torch.log(one_plus_t.clamp(min=LEAST_END).mul_(0.5)))
    return log_half.div_(minus).div_((kappa + 1).neg_())


def von_mises_fisher_ends(squared_length: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t of a draw, given S = ``squared_length``.

    κ(1-t) = -log q with q = u + (1-u)e^{-2κ} = 1 - (1-u)(1-e^{-2κ}). We use the second form if q > ½, and otherwise the
    first. κ(1+t) = log(1 + u(e^{2κ}-1)).
    """
    kappa = kappa.clamp(min=LEAST_KAPPA)
    double, log_u = kappa * -2, squared_length * -0.5
    u, minus_rest = torch.exp(log_u), expm1(log_u)  # u and -(1-u)
    complement = expm1(double).mul_(minus_rest)  # 1-q
    q = torch.addcmul(u, minus_rest, double.exp_(), value=-1)
    log_q = torch.where(complement < 0.5, log1p(-complement), q.log_())
    one_minus_t = log_q.div_(kappa).neg_()
    small = kappa.clamp(max=LARGE_KAPPA)
    close = log1p(expm1(small + small).mul_(u)).div_(small)
    return one_minus_t, torch.where(kappa < LARGE_KAPPA, close, 2 - one_minus_t)


def von_mises_fisher_quantile(u: Tensor, complement: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t with P(T ≤ t) = u, given u and ``complement`` = 1-u.

    Unlike ``von_mises_fisher_ends``, a small 1+t keeps its digits at any κ: κ(1+t) = log(1 + e^x) with
    x = 2κ + log u + log(1-e^{-2κ}).
    """
    squared_length = _squared_length(u, complement)
    one_minus_t, one_plus_t = von_mises_fisher_ends(squared_length, kappa)
    far = (one_minus_t > 1.5) & (kappa >= LARGE_KAPPA)
    large = torch.where(far, kappa, LARGE_KAPPA)
    exponent = 2 * large - 0.5 * squared_length + log1p(-torch.exp(-2 * large))
    return one_minus_t, torch.where(
        far, torch.logaddexp(exponent, torch.zeros_like(exponent)) / large, one_plus_t
    )


def von_mises_fisher_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    """d artanh(t)/dκ = [E(a)/a - e^{-a} E(b)/b]/E(2κ) with E(z) = 1 - e^{-z}, a = κ(1+t), b = κ(1-t).

    For small κ the difference cancels, and ``_series_slope`` is used.
    """
    large = kappa.clamp(min=SMALL_KAPPA)
    a, b = large * one_plus_t.clamp(min=LEAST_END), large * one_minus_t.clamp(min=LEAST_END)
    minus_a, minus_b = a.neg(), b.neg()
    first = expm1(minus_a).div_(a)  # -E(a)/a
    second = expm1(minus_b).div_(b).mul_(minus_a.exp_())
    far = first.sub_(second).div_(expm1(large * -2))
    return torch.where(kappa < SMALL_KAPPA, _series_slope(one_minus_t, one_plus_t, kappa), far)


def _series_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor) -> Tensor:
    """d artanh(t)/dκ of von Mises–Fisher for κ < ``SMALL_KAPPA``, without cancellation.

    It is κ/sinh κ · Σ_{k ≥ 1} κ^{2k-2} p_k c_k, where p_k = 1 + t² + … + t^{2k-2} and c_k = 1/(2k)! - κt/(2k+1)!. Two
    nested Horner schemes compute the sum h_1: s_k = c_k + κ² s_{k+1} and h_k = s_k + κ²t² h_{k+1}.
    """
    # For larger κ the caller uses the other formula. Clamping keeps the series finite.
    kappa = kappa.clamp(max=SMALL_KAPPA)
    tilt = (one_plus_t - one_minus_t).mul_(kappa).mul_(0.5)
    square, tilt_square = kappa * kappa, tilt * tilt
    partial = total = torch.zeros_like(kappa)
    sinhc = torch.zeros_like(kappa)  # sinh κ/κ
    for k in range(_TERMS[kappa.dtype], 0, -1):
        bracket = tilt * (-1 / math.factorial(2 * k + 1)) + 1 / math.factorial(2 * k)
        partial = torch.addcmul(bracket, square, partial)
        total = torch.addcmul(partial, tilt_square, total)
        sinhc.add_(1 / math.factorial(2 * k + 1)).mul_(square)
    return total.div_(sinhc.add_(1))
