"""The published methods as posteriors for training auto-encoders.

Each has differentiable draws by the published sampler and the published KL divergence to the uniform, both from
`formulas`. The gradients are the published ones too. For the Power Spherical (De Cao & Aziz 2020) they go through
torch's Beta draw. For the von Mises–Fisher (Davidson et al. 2018) they go through the accepted proposal and SciPy's
Bessel functions, without the score-function term.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from powerspherical import HypersphericalUniform
from powerspherical.distributions.constraints import unit_vector
from powerspherical_paper.baselines import formulas

REFERENCE = "power_spherical"
"""The package of the paper's authors."""


class Published(Distribution):
    """A published family with unit vectors `loc` (…, d) and a `concentration` that broadcasts to (…)."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # nothing is validated
    support = unit_vector
    has_rsample = True

    #: Draws, one per concentration.
    draw: ClassVar[staticmethod[[Tensor, Tensor], Tensor]]
    #: KL(·‖U) as a function of dimension and concentration, tensors of one dtype.
    kl_uniform: ClassVar[staticmethod[[Tensor, Tensor], Tensor]]
    #: The dtype for the divergence. Default: that of the concentration.
    kl_dtype: ClassVar[torch.dtype | None] = None

    def __init__(self, loc: Tensor, concentration: Tensor) -> None:
        self.loc, self.concentration = loc, concentration
        batch_shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
        super().__init__(batch_shape, loc.shape[-1:], validate_args=False)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draws (*sample_shape, *batch_shape, d) with the published gradient."""
        shape = torch.Size(sample_shape) + self.batch_shape
        return self.draw(self.loc, self.concentration.expand(shape))


class PublishedPowerSpherical(Published):
    """The Power Spherical distribution as De Cao & Aziz (2020) compute it."""

    draw = staticmethod(formulas.power_spherical)
    kl_uniform = staticmethod(formulas.power_spherical_kl_uniform)


class PublishedVonMisesFisher(Published):
    """The von Mises–Fisher distribution as Davidson et al. (2018) compute it.

    The cosine and the divergence are computed in float64. In float32, the sampler may not terminate for large κ, and
    the scaled Bessel function underflows.
    """

    draw = staticmethod(partial(formulas.von_mises_fisher, wide=True))
    kl_uniform = staticmethod(formulas.von_mises_fisher_kl_uniform)
    kl_dtype = torch.float64


@register_kl(Published, HypersphericalUniform)
def _kl_uniform(p: Published, q: HypersphericalUniform) -> Tensor:
    exact = p.concentration.to(p.kl_dtype or p.concentration.dtype)
    divergence = p.kl_uniform(exact.new_full((), p.event_shape[0]), exact)
    return divergence.to(p.concentration.dtype).expand(p.batch_shape)


def has_reference() -> bool:
    """Whether the package of the paper's authors is installed."""
    return importlib.util.find_spec(REFERENCE) is not None


def reference_package() -> Any:
    """The package of the paper's authors."""
    return importlib.import_module(REFERENCE)


class ReferencePowerSpherical(Published):
    """The authors' own class, without validation, and with the batch shape of its draws."""

    def __init__(self, loc: Tensor, concentration: Tensor) -> None:
        super().__init__(loc, concentration)
        self.theirs = reference_package().PowerSpherical(loc, concentration, validate_args=False)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        return self.theirs.rsample(sample_shape)


@register_kl(ReferencePowerSpherical, HypersphericalUniform)
def _reference_kl_uniform(p: ReferencePowerSpherical, q: HypersphericalUniform) -> Tensor:
    return q.entropy() - p.theirs.entropy()


class PublishedHead(nn.Module):
    """Maps features to a published family with μ = v/‖v‖ and κ = softplus(r) + 1 (Davidson et al. 2018)."""

    def __init__(self, family: type[Published], in_features: int, dim: int) -> None:
        super().__init__()
        self.family = family
        self.linear = nn.Linear(in_features, dim + 1)

    def forward(self, features: Tensor) -> Published:
        outputs = self.linear(features)
        loc = outputs[..., :-1]
        loc = loc / loc.norm(dim=-1, keepdim=True)
        return self.family(loc, nn.functional.softplus(outputs[..., -1]) + 1)
