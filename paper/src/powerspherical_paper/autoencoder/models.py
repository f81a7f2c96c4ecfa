"""The variational auto-encoders of the paper's table: small feed-forward networks with a choice of posterior.

    encoder  pixels → 256 → tanh → 128 → tanh → parameters of the posterior
    decoder  d → 128 → tanh → 256 → tanh → pixels (logits of independent bits)

Power Spherical and von Mises–Fisher posteriors have κ = softplus(r) + 1, as in Davidson et al. (2018), whose experiment
the paper repeats. The spherical Cauchy posterior, our addition, has κ = softplus(r) + 1/d.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, Normal, kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical.nn import SphericalHead
from powerspherical_paper.baselines.published import (
    PublishedHead,
    PublishedPowerSpherical,
    PublishedVonMisesFisher,
    ReferencePowerSpherical,
)

WIDTHS = (256, 128)
PRIOR_CONCENTRATION = 10.0  # of the von Mises–Fisher prior


class Objective(NamedTuple):
    """The evidence lower bound (ELBO) of each example and its parts, in nats, each of shape (B,).

    Attributes:
        elbo: reconstruction - rate.
        reconstruction: E log p(x|z), averaged over draws of z.
        rate: KL(q(z|x)‖p(z)), by a closed form.
    """

    elbo: Tensor
    reconstruction: Tensor
    rate: Tensor


class AutoEncoder(nn.Module):
    """A variational auto-encoder of B examples of bits, of shape (B, pixels), with float32 parameters.

    Args:
        encoder: maps bits to features.
        decoder: maps latents, of the event shape of the posterior, to the logits of the bits.
        head: maps features to the posterior q(z|x), of batch shape (B,).
        prior: returns the prior p(z) when it is called.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, head: nn.Module, prior: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head, self.prior = encoder, decoder, head, prior

    def encode(self, x: Tensor) -> Distribution:
        """The posterior q(z|x)."""
        return self.head(self.encoder(x))

    def decode(self, z: Tensor) -> Bernoulli:
        """p(x|z), of batch shape (N, pixels) for N latents."""
        # torch's validation reads values on the host, which fails while a CUDA graph is captured.
        return Bernoulli(logits=self.decoder(z), validate_args=False)

    def _log_likelihood_of(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z), of shape (S, B), for draws z of shape (S, B, …)."""
        bits = x.expand(len(z), *x.shape).flatten(0, 1)
        return self.decode(z.flatten(0, 1)).log_prob(bits).sum(-1).unflatten(0, z.shape[:2])

    def elbo(self, x: Tensor, samples: int = 1) -> Objective:
        """The evidence lower bound of each example and its parts, with `samples` draws of z per example."""
        q = self.encode(x)
        reconstruction = self._log_likelihood_of(x, q.rsample(torch.Size((samples,)))).mean(0)
        rate = kl_divergence(q, self.prior())
        return Objective(reconstruction - rate, reconstruction, rate)

    @torch.no_grad()
    def log_likelihood(self, x: Tensor, samples: int = 5000, chunk: int = 100) -> Tensor:
        """An estimate of log p(x) per example, in float64, by importance sampling from the posterior.

        The estimate is log 1/S Σ p(x|z) p(z) / q(z|x) over S = `samples` draws of z. Its mean is a lower bound on
        log p(x), at least as tight as the ELBO. `chunk` draws are decoded at a time, which bounds the memory.
        """
        q, prior = self.encode(x), self.prior()
        total = torch.full(x.shape[:1], -math.inf, dtype=torch.float64, device=x.device)
        for start in range(0, samples, chunk):
            z = q.sample(torch.Size((min(chunk, samples - start),)))
            weights = self._log_likelihood_of(x, z) + (prior.log_prob(z) - q.log_prob(z))
            total = torch.logaddexp(total, torch.logsumexp(weights.double(), 0))
        return total - math.log(samples)


class GaussianHead(nn.Module):
    """Maps features to a Gaussian with independent coordinates and standard deviations softplus(r)."""

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 2 * dim)

    def forward(self, features: Tensor) -> Independent:
        mean, raw = self.linear(features).chunk(2, -1)
        scale = nn.functional.softplus(raw)
        return Independent(Normal(mean, scale, validate_args=False), 1, validate_args=False)


def _spherical_cauchy_head(in_features: int, dim: int, **options: Any) -> SphericalHead:
    """A head with κ = softplus(r) + 1/d.

    The κ of the spherical Cauchy has another scale, ρ = κ/(κ+2). At κ = 1/d, its mean and KL(q‖U) are close to those of
    the other families at their lower bound κ = 1. With κ ≥ 1, every datum would cost at least 0.7 nats at d = 5 and 8.5
    at d = 40. With κ ≥ 0, the posterior collapsed to the prior on the digits, unlike the others.
    """
    return SphericalHead(in_features, dim, "spherical_cauchy", minimum=1 / dim, maximum=math.inf, **options)


#: The head of each posterior.
HEADS: dict[str, Any] = {
    "power_spherical": partial(SphericalHead, minimum=1.0, maximum=math.inf),
    "von_mises_fisher": partial(SphericalHead, family="von_mises_fisher", minimum=1.0, maximum=math.inf),
    "spherical_cauchy": _spherical_cauchy_head,
    "gaussian": GaussianHead,
    "published_power_spherical": partial(PublishedHead, PublishedPowerSpherical),
    "published_von_mises_fisher": partial(PublishedHead, PublishedVonMisesFisher),
    "reference_power_spherical": partial(PublishedHead, ReferencePowerSpherical),
}


class Prior(nn.Module):
    """The prior: calling it returns the distribution. Its device is that of the model.

    Args:
        name: "uniform", "von_mises_fisher" (around the first unit vector) or "standard_normal".
        dim: the ambient dimension of each sphere, or the dimension of the Gaussian.
        factors: the number of spheres in a product, or None for a single sphere.
    """

    pole: Tensor

    def __init__(self, name: str, dim: int, factors: int | None = None) -> None:
        super().__init__()
        self.name, self.factors = name, factors
        self.register_buffer("pole", torch.eye(1, dim)[0], persistent=False)

    def forward(self) -> Distribution:
        pole, options = self.pole, {"validate_args": False}
        if self.name == "standard_normal":
            return Independent(Normal(torch.zeros_like(pole), torch.ones_like(pole), **options), 1, **options)
        base: Distribution = (
            HypersphericalUniform(len(pole), dtype=pole.dtype, device=pole.device, **options)
            if self.name == "uniform"
            else VonMisesFisher(pole, PRIOR_CONCENTRATION, **options)
        )
        return base if self.factors is None else Independent(base.expand((self.factors,)), 1, **options)


def build(
    posterior: str, dim: int, pixels: int, *, prior: str = "uniform", factors: int | None = None
) -> AutoEncoder:
    """Build the auto-encoder of one row of the table, initialised from torch's generator.

    Args:
        posterior: a key of `HEADS`.
        dim: the ambient dimension d of each sphere, or the dimension of the Gaussian.
        pixels: the number of bits per datum.
        prior: "uniform" or "von_mises_fisher" (around the first unit vector). The Gaussian has a standard normal prior.
        factors: the number of spheres in a product, or None for a single sphere.
    """
    if prior not in ("uniform", "von_mises_fisher"):
        raise ValueError(f"prior must be uniform or von_mises_fisher, got {prior!r}")
    wide, narrow = WIDTHS
    encoder = nn.Sequential(nn.Linear(pixels, wide), nn.Tanh(), nn.Linear(wide, narrow), nn.Tanh())
    head = HEADS[posterior](narrow, dim, **({} if factors is None else {"product": factors}))
    decoder = nn.Sequential(
        *([] if factors is None else [nn.Flatten()]),
        nn.Linear(dim * (factors or 1), narrow),
        nn.Tanh(),
        nn.Linear(narrow, wide),
        nn.Tanh(),
        nn.Linear(wide, pixels),
    )
    name = "standard_normal" if posterior == "gaussian" else prior
    return AutoEncoder(encoder, decoder, head, Prior(name, dim, factors))


class _Closest(nn.Module):
    """Replaces a Power Spherical posterior by the closest von Mises–Fisher distribution."""

    def forward(self, q: PowerSpherical) -> Distribution:
        return q.closest_von_mises_fisher()


def with_closest_von_mises_fisher(model: AutoEncoder) -> AutoEncoder:
    """A model with a Power Spherical posterior, with each posterior replaced by the closest von Mises–Fisher."""
    return AutoEncoder(model.encoder, model.decoder, nn.Sequential(model.head, _Closest()), model.prior)
