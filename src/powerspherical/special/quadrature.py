"""The Gauss–Legendre rule."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from powerspherical._torch.constants import tensor_constant


def legendre(count: int) -> tuple[list[float], list[float]]:
    """Return the nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


_rule = tensor_constant(legendre)


def gauss_legendre(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the Gauss–Legendre rule on [0, 1], with the dtype and device of ``like``."""
    nodes, weights = _rule(like, count).unbind()
    return nodes, weights
