"""The hyperspherical variational autoencoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, kl_divergence

from powerspherical._torch.modes import can_look
from powerspherical.distributions import HypersphericalUniform
from powerspherical.nn._prior import Prior
from powerspherical.nn.heads import SphericalHead
from powerspherical.sampling.precision import computing

#: What replaces the posterior of each sphere.
Transform = Callable[..., Distribution]


class Pass(NamedTuple):
    """What one pass through the model gives."""

    posterior: Distribution  #: q(z|x)
    latent: Tensor  #: z, one draw from it
    reconstruction: Distribution  #: p(x|z)


class Objective(NamedTuple):
    """The evidence lower bound of each example, of shape (B,), and its parts."""

    elbo: Tensor  #: reconstruction - β·rate
    reconstruction: Tensor  #: E log p(x|z), by draws of z
    rate: Tensor  #: KL(q(z|x)‖p(z)) in nats, exact


def bernoulli(logits: Tensor) -> Bernoulli:
    """Independent bits, in at least float32."""
    # torch's own validation looks at the values, which cannot be traced or captured in a CUDA graph.
    validate_args = None if can_look() else False
    return Bernoulli(logits=logits.to(computing(logits.dtype)), validate_args=validate_args)


LIKELIHOODS: dict[str, Callable[[Tensor], Distribution]] = {"bernoulli": bernoulli}


def _per_example(values: Tensor, axes: int) -> Tensor:
    """The sum over all but the first ``axes`` axes, in at least float32."""
    values = values.to(computing(values.dtype))
    return values.flatten(axes).sum(-1) if values.dim() > axes else values


class HypersphericalVAE(nn.Module):
    r"""A variational autoencoder whose latents are points on a sphere, or on a product of spheres.

    .. math:: \log p(x) \ge E_{q(z|x)} \log p(x|z) - \mathrm{KL}(q(z|x) \,\Vert\, p(z)),
              \qquad q(z|x) = \mathrm{head}(\mathrm{encoder}(x)),
              \quad p(x|z) = \mathrm{likelihood}(\mathrm{decoder}(z)).

    The divergence is computed exactly, for each pair of families. Data have the shape (B, …), the latents
    (B, …, d), and bounds and likelihoods are those of the B examples: where a head gives each example several latents,
    their terms are added. ``torch.compile(model.elbo, fullgraph=True)`` works. ``DistributedDataParallel``
    sees only calls of the module it wraps: wrap one whose ``forward`` returns the loss.

    Args:
        encoder: a module from x to features.
        decoder: a module from z to what the likelihood takes. It always sees a single batch axis in front: draws
            are folded into it.
        head: a module from features to a distribution, such as ``PowerSphericalHead``.
        prior: p(z): a ``HypersphericalUniform`` (the default, on the spheres of ``head``), a rotationally symmetric
            distribution such as ``PowerSpherical``, or an ``Independent`` of one. With a product of spheres, a prior of
            one sphere and no batch shape stands for every factor. Its parameters become buffers. A prior to be learnt
            is an ``nn.Module`` whose ``forward()`` returns the distribution. ``model.prior()`` is the distribution.
        likelihood: "bernoulli", for bits with the decoder's outputs as logits, or a callable from the decoder's
            outputs to a ``torch.distributions.Distribution`` over data.

    >>> import torch
    >>> from torch import nn
    >>> from powerspherical import PowerSpherical
    >>> from powerspherical.nn import PowerSphericalHead
    >>> model = HypersphericalVAE(
    ...     encoder=nn.Sequential(nn.Linear(20, 32), nn.ReLU()),
    ...     decoder=nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 20)),
    ...     head=PowerSphericalHead(32, dim=5),
    ... )
    >>> x = torch.bernoulli(torch.full((8, 20), 0.3))
    >>> objective = model.elbo(x)
    >>> (-objective.elbo.mean()).backward()
    >>> objective.rate.shape
    torch.Size([8])
    >>> model.log_likelihood(x, samples=500).shape
    torch.Size([8])
    >>> closest = PowerSpherical.closest_von_mises_fisher
    >>> model.log_likelihood(x, samples=500, posterior=closest).shape
    torch.Size([8])
    >>> model.sample(3).shape, model.reconstruct(x).shape
    (torch.Size([3, 20]), torch.Size([8, 20]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        head: nn.Module,
        prior: Distribution | nn.Module | None = None,
        likelihood: str | Callable[[Tensor], Distribution] = "bernoulli",
    ) -> None:
        super().__init__()
        if isinstance(likelihood, str) and likelihood not in LIKELIHOODS:
            raise ValueError(
                f"likelihood must be one of {sorted(LIKELIHOODS)} or a callable, got {likelihood!r}"
            )
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.prior = prior if isinstance(prior, nn.Module) else Prior(self._fitting(prior, head))
        self.likelihood = LIKELIHOODS[likelihood] if isinstance(likelihood, str) else likelihood

    @staticmethod
    def _fitting(prior: Distribution | None, head: nn.Module) -> Distribution:
        """The prior on the same product of spheres as the posterior."""
        if not isinstance(head, SphericalHead):
            if prior is None:
                raise ValueError(f"the prior of {type(head).__name__} is not known: pass prior=")
            return prior
        weight = head.linear.weight
        if prior is None:
            prior = HypersphericalUniform(head.dim, dtype=weight.dtype, device=weight.device)
        factors = () if head.product is None else (head.product,)
        if factors and prior.event_shape == (head.dim,) and not prior.batch_shape:
            prior = Independent(prior.expand(torch.Size(factors)), 1)
        expected = (*factors, head.dim)
        if prior.event_shape != expected:
            raise ValueError(
                f"prior has the event shape {tuple(prior.event_shape)}, but the posterior's is {expected}"
            )
        return prior

    def encode(self, x: Tensor) -> Distribution:
        """q(z|x), of batch shape (B, …)."""
        q: Distribution = self.head(self.encoder(x))
        if q.batch_shape[:1] != x.shape[:1]:
            raise ValueError(
                f"x of shape {tuple(x.shape)} gave a posterior of batch shape {tuple(q.batch_shape)}: "
                "both must start with the number of examples"
            )
        return q

    def decode(self, z: Tensor) -> Distribution:
        """p(x|z) for z (B, …, d)."""
        weight = next(self.decoder.parameters(), None)
        if weight is not None and weight.is_floating_point():
            z = z.to(weight.dtype)
        return self.likelihood(self.decoder(z))

    def forward(self, x: Tensor) -> Pass:
        """The posterior, a draw from it, and the distribution of the data given the draw."""
        q = self.encode(x)
        z = q.rsample()
        return Pass(q, z, self.decode(z))

    def _log_likelihood_of(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z) for draws z (S, B, …, d): (S, B)."""
        samples = z.shape[0]
        reconstruction = self.decode(z.flatten(0, 1))
        shape = reconstruction.batch_shape + reconstruction.event_shape
        # Broadcasting would hide a mistake: (B,) against (B, 1) is a (B, B) of no meaning.
        if shape[1:] != x.shape[1:]:
            raise ValueError(
                f"x of shape {tuple(x.shape)} cannot be scored by a likelihood over {tuple(shape[1:])} for each example"
            )
        targets = x.expand(samples, *x.shape).flatten(0, 1)
        return _per_example(reconstruction.log_prob(targets), 1).unflatten(0, (samples, x.shape[0]))

    def elbo(self, x: Tensor, beta: float = 1.0, samples: int = 1) -> Objective:
        """The evidence lower bound of each example, and its parts; to be maximised.

        ``beta`` weighs the rate: 1 gives the tightest lower bound of log p(x), less than 1 no bound. ``samples`` is
        the number of draws of z over which the reconstruction is averaged.
        """
        q = self.encode(x)
        reconstruction = self._log_likelihood_of(x, q.rsample(torch.Size((samples,)))).mean(0)
        rate = _per_example(kl_divergence(q, self.prior()), 1)
        return Objective(reconstruction - beta * rate, reconstruction, rate)

    @torch.no_grad()
    def log_likelihood(
        self, x: Tensor, samples: int = 5000, chunk: int = 100, posterior: Transform | None = None
    ) -> Tensor:
        r"""log p(x) of each example by importance sampling from the posterior, without gradients.

        .. math:: \log p(x) \approx \log \frac1S \sum_{s=1}^S \frac{p(x|z_s) p(z_s)}{q(z_s|x)}, \qquad z_s \sim q(z|x).

        On average a lower bound, at least the ELBO, that rises to log p(x) with ``samples``. ``chunk`` of the S draws
        are decoded at a time and their sum is merged exactly (in float64), so the memory needed is that of
        ``chunk``·B examples whatever S. ``posterior`` maps the posterior of each sphere to the distribution to draw
        from instead, such as ``PowerSpherical.closest_von_mises_fisher``.
        """
        if samples < 1 or chunk < 1:
            raise ValueError(f"samples and chunk must be ≥ 1, got {samples} and {chunk}")
        q, prior = self._replaced(self.encode(x), posterior), self.prior()
        total = torch.full(x.shape[:1], -math.inf, dtype=torch.float64, device=x.device)
        dtype = torch.float32
        for start in range(0, samples, chunk):
            z = q.sample(torch.Size((min(chunk, samples - start),)))
            ratio = prior.log_prob(z) - q.log_prob(z)
            weights = self._log_likelihood_of(x, z) + _per_example(ratio, 2)
            dtype = weights.dtype
            total = torch.logaddexp(total, torch.logsumexp(weights.double(), 0))
        return (total - math.log(samples)).to(dtype)

    @torch.no_grad()
    def reconstruct(self, x: Tensor, *, sample: bool = False, posterior: Transform | None = None) -> Tensor:
        """E[x|z] at the mode of the posterior, or with ``sample`` at a draw from it; without gradients.

        ``posterior`` maps the posterior of each sphere to another one first, as in ``log_likelihood``.
        """
        q = self._replaced(self.encode(x), posterior)
        return self.decode(q.sample() if sample else q.mode).mean

    @torch.no_grad()
    def sample(self, n: int, *, mean: bool = False) -> Tensor:
        """``n`` draws of x from p(x|z)p(z), or with ``mean`` the E[x|z] of draws of z; without gradients."""
        reconstruction = self.decode(self.prior().sample(torch.Size((n,))))
        return reconstruction.mean if mean else reconstruction.sample()

    @staticmethod
    def _replaced(q: Distribution, transform: Transform | None) -> Distribution:
        if transform is None:
            return q
        if isinstance(q, Independent):
            base = HypersphericalVAE._replaced(q.base_dist, transform)
            return Independent(base, q.reinterpreted_batch_ndims, validate_args=False)
        return transform(q)
