"""The scores against exact values, for a decoder that ignores z."""

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


def test_the_seed_is_all_that_is_random():
    torch.manual_seed(4)
    model, x = build("power_spherical", 3, PIXELS), bits(5)
    first = score(model, x, samples=10, seed=0)
    torch.rand(3)
    assert score(model, x, samples=10, seed=0) == first
    assert score(model, x, samples=10, seed=1) != first
    assert all(parameter.grad is None for parameter in model.parameters())
