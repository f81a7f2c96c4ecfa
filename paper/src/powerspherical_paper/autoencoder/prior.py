"""A prior as a module: its parameters are buffers, which move to devices and are saved with the model."""

from __future__ import annotations

from typing import Any

from torch import Size, Tensor, nn
from torch.distributions import Distribution, Independent

from powerspherical.distributions import HypersphericalUniform, RotationallySymmetric


class Prior(nn.Module):
    """Wraps a distribution of this package, or an ``Independent`` of one. Calling it returns the distribution.

    The parameters are constant. Device and dtype follow the module that contains the prior.
    """

    _like: Tensor
    loc: Tensor
    concentration: Tensor

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        base, self._independent = distribution, 0
        while isinstance(base, Independent):
            self._independent += base.reinterpreted_batch_ndims
            base = base.base_dist
        self._distribution: Any = type(base)
        if isinstance(base, HypersphericalUniform):
            self._dim, self._batch_shape = base.dim, tuple(base.batch_shape)
            self.register_buffer("_like", base.mean.new_empty(0), persistent=False)
        elif isinstance(base, RotationallySymmetric):
            if base.loc.requires_grad or base.concentration.requires_grad:
                raise ValueError(
                    "prior has parameters that require gradients; to learn a prior, pass an nn.Module whose forward() "
                    "builds the distribution from its own parameters"
                )
            self.register_buffer("loc", base.loc.clone())
            self.register_buffer("concentration", base.concentration.clone())
        else:
            raise ValueError(
                "prior must be a HypersphericalUniform or a RotationallySymmetric distribution such as PowerSpherical, "
                f"an Independent of one, or an nn.Module whose forward() returns a distribution, got {distribution!r}"
            )

    def forward(self) -> Distribution:
        base: Distribution
        if issubclass(self._distribution, HypersphericalUniform):
            like = self._like
            base = self._distribution(self._dim, dtype=like.dtype, device=like.device, validate_args=False)
            if self._batch_shape:
                base = base.expand(Size(self._batch_shape))
        else:
            base = self._distribution(self.loc, self.concentration, validate_args=False)
        return Independent(base, self._independent, validate_args=False) if self._independent else base

    def extra_repr(self) -> str:
        return repr(self())
