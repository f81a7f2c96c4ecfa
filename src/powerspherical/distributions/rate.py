"""The rate of a distribution: its KL divergence from the uniform."""

from __future__ import annotations

from torch import Tensor

from powerspherical._torch.composites import composite, is_ours
from powerspherical.families import Family, family_named


def rate(family: Family, concentration: Tensor, dim: int) -> Tensor:
    """Return ``family.relative_entropy(concentration, dim)``.

    ``torch.compile`` records it as one operator for the families of this package, and traces the code of other ones.

    Args:
        family: any family.
        concentration: κ ≥ 0 of any shape, float32 or float64. The result has its shape.
        dim: the ambient dimension d ≥ 2.

    >>> import torch
    >>> from powerspherical.families import POWER_SPHERICAL
    >>> rate(POWER_SPHERICAL, torch.tensor([0.0, 1.0, 100.0]), 3)
    tensor([0.0000, 0.1931, 3.6250])
    """
    if is_ours(type(family)):
        return _relative_entropy(concentration, dim, family.name)
    return family.relative_entropy(concentration, dim)


@composite("relative_entropy", "Tensor concentration, int dim, str family", "Tensor")
def _relative_entropy(concentration: Tensor, dim: int, family: str) -> Tensor:
    return family_named(family).relative_entropy(concentration, dim)
