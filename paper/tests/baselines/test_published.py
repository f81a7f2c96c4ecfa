"""The published methods as posteriors: their gradients agree with ours, and auto-encoders train with them."""

import pytest
import torch
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical_paper.baselines.published import (
    PublishedHead,
    PublishedPowerSpherical,
    PublishedVonMisesFisher,
)

FAMILIES = [(PublishedPowerSpherical, PowerSpherical), (PublishedVonMisesFisher, VonMisesFisher)]
families = pytest.mark.parametrize(("published", "ours"), FAMILIES, ids=["PS", "vMF"])
published_only = pytest.mark.parametrize("published", [pair[0] for pair in FAMILIES], ids=["PS", "vMF"])


def unit(*shape):
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@families
@pytest.mark.parametrize("dim", [5, 10, 20, 40])
def test_divergence_from_the_uniform(published, ours, dim):
    torch.manual_seed(dim)
    loc, prior = unit(4, dim), HypersphericalUniform(dim)
    results = []
    for family in (published, ours):
        kappa = torch.tensor([1.0, 3.0, 30.0, 300.0], dtype=torch.float64, requires_grad=True)
        divergence = kl_divergence(family(loc, kappa), prior)
        results.append((divergence, *torch.autograd.grad(divergence.sum(), kappa)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)
    single = kl_divergence(published(loc.float(), torch.tensor(20.0)), prior)
    assert (single.dtype, single.shape) == (torch.float32, (4,))
    expected = kl_divergence(ours(loc, torch.tensor(20.0)), prior).float().expand(4)
    torch.testing.assert_close(single, expected, rtol=1e-4, atol=0)


@published_only
def test_draws_move_with_both_parameters(published):
    torch.manual_seed(2)
    loc, kappa = unit(5, 8).requires_grad_(), torch.full((5,), 10.0, dtype=torch.float64, requires_grad=True)
    target = unit(8)
    for gradient in torch.autograd.grad((published(loc, kappa).rsample() @ target).sum(), (loc, kappa)):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@published_only
def test_head(published):
    torch.manual_seed(3)
    q = PublishedHead(published, 16, 5)(10 * torch.randn(7, 16))
    assert isinstance(q, published)
    torch.testing.assert_close(q.loc.norm(dim=-1), torch.ones(7))
    assert (q.concentration > 1).all()
