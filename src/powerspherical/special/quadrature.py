"""The Gauss–Legendre rule as constant tensors."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant


def legendre(count: int) -> tuple[list[float], list[float]]:
    """Return nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


@tensor_constant
def _legendre(count: int) -> Numbers:
    return legendre(count)


def gauss_legendre(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the Gauss–Legendre rule on [0, 1], with the dtype and device of ``like``."""
    nodes, weights = _legendre(like, count).unbind()
    return nodes, weights
