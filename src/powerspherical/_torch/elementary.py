"""``log1p``, ``expm1``, ``hypot``, ``sigmoid`` and the normal distribution function, as exported programs need them.

ONNX has none of the first three. Its exporter writes log(1+x) and exp(x) - 1, which lose all digits of a small x, and
rejects ``hypot``. In float64 onnxruntime has no error function, and its ``Sigmoid`` is zero at -40. So during an export
these functions are traced as other operations. Elsewhere they are torch's own.

The module is the operations of ``powerspherical.formulas`` for tensors.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from powerspherical._torch.constants import tensor_constant
from powerspherical._torch.private import is_exporting
from powerspherical.formulas import ops

exp, log, where = torch.exp, torch.log, torch.where
ops.torch_operations = sys.modules[__name__]


def log1p(x: Tensor) -> Tensor:
    """Return log(1+x). Exported, the relative error is a few ε, and so is that of the derivative."""
    if not is_exporting():
        return torch.log1p(x)
    # log(u) + (1+x-u)/u, where u is 1+x after rounding. x - (u-1) is the rounding error, without error.
    u = 1 + x
    # For other x the rounding error does no harm, and the quotient may be 0/0 or inf - inf.
    return torch.log(u) + torch.where(x.abs() < 0.5, (x - (u - 1)) / u, 0.0)


def log_of_share(share: Tensor, rest: Tensor) -> Tensor:
    """Return the log of a share, given also rest = 1 - share. It is accurate where either is small."""
    near = rest < 0.5
    return torch.where(near, log1p(-torch.where(near, rest, 0.0)), torch.log(share))


def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1. Exported, the relative error is a few ε, and so is that of the derivative."""
    return torch.tanh(0.5 * x) * (torch.exp(x) + 1) if is_exporting() else torch.expm1(x)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Return √(x²+y²) without overflow. Exported, the relative error is a few ε, and y must not be zero."""
    if not is_exporting():
        return torch.hypot(x, y)
    x, y = x.abs(), y.abs()
    large = torch.maximum(x, y)
    return large * torch.sqrt(1 + (torch.minimum(x, y) / large).square())


def sigmoid(x: Tensor) -> Tensor:
    """Return 1/(1+e^-x). Exported, the relative error is a few ε, also for negative x."""
    if not is_exporting():
        return torch.sigmoid(x)
    small = torch.exp(-x.abs())
    return torch.where(x > 0, 1.0, small) / (1 + small)


def normal_cdf(z: Tensor) -> Tensor:
    """Return Φ(z) for float64 ``z``. The relative error is about (1+z²)ε, also in the lower tail."""
    if not is_exporting():
        # ``torch.special.ndtr`` loses the lower tail: at z = -9 it has no digit left.
        return 0.5 * torch.erfc(z * -math.sqrt(0.5))
    # Φ(-x√2) = erfc(x)/2 = (x/2π) e^{-x²} ∫ e^{-t²}/(t²+x²) dt for x ≥ 0, by the mid-point rule. The poles at t = ±ix
    # add 1/(1+e^{2πx/h}). The remaining error of the rule is e^{-π²/h²}, below 1e-17.
    x = z.abs() / math.sqrt(2)
    squares, heights = _nodes(z).unbind()
    square = x.square()
    total = (heights / (squares + square.unsqueeze(-1))).sum(-1)
    tail = (_STEP / math.pi) * x * torch.exp(-square) * total + sigmoid(x * (-2 * math.pi / _STEP))
    return torch.where(z > 0, 1 - tail, tail)


_STEP = 0.5


@tensor_constant
def _nodes() -> list[list[float]]:
    """t² and e^{-t²} at the mid-points t = h/2, 3h/2, … with h = ``_STEP``."""
    squares = [((k + 0.5) * _STEP) ** 2 for k in range(13)]
    return [squares, [math.exp(-square) for square in squares]]
