"""The hyperspherical variational autoencoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, kl_divergence

from powerspherical.distributions import HypersphericalUniform
from powerspherical.nn import SphericalHead
from powerspherical_paper.autoencoder.prior import Prior

#: Maps the posterior of each sphere to another distribution.
Transform = Callable[..., Distribution]


class Pass(NamedTuple):
    """The results of one pass through the model, ``HypersphericalVAE.forward``, for B examples.

    Attributes:
        posterior: q(z|x), with a batch shape that starts with B.
        latent: z, one draw from q(z|x) for each example, of shape (B, d), or (B, m, d) for a product of m spheres.
        reconstruction: p(x|z), a distribution over data of the shape of x.

    >>> import torch
    >>> from torch import nn
    >>> from powerspherical.nn import PowerSphericalHead
    >>> head = PowerSphericalHead(8, dim=3)
    >>> model = HypersphericalVAE(nn.Linear(20, 8), nn.Linear(3, 20), head)
    >>> found = model(torch.ones(4, 20))
    >>> found.posterior.batch_shape, found.latent.shape
    (torch.Size([4]), torch.Size([4, 3]))
    >>> found.reconstruction.mean.shape
    torch.Size([4, 20])
    """

    posterior: Distribution
    latent: Tensor
    reconstruction: Distribution


class Objective(NamedTuple):
    """The evidence lower bound per example and its parts, in nats, as ``HypersphericalVAE.elbo`` returns them.

    Attributes:
        elbo: reconstruction - β·rate, of shape (B,).
        reconstruction: E log p(x|z), averaged over draws of z, of shape (B,).
        rate: KL(q(z|x)‖p(z)), of shape (B,). It is exact, not estimated from draws.

    >>> import torch
    >>> from torch import nn
    >>> from powerspherical.nn import PowerSphericalHead
    >>> head = PowerSphericalHead(8, dim=3, nats=2.0)
    >>> model = HypersphericalVAE(nn.Linear(20, 8), nn.Linear(3, 20), head)
    >>> objective = model.elbo(torch.ones(4, 20), beta=0.5)
    >>> objective.rate.round(decimals=3)
    tensor([2., 2., 2., 2.])
    >>> torch.equal(objective.elbo, objective.reconstruction - 0.5 * objective.rate)
    True
    """

    elbo: Tensor
    reconstruction: Tensor
    rate: Tensor


def bernoulli(logits: Tensor) -> Bernoulli:
    """Independent Bernoulli variables, in at least float32."""
    # torch's validation reads values on the host, which fails while a CUDA graph is captured.
    return Bernoulli(logits=_at_least_float32(logits), validate_args=False)


LIKELIHOODS: dict[str, Callable[[Tensor], Distribution]] = {"bernoulli": bernoulli}


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _per_example(values: Tensor, axes: int) -> Tensor:
    """Sums over all but the first ``axes`` axes, in at least float32."""
    values = _at_least_float32(values)
    return values.flatten(axes).sum(-1) if values.dim() > axes else values


class HypersphericalVAE(nn.Module):
    r"""A variational autoencoder whose latents are points on a sphere, or on a product of spheres.

    .. math:: \log p(x) \ge E_{q(z|x)} \log p(x|z) - \mathrm{KL}(q(z|x) \,\Vert\, p(z)),
              \qquad q(z|x) = \mathrm{head}(\mathrm{encoder}(x)),
              \quad p(x|z) = \mathrm{likelihood}(\mathrm{decoder}(z)).

    The KL divergence is exact for all pairs of families. Data have shape (B, …) and latents (B, …, d). Bounds and
    likelihoods have shape (B,): if the head gives an example several latents, their terms are added.
    ``torch.compile(model.elbo, fullgraph=True)`` works. For ``DistributedDataParallel``, wrap a module whose
    ``forward`` returns the loss, because it handles only calls of ``forward``.

    Args:
        encoder: module that maps x to features.
        decoder: module that maps z to the input of the likelihood. Several draws are folded into the batch axis, so
            there is always exactly one.
        head: module that maps features to a distribution, such as ``PowerSphericalHead``.
        prior: p(z). A ``HypersphericalUniform`` (the default, on the spheres of ``head``), a rotationally symmetric
            distribution such as ``PowerSpherical``, or an ``Independent`` of one. Its parameters become buffers. With a
            product of spheres, a prior for one sphere without batch shape applies to every factor. To learn the prior,
            pass an ``nn.Module`` whose ``forward()`` returns it. ``model.prior()`` returns the distribution.
        likelihood: "bernoulli", for binary data with the decoder's outputs as logits, or a callable that maps the
            decoder's outputs to a ``torch.distributions.Distribution`` over data.

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
    >>> model.encode(x).batch_shape, model.decode(torch.eye(5)).mean.shape
    (torch.Size([8]), torch.Size([5, 20]))
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
        self.prior = prior if isinstance(prior, nn.Module) else Prior(self._matched_prior(prior, head))
        self.likelihood = LIKELIHOODS[likelihood] if isinstance(likelihood, str) else likelihood

    @staticmethod
    def _matched_prior(prior: Distribution | None, head: nn.Module) -> Distribution:
        """The prior on the same sphere, or product of spheres, as the posterior."""
        if not isinstance(head, SphericalHead):
            if prior is None:
                raise ValueError(f"{type(head).__name__} has no default prior: pass prior=…")
            return prior
        if prior is None:
            weight = next(head.parameters(), torch.empty(0))  # a head may have no linear layer
            prior = HypersphericalUniform(head.dim, dtype=weight.dtype, device=weight.device)
        factors = () if head.product is None else (head.product,)
        if factors and prior.event_shape == (head.dim,) and not prior.batch_shape:
            prior = Independent(prior.expand(torch.Size(factors)), 1)
        expected = (*factors, head.dim)
        if prior.event_shape != expected:
            raise ValueError(
                f"prior has event shape {tuple(prior.event_shape)}, but the posterior's is {expected}: "
                "the two must be equal"
            )
        return prior

    def encode(self, x: Tensor) -> Distribution:
        """Return the posterior q(z|x) for ``x`` of shape (B, …). Its batch shape starts with B."""
        q: Distribution = self.head(self.encoder(x))
        if q.batch_shape[:1] != x.shape[:1]:
            raise ValueError(
                f"x of shape {tuple(x.shape)} gave a posterior of batch shape {tuple(q.batch_shape)}: "
                "both must start with the number of examples"
            )
        return q

    def decode(self, z: Tensor) -> Distribution:
        """Return p(x|z), a distribution over data of shape (B, …).

        Args:
            z: unit vectors of shape (B, d), or (B, m, d) for a product of m spheres. They are converted to the dtype
                of the decoder.
        """
        weight = next(self.decoder.parameters(), None)
        if weight is not None and weight.is_floating_point():
            z = z.to(weight.dtype)
        return self.likelihood(self.decoder(z))

    def forward(self, x: Tensor) -> Pass:
        """Return the posterior for ``x`` of shape (B, …), a draw from it, and the distribution of data given the draw.

        >>> import torch
        >>> from torch import nn
        >>> from powerspherical.nn import PowerSphericalHead
        >>> head = PowerSphericalHead(8, dim=3)
        >>> model = HypersphericalVAE(nn.Linear(20, 8), nn.Linear(3, 20), head)
        >>> posterior, latent, reconstruction = model(torch.ones(4, 20))
        >>> latent.shape, reconstruction.mean.shape
        (torch.Size([4, 3]), torch.Size([4, 20]))
        """
        q = self.encode(x)
        z = q.rsample()
        return Pass(q, z, self.decode(z))

    def _log_likelihood_of(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z), of shape (S, B), for draws z of shape (S, B, …, d)."""
        samples = z.shape[0]
        reconstruction = self.decode(z.flatten(0, 1))
        shape = reconstruction.batch_shape + reconstruction.event_shape
        # Broadcasting would hide a mistake: (B,) against (B, 1) gives a meaningless (B, B).
        if shape[1:] != x.shape[1:]:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but the likelihood has shape {tuple(shape[1:])} per example"
            )
        targets = x.expand(samples, *x.shape).flatten(0, 1)
        return _per_example(reconstruction.log_prob(targets), 1).unflatten(0, (samples, x.shape[0]))

    def elbo(self, x: Tensor, beta: float = 1.0, samples: int = 1) -> Objective:
        """Return the evidence lower bound per example (to be maximised) and its parts, each of shape (B,).

        Args:
            x: data of shape (B, …).
            beta: weight of the rate. With 1 this is the usual bound on log p(x); below 1 it is no bound.
            samples: number of draws of z that the reconstruction is averaged over.
        """
        if samples < 1:
            raise ValueError(f"samples must be ≥ 1, got {samples}")
        q = self.encode(x)
        reconstruction = self._log_likelihood_of(x, q.rsample(torch.Size((samples,)))).mean(0)
        rate = _per_example(kl_divergence(q, self.prior()), 1)
        return Objective(reconstruction - beta * rate, reconstruction, rate)

    @torch.no_grad()
    def log_likelihood(
        self, x: Tensor, samples: int = 5000, chunk: int = 100, posterior: Transform | None = None
    ) -> Tensor:
        r"""Return an estimate of log p(x), of shape (B,), by importance sampling from the posterior. No gradients.

        .. math:: \log p(x) \approx \log \frac1S \sum_{s=1}^S \frac{p(x|z_s) p(z_s)}{q(z_s|x)}, \qquad z_s \sim q(z|x).

        Its mean is a lower bound on log p(x), at least as tight as the ELBO, and converges to log p(x) as S =
        ``samples`` grows. Sums are in float64.

        Args:
            x: data of shape (B, …).
            samples: number S of draws of z for each example.
            chunk: number of draws that are decoded at a time. Memory grows with it, but not with S.
            posterior: a function that maps the posterior of each sphere to another proposal, such as
                ``PowerSpherical.closest_von_mises_fisher``.
        """
        if samples < 1 or chunk < 1:
            raise ValueError(f"samples and chunk must be ≥ 1, got {samples} and {chunk}")
        q, prior = _replaced(self.encode(x), posterior), self.prior()
        total = torch.full(x.shape[:1], -math.inf, dtype=torch.float64, device=x.device)
        for start in range(0, samples, chunk):
            z = q.sample(torch.Size((min(chunk, samples - start),)))
            ratio = prior.log_prob(z) - q.log_prob(z)
            weights = self._log_likelihood_of(x, z) + _per_example(ratio, 2)
            total = torch.logaddexp(total, torch.logsumexp(weights.double(), 0))
        return (total - math.log(samples)).to(weights.dtype)

    @torch.no_grad()
    def reconstruct(self, x: Tensor, *, sample: bool = False, posterior: Transform | None = None) -> Tensor:
        """Return E[x|z], of the shape of ``x`` (B, …), with z the mode of the posterior. No gradients.

        Args:
            x: data of shape (B, …).
            sample: whether z is a draw from the posterior instead of its mode.
            posterior: a function that first replaces the posterior of each sphere, as in ``log_likelihood``.
        """
        q = _replaced(self.encode(x), posterior)
        return self.decode(q.sample() if sample else q.mode).mean

    @torch.no_grad()
    def sample(self, n: int, *, mean: bool = False) -> Tensor:
        """Return ``n`` draws of x from p(x|z)p(z), of shape (n, …). No gradients.

        With ``mean=True``, return E[x|z] for ``n`` draws of z instead.
        """
        reconstruction = self.decode(self.prior().sample(torch.Size((n,))))
        return reconstruction.mean if mean else reconstruction.sample()


def _replaced(q: Distribution, transform: Transform | None) -> Distribution:
    """The posterior with ``transform`` applied to each sphere."""
    if transform is None:
        return q
    if not isinstance(q, Independent):
        return transform(q)
    return Independent(_replaced(q.base_dist, transform), q.reinterpreted_batch_ndims, validate_args=False)
