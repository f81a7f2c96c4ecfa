"""The Gauss–Legendre rule as constant tensors."""

from __future__ import annotations

from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical.special._elementary import legendre


@tensor_constant
def _legendre(count: int) -> Numbers:
    return legendre(count)


def gauss_legendre(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the Gauss–Legendre rule on [0, 1], with the dtype and device of ``like``."""
    nodes, weights = _legendre(like, count).unbind()
    return nodes, weights
