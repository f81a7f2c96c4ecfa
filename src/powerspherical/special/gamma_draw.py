"""How a Gamma variable G moves with its shape α at a fixed probability: dlog G/dα, in float32.

**α ≥ 4, an expansion.** By the saddle point, P(G ≤ α(1+h)) ≈ Φ(√α s + m/√α), with s² = 2(h - log(1+h)) and
m = log(h/s)/s (Barndorff-Nielsen 1986). Holding the argument of Φ gives, to the second order in 1/α,

    α dlog G/dα = 1 - hr + (r + p)/α + R/α²,    r = (h - log(1+h))/h²,    p = (r - ½)/h.

R is 1/60 at h = 0 and α = ∞. In general it is a polynomial in hp and 1/α, fitted to exact values by
``tests/reference/fit_gamma_draw.py``. The relative error is 1.1e-4 at α = 4, 1.3e-5 at 8 and 1.5e-6 at 16.

**α < 4, a quadrature of one tail.** log G has the log-density αy - e^y, up to a constant, and the score y - ψ(α). The
derivative of a tail probability is the integral of the score over that tail. So, with λ = log G - ψ(α),

    dlog G/dα = ∫₀^∞ (s + λ) exp(αs - G expm1(s)) ds = -∫_{-∞}^0 (s + λ) exp(αs - G expm1(s)) ds.

The first is used where λ > 0, the second where λ < 0: then nothing cancels, and a few nodes are enough. The relative
error is 5e-6 for α ≥ ½. ``sampling.triton.slope`` has both methods for CUDA.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical.special.quadrature import gauss_legendre

#: From this shape on the expansion is used.
LARGE = 4.0

#: Coefficients of R = Σ (hp)^i (a_i + b_i/α): the a_i, then the b_i.
REST = (0.01665817, 0.0002600542, -0.03987923, 0.01380202)
REST_OVER_ALPHA = (-0.01312838, -4.4872e-05, 0.04289502, -0.02721154)

#: Where |h| is less than this, p is the series -1/3 + h/4 - h²/5 + …
NEAR = 0.06
SERIES = (-1 / 3, 1 / 4, -1 / 5, 1 / 6)

#: Nodes of the quadrature, and the logarithm by which its integrand falls within the window.
NODES, FALL = 12, 15.0

#: Rows at a time on the CPU, so that intermediate values stay in the cache; with several threads more, because these
#: wait for each other after every operation.
_BLOCK, _THREADS_BLOCK = 1 << 13, 1 << 17


def log_gamma_slope(alpha: Tensor, gamma: Tensor, least: float) -> Tensor:
    """dlog G/dα of Gamma variables, relative error 1.1e-4 at most.

    Args:
        alpha: shapes, float32, ≥ ½. NaN gives NaN.
        gamma: the variables, in the shape of ``alpha``.
        least: a lower bound of the shapes. Without a host sync it is all that is known of them on a GPU, and it decides
            whether the quadrature is computed.
    """
    if not alpha.is_cpu:
        slope = _expansion(alpha, gamma)
        return slope if least >= LARGE else torch.where(alpha < LARGE, _one_tail(alpha, gamma), slope)
    shapes, values = alpha.reshape(-1), gamma.reshape(-1)
    block = _BLOCK if torch.get_num_threads() == 1 else _THREADS_BLOCK
    if len(shapes) <= block:
        return _rows(shapes, values, least).view(alpha.shape)
    parts = zip(shapes.split(block), values.split(block), strict=True)
    return torch.cat([_rows(*part, least) for part in parts]).view(alpha.shape)


def _rows(alpha: Tensor, gamma: Tensor, least: float) -> Tensor:
    """The same on the CPU, where each method is used for the rows that need it."""
    if least >= LARGE:
        return _expansion(alpha, gamma)
    small = alpha < LARGE
    count = int(small.count_nonzero())
    if count == len(alpha):
        return _one_tail(alpha, gamma)
    slope = _expansion(alpha, gamma)
    if count:
        slope[small] = _one_tail(alpha[small], gamma[small])
    return slope


def _expansion(alpha: Tensor, gamma: Tensor) -> Tensor:
    inverse = torch.reciprocal(alpha)
    ratio = gamma * inverse
    h = ratio - 1
    series = SERIES[-1] * h
    for coefficient in SERIES[-2:0:-1]:
        series.add_(coefficient).mul_(h)
    series.add_(SERIES[0])
    direct = (h - ratio.log_()).div_(h * h).sub_(0.5).div_(h)
    p = torch.where(h.abs() < NEAR, series, direct)
    c = h * p
    rest = torch.add(inverse * REST_OVER_ALPHA[-1], REST[-1])
    for constant, slope in zip(REST[-2::-1], REST_OVER_ALPHA[-2::-1], strict=True):
        rest.mul_(c).add_(inverse, alpha=slope).add_(constant)
    r = c.add_(0.5)
    p.add_(r).addcmul_(rest, inverse)
    return (1 - h.mul_(r)).addcmul_(p, inverse).mul_(inverse)


def _one_tail(alpha: Tensor, gamma: Tensor) -> Tensor:
    # The expansion is there for larger shapes: clamping them keeps the exponents within bounds.
    alpha = alpha.clamp(max=LARGE)
    gamma = gamma.clamp(min=torch.finfo(gamma.dtype).tiny)
    score = torch.log(gamma).sub_(torch.digamma(alpha))
    # Where αs - G expm1(s) = -FALL: above by a step of a fixed-point iteration, below from a bound.
    above = torch.log1p(FALL / gamma).mul_(alpha).add_(FALL).div_(gamma).log1p_()
    window = torch.where(score > 0, above, (gamma + FALL).div_(alpha).neg_())
    # The nodes are the first axis: broadcasting then runs along whole rows of memory.
    nodes, weights = (x.view(-1, *[1] * alpha.dim()) for x in gauss_legendre(NODES, gamma))
    s = window * nodes
    level = torch.addcmul(gamma, s, alpha).addcmul_(gamma, torch.exp(s), value=-1)
    mass = level.exp_().mul_(weights)
    return s.add_(score).mul_(mass).sum(0).mul_(window)
