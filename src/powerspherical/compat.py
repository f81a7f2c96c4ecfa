"""The classes under the names and arguments of two other packages, so that only an import changes.

From ``power_spherical``, the package of the paper's authors (0.8.1): ``PowerSpherical``, ``MarginalTDistribution`` and
``HypersphericalUniform``. From s-vae-pytorch: ``VonMisesFisher``, and ``hyperspherical_uniform`` for its
``HypersphericalUniform``, which takes d-1. They are subclasses of ours. ``docs/migration.md`` lists what differs.

>>> import torch
>>> from torch.distributions import kl_divergence
>>> from powerspherical.compat import HypersphericalUniform, PowerSpherical
>>> loc = torch.nn.functional.normalize(torch.randn(8, 16), dim=-1)
>>> q = PowerSpherical(loc, scale=torch.full((8, 1), 50.0))
>>> q.rsample().shape, q.scale.shape
(torch.Size([8, 16]), torch.Size([8]))
>>> kl_divergence(q, HypersphericalUniform(16, "cpu", torch.float32)).shape
torch.Size([8])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Beta, Distribution

from powerspherical import distributions
from powerspherical.distributions.sampling import Draws
from powerspherical.families import derived
from powerspherical.special import log_sphere_area

__all__ = [
    "HypersphericalUniform",
    "MarginalTDistribution",
    "PowerSpherical",
    "VonMisesFisher",
    "hyperspherical_uniform",
]


class _Scaled(Distribution):
    concentration: Tensor

    @property
    def scale(self) -> Tensor:
        """The concentration κ, of shape ``batch_shape``."""
        return self.concentration


class HypersphericalUniform(distributions.HypersphericalUniform):
    """The uniform distribution on the unit sphere of R^dim, with ``device`` and ``dtype`` as positional arguments.

    Args:
        dim: the ambient dimension d ≥ 2, an integer or a tensor that holds one.
        device, dtype: of samples and moments; kept as attributes. ``log_prob`` follows those of its argument, where the
            original follows these.
        validate_args: whether ``log_prob`` checks that values lie on the sphere.

    >>> prior = HypersphericalUniform(3, "cpu", torch.float64)
    >>> prior.sample((5,)).shape, prior.dtype, prior.device
    (torch.Size([5, 3]), torch.float64, 'cpu')
    """

    def __init__(
        self,
        dim: int | Tensor,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(_integer(dim), dtype=dtype, device=device, validate_args=validate_args)
        self.device, self.dtype = device, dtype


class MarginalTDistribution(_Scaled, distributions.PowerSphericalMarginal):
    """The law of t = μᵀx for x Power Spherical: T = 2Z-1 with Z ~ Beta((dim-1)/2 + scale, (dim-1)/2).

    Args:
        dim: the ambient dimension d ≥ 2, an integer or a tensor that holds one.
        scale: the concentration κ ≥ 0, a number or a tensor; its shape is the batch shape.
        validate_args: as for ``powerspherical.PowerSphericalMarginal``.

    >>> t = MarginalTDistribution(3, torch.tensor(2.0))
    >>> t.scale, t.mean, t.base_dist.mean
    (tensor(2.), tensor(0.5000), tensor(0.7500))
    """

    def __init__(self, dim: int | Tensor, scale: Tensor | float, validate_args: bool | None = None) -> None:
        super().__init__(_integer(dim), _floating(scale, torch.get_default_dtype()), validate_args)

    @property
    def base_dist(self) -> Beta:
        """The distribution of (1+t)/2."""
        beta = torch.full_like(self.concentration, (self.dim - 1) / 2)
        return Beta(beta + self.concentration, beta, validate_args=False)


class Factors(NamedTuple):
    """The laws of t = μᵀx and of the direction in the tangent space, which on the circle is a sign (None)."""

    marginal_t: MarginalTDistribution
    marginal_s: HypersphericalUniform | None

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return draws (t, direction), of shape ``sample_shape + batch_shape + (d,)``."""
        t = self.marginal_t.rsample(sample_shape).unsqueeze(-1)
        if self.marginal_s is None:
            return torch.cat((t, torch.where(torch.rand_like(t) < 0.5, -1.0, 1.0)), -1)
        return torch.cat((t, self.marginal_s.rsample(t.shape[:-1])), -1)


