"""Distributions with their parameters fixed."""

from __future__ import annotations

from typing import Any

import torch

from powerspherical._torch.random import KeyedGenerator
from powerspherical.distributions import (
    HypersphericalUniform,
    PowerSpherical,
    RotationallySymmetric,
    validation,
)
from powerspherical.distributions.sampling import sizes
from powerspherical.stats._arrays import Array, array_of, generator_of, real, seed_from, unit_vectors

_SHOWN = 8  # a repr shows the entries of arrays up to this size, and the shape of larger ones


class FrozenSpherical:
    """A distribution on the unit sphere of R^d with its parameters fixed.

    Attributes:
        dim: the ambient dimension d.
        random_state: the default ``random_state`` of ``rvs``.
    """

    def __init__(
        self,
        distribution: RotationallySymmetric | HypersphericalUniform,
        around: RotationallySymmetric,
        seed: Any,
    ) -> None:
        self.dim, self.random_state = distribution.dim, generator_of(seed)
        self._distribution = distribution
        self._around = around  # the same distribution, with a direction to measure angles from

    def rvs(self, size: Any = 1, random_state: Any = None) -> Array:
        """Draws, of shape ``size`` + the shape of the parameters + (d,). For arguments see ``RotationalFamily.rvs``."""
        shape = torch.Size() if size is None else sizes("size", size)
        seed = seed_from(self.random_state if random_state is None else random_state)
        return self._distribution.sample(shape, generator=KeyedGenerator(seed)).numpy()

    def logpdf(self, x: Any) -> Any:
        """The log density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        points = unit_vectors("x", x, self.dim)
        self._require_broadcast("x.shape[:-1]", points.shape[:-1])
        return array_of(self._distribution.log_prob(points))

    def pdf(self, x: Any) -> Any:
        """The density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        return array_of(torch.as_tensor(self.logpdf(x)).exp())

    def entropy(self) -> Any:
        """The differential entropy with respect to the area of the sphere, in nats."""
        return array_of(self._distribution.entropy())

    def mean(self) -> Array:
        """E x, (…, d): parallel to ``mu`` and inside the sphere."""
        return self._distribution.mean.numpy()

    def cov(self) -> Array:
        """The covariance matrix of x, (…, d, d)."""
        return self._distribution.covariance_matrix.numpy()

    def cdf(self, angle: Any) -> Any:
        """The probability that x lies within ``angle`` (radians, in [0, π]) of the mean direction."""
        angles = real("angle", angle)
        self._require_broadcast("angle.shape", angles.shape)
        return array_of(self._around.cap_probability(angles))

    def ppf(self, probability: Any) -> Any:
        """The angle within which x lies with this ``probability``: the inverse of ``cdf``."""
        probabilities = real("probability", probability)
        self._require_broadcast("probability.shape", probabilities.shape)
        return array_of(self._around.cap_angle(probabilities))

    def _require_broadcast(self, name: str, shape: torch.Size) -> None:
        validation.broadcast_shape(**{name: shape, "the parameters' shape": self._distribution.batch_shape})


class FrozenRotational(FrozenSpherical):
    """A family with fixed mean direction ``mu`` and concentration ``kappa``."""

    def __init__(
        self, distribution: type[RotationallySymmetric], mu: Any, kappa: Any, seed: Any = None
    ) -> None:
        loc, concentration = unit_vectors("mu", mu), real("kappa", kappa)
        validation.paired_shape("mu", loc, "kappa", concentration)
        way_out = "negate mu to concentrate around the opposite direction"
        validation.require([validation.non_negative("kappa", concentration, way_out=way_out)])
        frozen = distribution(loc, concentration, validate_args=True)
        super().__init__(frozen, frozen, seed)

    def __repr__(self) -> str:
        return f"{self._around.family.name}(mu={_shown(self.mu)}, kappa={_shown(self.kappa)})"

    @property
    def mu(self) -> Array:
        """The mean direction, (…, d)."""
        return self._around.loc.numpy().copy()

    @property
    def kappa(self) -> Any:
        """The concentration."""
        return array_of(self._around.concentration)


class FrozenUniform(FrozenSpherical):
    """The uniform distribution on the unit sphere of R^dim. Angles are measured from any fixed direction."""

    def __init__(self, dim: int, seed: Any = None) -> None:
        distribution = HypersphericalUniform(dim, dtype=torch.float64, device="cpu", validate_args=True)
        pole = torch.eye(1, distribution.dim, dtype=torch.float64)[0]
        super().__init__(distribution, PowerSpherical(pole, 0.0), seed)

    def __repr__(self) -> str:
        return f"uniform_sphere(dim={self.dim})"


def _shown(value: Any) -> str:
    return repr(value.tolist()) if value.size <= _SHOWN else f"<array of shape {value.shape}>"
