"""The unit sphere as a constraint, and the transform that maps R^d onto it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraint_registry import biject_to, transform_to
from torch.distributions.transforms import Transform

from powerspherical._torch.vectors import directions_of

#: Largest accepted deviation of a norm from one. Normalising in bfloat16 leaves errors of up to 0.9 %.
NORM_TOLERANCE = 1e-2


def norm_rounding(dtype: torch.dtype, dim: int) -> float:
    """Return a bound on the rounding error of the norm of a normalised vector."""
    return min(4 * torch.finfo(dtype).eps * dim**0.5, NORM_TOLERANCE)


def norm_error(value: Tensor) -> Tensor:
    """Return |‖value‖ - 1| over the last axis, in float32 or float64; NaN if the vector has a NaN."""
    exact = value if value.dtype == torch.float64 else value.float()
    return (torch.linalg.vector_norm(exact, dim=-1) - 1).abs()


class UnitVector(constraints.Constraint):
    """Vectors (…, d) of norm one to within 1 %, which covers rounding in every dtype. ``unit_vector`` is an instance.

    >>> from torch.distributions import transform_to
    >>> unit_vector.check(torch.tensor([[0.6, 0.8], [1.0, 1.0]]))
    tensor([ True, False])
    >>> transform_to(unit_vector)(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """

    event_dim = 1

    def __repr__(self) -> str:
        return "unit_vector"

    def check(self, value: Tensor) -> Tensor:
        """Return whether vectors (…, d) have norm one to within 1 %, of shape (…); False for integers."""
        return (norm_error(value) <= NORM_TOLERANCE) & value.is_floating_point()


unit_vector = UnitVector()


class NormalizeTransform(Transform):
    """x ↦ x/‖x‖ from R^d onto the sphere, for x of shape (…, d). It is not bijective; its inverse is the identity.

    The origin, where optimisers often start, maps to the first unit vector, with a finite derivative.

    >>> NormalizeTransform()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [1.0000, 0.0000]])
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


@biject_to.register(UnitVector)
def _no_bijection(constraint: UnitVector) -> Transform:
    raise NotImplementedError(
        "no bijection maps R^n to the unit sphere. In Pyro, NUTS, HMC and the continuous autoguides need one for each "
        'latent site: reparameterise the sites on the sphere, such as "z", by '
        'pyro.poutine.reparam(model, {"z": powerspherical.pyro.SphereReparam()}). To optimise over the sphere, use '
        "torch.distributions.transform_to(unit_vector)."
    )
