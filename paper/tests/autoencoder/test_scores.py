"""The scores against exact values: for a decoder that ignores z, and by quadrature on the circle."""

import math

import pytest
import torch
from torch.distributions import kl_divergence

from powerspherical_paper.autoencoder.models import build
from powerspherical_paper.autoencoder.scores import score

PIXELS = 6
posteriors = pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher"])


def bits(n):
    return torch.randint(2, (n, PIXELS), generator=torch.Generator().manual_seed(2)).float()


def deaf(posterior="power_spherical", dim=8):
    """A model whose decoder ignores z."""
    torch.manual_seed(4)
    model = build(posterior, dim, PIXELS)
    with torch.no_grad():
        model.decoder[0].weight.zero_()
    return model


def exact(model, x):
    """log p(x) and the ELBO of each x for a decoder that ignores z: p(x|z) = p(x)."""
    likelihood = model.decode(torch.zeros(len(x), model.head.dim)).log_prob(x).sum(-1).double()
    return likelihood, likelihood - kl_divergence(model.encode(x), model.prior())


@posteriors
@torch.no_grad()
def test_a_deaf_decoder(posterior):
    model, x = deaf(posterior), bits(45)  # three blocks, the last one smaller
    likelihood, elbo = exact(model, x)
    fractions = []
    found = score(model, x, samples=700, seed=0, progress=fractions.append)
    assert found.elbo == pytest.approx(elbo.mean().item(), abs=1e-5)
    assert found.log_likelihood == pytest.approx(likelihood.mean().item(), abs=0.02)
    assert found.log_likelihood > found.elbo + 0.05
    assert fractions == pytest.approx([1 / 3, 2 / 3, 1])


@torch.no_grad()
def test_the_circle():
    """Against integrals over all angles.

    Not for the Power Spherical distribution: its density vanishes at -μ, and where κ ≥ (d-1)/2 the weights p/q of its
    draws have no variance.
    """
    torch.manual_seed(4)
    model, x = build("von_mises_fisher", 2, PIXELS), bits(20)
    model.decoder[0].weight.mul_(8)  # a decoder that listens
    angles = torch.arange(720) * (2 * math.pi / 720)
    z = torch.stack([angles.cos(), angles.sin()], -1)
    # log p(x|z): (720, 20)
    log_p = model.decode(z).log_prob(x[:, None]).sum(-1).T.double()
    posterior_density = model.encode(x).log_prob(z[:, None]).double().exp()
    bound = (posterior_density * log_p).mean(0) * 2 * math.pi - kl_divergence(model.encode(x), model.prior())
    likelihood = log_p.logsumexp(0) - math.log(720)
    assert (log_p.std(0) > 0.05).all()
    found = score(model, x, samples=4000, seed=0)
    assert found.log_likelihood == pytest.approx(likelihood.mean().item(), abs=0.01)
    assert found.elbo == pytest.approx(bound.mean().item(), abs=0.05)


def test_the_seed_is_all_that_is_random():
    torch.manual_seed(4)
    model, x = build("power_spherical", 3, PIXELS), bits(5)
    first = score(model, x, samples=10, seed=0)
    torch.rand(3)
    assert score(model, x, samples=10, seed=0) == first
    assert score(model, x, samples=10, seed=1) != first


def test_no_gradients_are_kept():
    model = deaf()
    score(model, bits(2), samples=3, seed=0)
    assert all(parameter.grad is None for parameter in model.parameters())
