"""The auto-encoders of the table: their layers, posteriors and priors."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical_paper.autoencoder.models import build, with_closest_von_mises_fisher

PIXELS = 20
x = torch.randint(2, (7, PIXELS), generator=torch.Generator().manual_seed(0)).float()


@pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher", "spherical_cauchy", "gaussian"])
def test_layers(posterior):
    model = build(posterior, 5, PIXELS)
    sizes = [
        (layer.in_features, layer.out_features)
        for part in (model.encoder, model.decoder)
        for layer in part
        if isinstance(layer, nn.Linear)
    ]
    assert sizes == [(PIXELS, 256), (256, 128), (5, 128), (128, 256), (256, PIXELS)]
    q, z, reconstruction = model(x)
    assert (q.batch_shape, q.event_shape, z.shape) == ((7,), (5,), (7, 5))
    assert reconstruction.mean.shape == x.shape
    assert model.elbo(x).rate.min() > 0


@pytest.mark.parametrize(
    ("posterior", "family", "minimum"),
    [
        ("power_spherical", PowerSpherical, 1.0),
        ("von_mises_fisher", VonMisesFisher, 1.0),
        ("spherical_cauchy", SphericalCauchy, 0.2),
    ],
)
def test_concentrations(posterior, family, minimum):
    """κ = softplus(r) + 1, for the spherical Cauchy softplus(r) + 1/d; unbounded."""
    model = build(posterior, 5, PIXELS)
    with torch.no_grad():
        model.head.linear.weight.zero_()
        for raw in (-50.0, 0.0, 3000.0):
            model.head.linear.bias[-1] = raw
            q = model.encode(x)
            assert type(q) is family
            expected = nn.functional.softplus(torch.tensor(raw)) + minimum
            torch.testing.assert_close(q.concentration, expected.expand(7))


@pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher", "spherical_cauchy"])
@pytest.mark.parametrize("dim", [5, 40])
def test_the_least_concentrations_mean_about_the_same(posterior, dim):
    """The mean has a length of about 1/d, and the rate is a fraction of a nat."""
    model = build(posterior, dim, PIXELS)
    with torch.no_grad():
        model.head.linear.weight.zero_()
        model.head.linear.bias[-1] = -50.0
        q = model.encode(x)
    lengths = torch.full((len(x),), 1 / dim)
    torch.testing.assert_close(q.mean.norm(dim=-1), lengths, rtol=0.3, atol=0)
    rates = kl_divergence(q, HypersphericalUniform(dim))
    assert rates.max() < 0.6 / dim


def test_priors():
    assert build("power_spherical", 5, PIXELS).prior().log_prob(torch.eye(5)[0]).item() == pytest.approx(
        -math.log(8 * math.pi**2 / 3)
    )
    prior = build("power_spherical", 5, PIXELS, prior="von_mises_fisher").prior()
    assert type(prior) is VonMisesFisher
    assert torch.equal(prior.loc, torch.eye(5)[0])
    assert prior.concentration == 10
    normal = build("gaussian", 5, PIXELS).prior()
    assert normal.log_prob(torch.zeros(5)).item() == pytest.approx(-2.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("prior", ["uniform", "von_mises_fisher"])
def test_product(prior):
    model = build("power_spherical", 3, PIXELS, prior=prior, factors=4)
    assert model.encode(x).event_shape == model.prior().event_shape == (4, 3)
    assert model.log_likelihood(x, samples=2).isfinite().all()


def test_an_unknown_prior():
    with pytest.raises(ValueError, match="unknown prior 'unifrom'; choose uniform or von_mises_fisher"):
        build("power_spherical", 3, PIXELS, prior="unifrom")


def test_the_closest_distribution():
    model = build("power_spherical", 5, PIXELS)
    other = with_closest_von_mises_fisher(model)
    q, closest = model.encode(x), other.encode(x)
    assert type(closest) is VonMisesFisher
    torch.testing.assert_close(closest.mean, q.mean, rtol=1e-4, atol=1e-5)
    assert other.decoder is model.decoder
    assert other.prior is model.prior
