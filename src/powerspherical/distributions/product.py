"""Products of spheres: independent unit vectors of one family and dimension as one event."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent
from typing_extensions import Self

from powerspherical.distributions import validation
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.distributions.sampling import Draws
from powerspherical.distributions.uniform import HypersphericalUniform

#: A distribution on one sphere.
Factor = RotationallySymmetric | HypersphericalUniform


class ProductOfSpheres(Draws, Independent):
    """m independent unit vectors of one family and dimension d, as one event of shape (m, d).

    It is a ``torch.distributions.Independent`` over the last batch axis of ``factors``. ``log_prob``, ``entropy`` and
    ``kl_divergence`` add the terms of the factors and are as accurate as those. In ``kl_divergence`` a product with
    m = 1 is compared with every factor of the other. To fit points x (n, …, m, d), use
    ``ProductOfSpheres(PowerSpherical.fit(x))``.

    Args:
        factors: distribution with batch shape (…, m) and event shape (d,): a rotationally symmetric one such as
            ``PowerSpherical``, or ``HypersphericalUniform``. It is kept as ``base_dist``.
        validate_args: as for torch's ``Independent``. ``factors`` checks its own values.

    A product of two circles for each of three positions, and its rate, the divergence from the uniform:

    >>> from torch.distributions import kl_divergence
    >>> from powerspherical import HypersphericalUniform, PowerSpherical
    >>> loc = torch.tensor([1.0, 0.0]).expand(3, 2, 2)
    >>> q = ProductOfSpheres(PowerSpherical(loc, torch.tensor([1.0, 10.0])))
    >>> q.batch_shape, q.event_shape, q.rsample((5,)).shape
    (torch.Size([3]), torch.Size([2, 2]), torch.Size([5, 3, 2, 2]))
    >>> uniform = ProductOfSpheres(HypersphericalUniform(2).expand((2,)))
    >>> kl_divergence(q, uniform)
    tensor([1.5555, 1.5555, 1.5555])
    >>> uniform.dim, uniform.log_prob(torch.eye(2)), uniform.entropy()  # 2 log 2π
    (2, tensor(-3.6758), tensor(3.6758))
    """

    base_dist: Factor

    def __init__(self, factors: Factor, validate_args: bool | None = None) -> None:
        if not isinstance(factors, Factor):
            raise ValueError(
                "factors must be one distribution on the sphere, such as PowerSpherical, with a batch axis for the "
                f"factors, got {factors!r}; for a list of distributions stack their parameters"
            )
        if not factors.batch_shape:
            raise ValueError(
                "factors must have the batch shape (…, m) for a product of m spheres, got (); use factors.expand((m,))"
            )
        super().__init__(factors, 1, validate_args)

    @property
    def dim(self) -> int:
        """The ambient dimension d of each sphere."""
        return self.base_dist.dim

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Return this distribution expanded to ``batch_shape``. No memory is copied."""
        return Independent.expand(self, batch_shape, self._get_checked_instance(ProductOfSpheres, _instance))

    @property
    def _like(self) -> Tensor:  # type: ignore[override]
        return self.base_dist._like

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        return self.base_dist._draws(shape + self.event_shape[:1], generator)

    def _points(self, noise: Tensor) -> Tensor:
        return self.base_dist._points(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at ``value`` (…, m, d), of shape (…) broadcast against the batch shape."""
        validation.ends_in("value", value, self.event_shape)  # (d,) or (1, d) would broadcast to all factors
        return self.base_dist.log_prob(value).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the factors' entropies, of the batch shape. Torch's method fails if that is empty."""
        return self.base_dist.entropy().sum(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_dist})"
