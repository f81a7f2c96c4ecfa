"""The variational auto-encoders of the paper's table: small feed-forward networks with a choice of posterior.

    encoder  pixels → 256 → tanh → 128 → tanh → parameters of the posterior
    decoder  d → 128 → tanh → 256 → tanh → pixels (logits of independent bits)

Power Spherical and von Mises–Fisher posteriors have κ = softplus(r) + 1, as in Davidson et al. (2018), whose experiment
the paper repeats. The spherical Cauchy posterior, our addition, has κ = softplus(r) + 1/d.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.nn import PowerSphericalHead, SphericalCauchyHead, VonMisesFisherHead
from powerspherical_paper.autoencoder.hyperspherical_vae import HypersphericalVAE
from powerspherical_paper.baselines.published import (
    PublishedHead,
    PublishedPowerSpherical,
    PublishedVonMisesFisher,
    ReferencePowerSpherical,
)

WIDTHS = (256, 128)
PRIOR_CONCENTRATION = 10.0  # of the von Mises–Fisher prior


class GaussianHead(nn.Module):
    """Maps features to a Gaussian with independent coordinates and standard deviations softplus(r)."""

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 2 * dim)

    def forward(self, features: Tensor) -> Independent:
        mean, raw = self.linear(features).chunk(2, -1)
        scale = nn.functional.softplus(raw)
        return Independent(Normal(mean, scale, validate_args=False), 1, validate_args=False)


class StandardNormal(nn.Module):
    """The prior of the Gaussian auto-encoder."""

    zeros: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("zeros", torch.zeros(dim), persistent=False)

    def forward(self) -> Independent:
        normal = Normal(self.zeros, torch.ones_like(self.zeros), validate_args=False)
        return Independent(normal, 1, validate_args=False)


def _spherical_cauchy_head(in_features: int, dim: int, **options: Any) -> SphericalCauchyHead:
    """A head with κ = softplus(r) + 1/d.

    The κ of the spherical Cauchy has another scale, ρ = κ/(κ+2). At κ = 1/d, its mean and KL(q‖U) are close to those of
    the other families at their lower bound κ = 1. With κ ≥ 1, every datum would cost at least 0.7 nats at d = 5 and 8.5
    at d = 40. With κ ≥ 0, the posterior collapsed to the prior on the digits, unlike the others.
    """
    return SphericalCauchyHead(in_features, dim, minimum=1 / dim, maximum=math.inf, **options)


#: The head of each posterior.
HEADS: dict[str, Any] = {
    "power_spherical": partial(PowerSphericalHead, minimum=1.0, maximum=math.inf),
    "von_mises_fisher": partial(VonMisesFisherHead, minimum=1.0, maximum=math.inf),
    "spherical_cauchy": _spherical_cauchy_head,
    "gaussian": GaussianHead,
    "published_power_spherical": partial(PublishedHead, PublishedPowerSpherical),
    "published_von_mises_fisher": partial(PublishedHead, PublishedVonMisesFisher),
    "reference_power_spherical": partial(PublishedHead, ReferencePowerSpherical),
}


def build(
    posterior: str, dim: int, pixels: int, *, prior: str = "uniform", factors: int | None = None
) -> HypersphericalVAE:
    """Build the auto-encoder of one row of the table, initialised from torch's generator.

    Args:
        posterior: a key of `HEADS`.
        dim: the ambient dimension d of each sphere, or the dimension of the Gaussian.
        pixels: the number of bits per datum.
        prior: "uniform" or "von_mises_fisher" (around the first unit vector). The Gaussian has a standard normal prior.
        factors: the number of spheres in a product, or None for a single sphere.
    """
    wide, narrow = WIDTHS
    encoder = nn.Sequential(nn.Linear(pixels, wide), nn.Tanh(), nn.Linear(wide, narrow), nn.Tanh())
    product = {} if factors is None else {"product": factors}
    head = HEADS[posterior](narrow, dim, **product)
    decoder = nn.Sequential(
        *([] if factors is None else [nn.Flatten()]),
        nn.Linear(dim * (factors or 1), narrow),
        nn.Tanh(),
        nn.Linear(narrow, wide),
        nn.Tanh(),
        nn.Linear(wide, pixels),
    )
    return HypersphericalVAE(encoder, decoder, head, prior=_prior(prior, head, dim))


def _prior(name: str, head: nn.Module, dim: int) -> Distribution | nn.Module:
    if isinstance(head, GaussianHead):
        return StandardNormal(dim)
    if name == "uniform":
        return HypersphericalUniform(dim)
    if name == "von_mises_fisher":
        return VonMisesFisher(torch.eye(1, dim)[0], PRIOR_CONCENTRATION)
    raise ValueError(f"unknown prior {name!r}; choose uniform or von_mises_fisher")


class _Closest(nn.Module):
    """A head that replaces a Power Spherical posterior by the closest von Mises–Fisher distribution."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Distribution:
        return self.head(features).closest_von_mises_fisher()


def with_closest_von_mises_fisher(model: HypersphericalVAE) -> HypersphericalVAE:
    """A model with a Power Spherical posterior, with each posterior replaced by the closest von Mises–Fisher."""
    return HypersphericalVAE(model.encoder, model.decoder, _Closest(model.head), prior=model.prior)
