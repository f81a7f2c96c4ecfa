"""The uniform distribution on the sphere."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from powerspherical._torch.vectors import computing, directions_of
from powerspherical.distributions import validation
from powerspherical.distributions.constraints import unit_vector
from powerspherical.distributions.sampling import Draws
from powerspherical.sampling import uniform
from powerspherical.special.gamma import log_sphere_area


class HypersphericalUniform(Draws):
    """The uniform distribution on the unit sphere of R^dim.

    Args:
        dim: the *ambient* dimension d ≥ 2; the sphere itself has dimension d-1.
        dtype, device: of samples and moments. Default: torch's.
        validate_args: whether ``log_prob`` checks that values lie on the sphere.

    ``expand`` makes batches. ``log_prob`` and ``kl_divergence`` follow the dtype and device of the other operand.

    >>> prior = HypersphericalUniform(3)
    >>> prior.entropy()  # log 4π
    tensor(2.5310)
    >>> prior.expand((5,)).sample().shape
    torch.Size([5, 3])
    >>> prior.log_prob(torch.eye(3))
    tensor([-2.5310, -2.5310, -2.5310])
    >>> prior.mean, prior.variance, prior.mode
    (tensor([0., 0., 0.]), tensor([0.3333, 0.3333, 0.3333]), tensor([nan, nan, nan]))
    >>> prior.expand((2,)).log_prob_matrix(torch.eye(3)).shape, prior.covariance_matrix.shape
    (torch.Size([2, 3]), torch.Size([3, 3]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = unit_vector

    def __init__(
        self,
        dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.dim = validation.dimension(dim)
        # An empty scalar remembers dtype and device.
        self._like = torch.empty((), dtype=dtype, device=device)
        if not self._like.is_floating_point():
            raise ValueError(f"dtype must be a floating-point dtype, got {dtype}")
        self._start(torch.Size(), torch.Size((self.dim,)), validate_args)

    def __repr__(self) -> str:
        batch = f", batch_shape: {tuple(self.batch_shape)}" if self.batch_shape else ""
        return f"{type(self).__name__}(dim: {self.dim}{batch})"

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        like = self._like
        size, dtype = (*shape, self.dim), computing(like.dtype)
        return uniform(size, dtype=dtype, device=like.device, generator=generator).to(like.dtype)

    def _points(self, noise: Tensor) -> Tensor:
        points = directions_of(noise).to(self._like.dtype)
        return points.expand(torch.broadcast_shapes(points.shape, self.batch_shape + self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return -log(area) for each unit vector of ``value`` (…, d), in its dtype (at least float32); NaN for NaN.

        Its shape is that of ``value`` without d, broadcast against the batch shape.
        """
        value = validation.on_sphere("value", value, self.dim, self._validate_args, self.batch_shape)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        density = value.new_full(shape, -log_sphere_area(self.dim), dtype=computing(value.dtype))
        return density.masked_fill(value.detach().sum(-1).isnan(), torch.nan)

    def log_prob_matrix(self, x: Tensor) -> Tensor:
        """Return ``log_prob`` of all points x (N, d), or (…, d), of shape batch_shape + (N,), or batch_shape + (…)."""
        x = validation.on_sphere("x", x, self.dim, self._validate_args)
        density = HypersphericalUniform(self.dim, validate_args=False).log_prob(x)
        return density.expand(*self.batch_shape, *density.shape)

    def entropy(self) -> Tensor:
        """Return log(area), of the batch shape."""
        dtype = computing(self._like.dtype)
        return self._like.new_full(self.batch_shape, log_sphere_area(self.dim), dtype=dtype)

    @property
    def mean(self) -> Tensor:
        """The origin, of shape batch_shape + (d,)."""
        return self._like.new_zeros(self._extended_shape())

    @property
    def mode(self) -> Tensor:
        """NaN, of shape batch_shape + (d,): every point is a mode (as for torch's Uniform)."""
        return self._like.new_full(self._extended_shape(), torch.nan)

    @property
    def variance(self) -> Tensor:
        """1/d for every coordinate, of shape batch_shape + (d,)."""
        return self._like.new_full(self._extended_shape(), 1 / self.dim)

    @property
    def covariance_matrix(self) -> Tensor:
        """The identity divided by d, of shape batch_shape + (d, d)."""
        return torch.diag_embed(self.variance)
