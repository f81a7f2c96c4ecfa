"""``log1p``, ``expm1`` and ``hypot`` that ``torch.export`` and ONNX keep accurate.

ONNX has none of the three. Its exporter writes log(1+x) and exp(x) - 1, which lose all digits of a small x, and rejects
``hypot``. So during an export these functions are traced as other operations. Elsewhere they are torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.modes import is_exporting


def log1p(x: Tensor) -> Tensor:
    """Return log(1+x). Exported, the relative error is a few ε, and so is that of the derivative.

    >>> log1p(torch.tensor(1e-30))
    tensor(1.0000e-30)
    """
    return _exported_log1p(x) if is_exporting() else torch.log1p(x)


def _exported_log1p(x: Tensor) -> Tensor:
    """Return log(u) + (1+x-u)/u, where u is 1+x after rounding. x - (u-1) is the rounding error, without error."""
    u = 1 + x
    # For other x the rounding error does no harm, and the quotient may be 0/0 or inf - inf.
    return torch.log(u) + torch.where(x.abs() < 0.5, (x - (u - 1)) / u, 0.0)


def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1. Exported, the relative error is a few ε, and so is that of the derivative.

    >>> expm1(torch.tensor(1e-30))
    tensor(1.0000e-30)
    """
    return torch.tanh(0.5 * x) * (torch.exp(x) + 1) if is_exporting() else torch.expm1(x)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Return √(x²+y²) without overflow. Exported, the relative error is a few ε, and y must not be zero.

    >>> hypot(torch.tensor(3e30), torch.tensor(4e30))
    tensor(5.0000e+30)
    """
    return _exported_hypot(x, y) if is_exporting() else torch.hypot(x, y)


def _exported_hypot(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs(), y.abs()
    large = torch.maximum(x, y)
    return large * torch.sqrt(1 + (torch.minimum(x, y) / large).square())
