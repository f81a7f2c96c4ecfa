"""dlog G/dα of a Gamma variable G of shape α at a fixed probability: how a Gamma draw moves with its shape, in float32.

There are two methods. ``docs/mathematics.md`` derives both, and ``sampling.triton.slope`` has both for CUDA.

**α ≥ 4: an expansion in 1/α.** With h = G/α - 1,

    α dlog G/dα = 1 - hr + (r + p)/α + R/α²,    r = (h - log(1+h))/h²,    p = (r - ½)/h.

R tends to 1/60 as h → 0 and α → ∞. In its place we use a polynomial in hp and 1/α, which
``tests/reference/fit_gamma_draw.py`` fits to exact values. The relative error is 1.1e-4 at α = 4, 1.3e-5 at 8 and
1.5e-6 at 16.

**α < 4: a quadrature over one tail.** With λ = log G - ψ(α),

    dlog G/dα = ∫₀^∞ (s + λ) exp(αs - G expm1(s)) ds = -∫_{-∞}^0 (s + λ) exp(αs - G expm1(s)) ds.

We use the first integral if λ > 0 and the second if λ ≤ 0. Then the integrand does not change its sign, and a few nodes
are enough. The relative error is 5e-6 for α ≥ ½.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical.engines import block_size
from powerspherical.special.quadrature import gauss_legendre

#: From this shape on we use the expansion.
LARGE_SHAPE = 4.0

#: Coefficients a_i and b_i of R = Σ_i (hp)^i (a_i + b_i/α).
REST = (0.01665817, 0.0002600542, -0.03987923, 0.01380202)
REST_OVER_ALPHA = (-0.01312838, -4.4872e-05, 0.04289502, -0.02721154)

#: For |h| below SMALL_H, p is the power series -1/3 + h/4 - h²/5 + …, with these coefficients.
SMALL_H = 0.06
P_SERIES = (-1 / 3, 1 / 4, -1 / 5, 1 / 6)

#: Nodes of the quadrature. It ends where exp(αs - G expm1(s)) has fallen to about e^{-LOG_DECAY}.
NODES, LOG_DECAY = 12, 15.0

#: Rows per block on the CPU. The intermediate values of a block stay in the cache. With several threads the blocks are
#: larger, because the threads wait for each other at the end of each operation.
_BLOCK, _THREADS_BLOCK = 1 << 13, 1 << 17


def log_gamma_slope(alpha: Tensor, gamma: Tensor, least: float) -> Tensor:
    """Return dlog G/dα of Gamma variables G, with a relative error of at most 1.2e-4.

    Args:
        alpha: shapes α ≥ ½ of the Gamma variables, a float32 tensor of any shape. NaN gives NaN.
        gamma: the variables G, in the shape of ``alpha``.
        least: a lower bound of ``alpha``. If it is large, a GPU can skip the quadrature without a host sync.
    """
    if not alpha.is_cpu:
        slope = _expansion(alpha, gamma)
        if least >= LARGE_SHAPE:
            return slope
        return torch.where(alpha < LARGE_SHAPE, _one_tail(alpha, gamma), slope)
    shapes, values = alpha.reshape(-1), gamma.reshape(-1)
    block = block_size(_BLOCK if torch.get_num_threads() == 1 else _THREADS_BLOCK)
    if len(shapes) <= block:
        return _cpu_block(shapes, values, least).view(alpha.shape)
    parts = zip(shapes.split(block), values.split(block), strict=True)
    return torch.cat([_cpu_block(*part, least) for part in parts]).view(alpha.shape)


def _cpu_block(alpha: Tensor, gamma: Tensor, least: float) -> Tensor:
    """Return dlog G/dα of a block of rows, with each method applied only to the rows that need it."""
    if least >= LARGE_SHAPE:
        return _expansion(alpha, gamma)
    small = alpha < LARGE_SHAPE
    count = int(small.count_nonzero())
    if count == len(alpha):
        return _one_tail(alpha, gamma)
    slope = _expansion(alpha, gamma)
    if count:
        slope[small] = _one_tail(alpha[small], gamma[small])
    return slope


def _expansion(alpha: Tensor, gamma: Tensor) -> Tensor:
    """Return dlog G/dα by the expansion in 1/α."""
    inverse = torch.reciprocal(alpha)
    ratio = gamma * inverse
    h = ratio - 1
    series = P_SERIES[-1] * h
    for coefficient in P_SERIES[-2:0:-1]:
        series.add_(coefficient).mul_(h)
    series.add_(P_SERIES[0])
    direct = (h - ratio.log_()).div_(h * h).sub_(0.5).div_(h)
    p = torch.where(h.abs() < SMALL_H, series, direct)
    c = h * p
    rest = torch.add(inverse * REST_OVER_ALPHA[-1], REST[-1])
    for constant, slope in zip(REST[-2::-1], REST_OVER_ALPHA[-2::-1], strict=True):
        rest.mul_(c).add_(inverse, alpha=slope).add_(constant)
    r = c.add_(0.5)
    p.add_(r).addcmul_(rest, inverse)
    return (1 - h.mul_(r)).addcmul_(p, inverse).mul_(inverse)


def _one_tail(alpha: Tensor, gamma: Tensor) -> Tensor:
    """Return dlog G/dα by a quadrature over one tail."""
    # For larger shapes the caller uses the expansion. Clamping avoids overflow there.
    alpha = alpha.clamp(max=LARGE_SHAPE)
    gamma = gamma.clamp(min=torch.finfo(gamma.dtype).tiny)
    score = torch.log(gamma).sub_(torch.digamma(alpha))
    # The end of the window, where αs - G expm1(s) ≈ -LOG_DECAY. In the upper tail it is one step of the fixed-point
    # iteration s ← log1p((αs + LOG_DECAY)/G). In the lower tail it follows from expm1(s) ≥ -1.
    above = torch.log1p(LOG_DECAY / gamma).mul_(alpha).add_(LOG_DECAY).div_(gamma).log1p_()
    window = torch.where(score > 0, above, (gamma + LOG_DECAY).div_(alpha).neg_())
    # The nodes are the first axis, so that broadcasting runs along contiguous memory.
    nodes, weights = (x.view(-1, *[1] * alpha.dim()) for x in gauss_legendre(NODES, gamma))
    s = window * nodes
    level = torch.addcmul(gamma, s, alpha).addcmul_(gamma, torch.exp(s), value=-1)
    mass = level.exp_().mul_(weights)
    return s.add_(score).mul_(mass).sum(0).mul_(window)
