"""The unit sphere as a constraint, and the way onto it for optimisers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraint_registry import transform_to
from torch.distributions.transforms import Transform

from powerspherical.distributions.geometry import directions_of

#: How far from one a norm may be. Normalising in bfloat16 arithmetic leaves errors of up to 0.9 %.
NORM_TOLERANCE = 1e-2


def norm_rounding(dtype: torch.dtype, dim: int) -> float:
    """How far from one a norm is by rounding alone: that of d coordinates and of their sum of squares."""
    return min(4 * torch.finfo(dtype).eps * dim**0.5, NORM_TOLERANCE)


def norm_error(value: Tensor) -> Tensor:
    """|‖value‖ - 1|, at least in float32; NaN where value has a NaN."""
    exact = value if value.dtype == torch.float64 else value.float()
    return (torch.linalg.vector_norm(exact, dim=-1) - 1).abs()


class UnitVector(constraints.Constraint):
    """Vectors of length one, to 1 %: rounding passes in every dtype, a vector that was never normalised does not."""

    event_dim = 1

    def __repr__(self) -> str:
        return "unit_vector"

    def check(self, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return torch.zeros(value.shape[:-1], dtype=torch.bool, device=value.device)
        return norm_error(value) <= NORM_TOLERANCE


unit_vector = UnitVector()


class NormalizeTransform(Transform):
    """x ↦ x/‖x‖ from R^d onto the sphere; not bijective, its inverse is the inclusion.

    The origin, where optimisers like to start, goes to the first unit vector, with the derivative there.
    """

    domain = constraints.real_vector
    codomain = unit_vector

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NormalizeTransform)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return directions_of(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return y


@transform_to.register(UnitVector)
def _to_unit_vector(constraint: UnitVector) -> NormalizeTransform:
    return NormalizeTransform()