class PowerSpherical(_Scaled, distributions.PowerSpherical):
    """The Power Spherical distribution with the arguments, attributes and methods of ``power_spherical`` 0.8.1.

    Args:
        loc, validate_args: as for ``powerspherical.PowerSpherical``, with ``loc`` of shape (…, d).
        scale: the concentration κ ≥ 0, a number or a tensor, also of integers, that broadcasts against
            ``loc.shape[:-1]``. A column, such as (B, 1) with ``loc`` of shape (B, d), counts as the shape (B,).

    As in the original, ``log_normalizer()`` is a method and has the opposite sign, ``variance`` is the covariance
    matrix, and ``stddev`` is its elementwise square root, NaN where the covariance is negative.

    >>> p = PowerSpherical(torch.tensor([0.0, 0.6, 0.8]), torch.tensor(4.0))
    >>> p.scale, p.log_normalizer()
    (tensor(4.), tensor(-3.6942))
    >>> p.variance.shape, p.base_dist.marginal_t.mean
    (torch.Size([3, 3]), tensor(0.6667))
    """

    def __init__(self, loc: Tensor, scale: Tensor | float, validate_args: bool | None = None) -> None:
        if isinstance(scale, Tensor) and isinstance(loc, Tensor):
            column = loc.dim() > 1 and scale.shape == (*loc.shape[:-1], 1)
            scale = _floating(scale.squeeze(-1) if column else scale, loc.dtype)
        super().__init__(loc, scale, validate_args)

    @property
    def base_dist(self) -> Factors:
        """The law of t = μᵀx, and the uniform distribution of the direction in the tangent space."""
        marginal_t = MarginalTDistribution(self.dim, self._exact_concentration, validate_args=False)
        tangent = self.dim - 1, self.loc.device, self.loc.dtype
        return Factors(marginal_t, HypersphericalUniform(*tangent) if self.dim > 2 else None)

    def log_normalizer(self) -> Tensor:  # type: ignore[override]
        """Return minus the log of the integral of (1 + μᵀx)^κ over the sphere, of shape ``batch_shape``."""
        # The compiler cannot trace a property of super().
        partition = derived.log_partition(self.family, self._exact_concentration, self.dim)
        return -partition - log_sphere_area(self.dim)

    @property
    def variance(self) -> Tensor:
        """The covariance matrix, of shape batch_shape + (d, d)."""
        return self.covariance_matrix


class _FromSVAE(Draws):
    @property
    def device(self) -> torch.device:
        """The device of draws."""
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of draws."""
        return self._like.dtype

    def sample(self, sample_shape: Any = torch.Size(), *, shape: Any = None, **options: Any) -> Tensor:
        """Return ``rsample`` without gradients. ``shape`` is another name of ``sample_shape``."""
        return super().sample(sample_shape if shape is None else shape, **options)

    def rsample(self, sample_shape: Any = torch.Size(), *, shape: Any = None, **options: Any) -> Tensor:
        """Return draws as our distributions do. ``shape`` is another name of ``sample_shape``."""
        return super().rsample(sample_shape if shape is None else shape, **options)


class VonMisesFisher(_FromSVAE, distributions.VonMisesFisher):
    """The von Mises–Fisher distribution with the arguments of s-vae-pytorch.

    Args:
        loc, validate_args: as for ``powerspherical.VonMisesFisher``, with ``loc`` of shape (…, d).
        scale: the concentrations κ ≥ 0, a number or a tensor whose last axis of length 1 is dropped: (B, 1) for ``loc``
            of shape (B, d).
        k: kept as an attribute and otherwise ignored.

    As in the original, ``log_prob``, ``entropy`` and KL divergences have the shape (…), and ``stddev`` is ``scale``.

    >>> loc = torch.nn.functional.normalize(torch.randn(8, 5), dim=-1)
    >>> q = VonMisesFisher(loc, torch.full((8, 1), 20.0))
    >>> q.rsample(3).shape, q.entropy().shape, q.scale.shape
    (torch.Size([3, 8, 5]), torch.Size([8]), torch.Size([8, 1]))
    >>> q.device, q.dtype
    (device(type='cpu'), torch.float32)
    """

    def __init__(
        self, loc: Tensor, scale: Tensor | float, validate_args: bool | None = None, k: int = 1
    ) -> None:
        if isinstance(scale, Tensor) and isinstance(loc, Tensor):
            column = 0 < scale.dim() == loc.dim()  # unless the axis is longer
            scale = _floating(scale.squeeze(-1) if column else scale, loc.dtype)
        super().__init__(loc, scale, validate_args)
        self.k = k

    @property
    def scale(self) -> Tensor:
        """The concentration κ, of shape batch_shape + (1,)."""
        return self.concentration.unsqueeze(-1)

    @property
    def stddev(self) -> Tensor:
        return self.scale


class hyperspherical_uniform(_FromSVAE, distributions.HypersphericalUniform):
    """The uniform distribution on the sphere *of dimension* ``dim``, in R^(dim+1).

    This is ``HypersphericalUniform`` of s-vae-pytorch, with its arguments: import it under that name. The attribute
    ``dim`` is the ambient dimension.

    >>> from powerspherical.compat import hyperspherical_uniform as HypersphericalUniform
    >>> prior = HypersphericalUniform(4)
    >>> prior.sample(shape=3).shape, prior.dim, prior.device, prior.dtype
    (torch.Size([3, 5]), 5, device(type='cpu'), torch.float32)
    """

    def __init__(
        self, dim: int | Tensor, validate_args: bool | None = None, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(_integer(dim) + 1, device=device, validate_args=validate_args)


def _integer(dim: Any) -> Any:
    """Return the number in an integer tensor, and other values as they are."""
    return dim.item() if isinstance(dim, Tensor) and not dim.is_floating_point() else dim


def _floating(value: Any, dtype: torch.dtype) -> Any:
    """Return an integer tensor in this dtype, and other values as they are."""
    return value.to(dtype) if isinstance(value, Tensor) and not value.is_floating_point() else value
