"""How a Gamma variable G of a large shape α moves with it, by an expansion: dlog G/dα at a fixed probability.

By the saddle point, P(G ≤ α(1+h)) ≈ Φ(√α s + m/√α), with s² = 2(h - log(1+h)) and m = log(h/s)/s (Barndorff-Nielsen
1986). What is inside the bracket is held; then, to the second order in 1/α, where log(h/s) falls out,

    α dlog G/dα = 1 - h r + (r + p)/α + 1/(60 α²),    r = (h - log(1+h))/h²,    p = (r - ½)/h.

(The last term is that at h = 0, from an expansion of exact values.) ``sampling.triton.slope`` has it for CUDA.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: From this shape on the expansion gives dlog G/dα to 6e-4, better than torch's derivative does; at 20 to 6e-5.
LARGE = 6.0

#: Where |h| is less than this, p is a series in h: -1/3 + h/4 - h²/5 + …; its coefficients, last one first.
NEAR = 0.1
SERIES = (1 / 8, -1 / 7, 1 / 6, -1 / 5, 1 / 4, -1 / 3)

#: Rows at a time: what is computed from them stays in the cache, and takes little memory. With several threads blocks
#: are few: in each, threads wait for each other, and for whoever else holds a core.
_BLOCK, _MOST = 1 << 14, 4


def log_gamma_slope_(alpha: Tensor, gamma: Tensor) -> Tensor:
    """dlog G/dα of variables G of shapes α ≥ ``LARGE``, written over α; both contiguous, on a CPU."""
    block = _BLOCK if torch.get_num_threads() == 1 else max(alpha.numel() // _MOST, _BLOCK)
    for shape, value in zip(alpha.view(-1).split(block), gamma.view(-1).split(block), strict=True):
        _block_(shape, value)
    return alpha


def _block_(alpha: Tensor, gamma: Tensor) -> None:
    h = (gamma - alpha).div_(alpha)
    series = SERIES[0] * h
    for coefficient in SERIES[1:-1]:
        series.add_(coefficient).mul_(h)
    series.add_(SERIES[-1])
    direct = (h - torch.log1p(h)).div_(h).div_(h).sub_(0.5).div_(h)
    p = torch.where(h.abs() < NEAR, series, direct)
    r = torch.mul(h, p, out=direct).add_(0.5)
    second = torch.reciprocal(alpha, out=series).mul_(1 / 60).add_(r).add_(p)
    torch.div(second.div_(alpha).addcmul_(h, r, value=-1).add_(1), alpha, out=alpha)
