"""The auto-encoders and their scores: bounds and likelihoods against exact values, layers, posteriors and priors."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence

from helpers.directions import unit
from helpers.statistical import assert_mean
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical_paper.autoencoder.models import AutoEncoder, build, with_closest_von_mises_fisher
from powerspherical_paper.autoencoder.scores import score

PIXELS, DOUBLE = 20, torch.float64
x = torch.randint(2, (7, PIXELS), generator=torch.Generator().manual_seed(0)).float()


class Fixed(nn.Module):
    """A head or a prior that returns the same distribution for every example."""

    def __init__(self, q):
        super().__init__()
        self.q = q

    def forward(self, *features):
        return self.q.expand(features[0].shape[:1]) if features else self.q


@pytest.mark.parametrize("name", ["uniform", "vMF", "PS"])
def test_on_the_circle(name):
    """Bound and likelihood of three bits agree with integrals over the circle by the trapezoidal rule."""
    pole, sizes = unit(2, seed=2), []
    prior = {
        "uniform": HypersphericalUniform(2, dtype=DOUBLE),
        "vMF": VonMisesFisher(pole, 2.0),
        "PS": PowerSpherical(pole, 2.0),
    }[name]
    q = PowerSpherical(unit(2, seed=1), 0.4)  # with κ < (d-1)/2 the weights p/q have a finite variance
    decoder = nn.Linear(2, 3).double()
    with torch.no_grad():
        decoder.weight.copy_(torch.tensor([[3.0, -1.0], [0.5, 2.0], [-2.0, 2.0]]))
        decoder.bias.copy_(torch.tensor([0.3, -0.2, 0.1]))
    model = AutoEncoder(nn.Identity(), decoder, Fixed(q), Fixed(prior))
    bits = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=DOUBLE)

    angle = torch.arange(40_000, dtype=DOUBLE) * (2 * math.pi / 40_000)
    z = torch.stack((angle.cos(), angle.sin()), -1)
    log_p = model.decode(z).log_prob(bits.unsqueeze(1)).sum(-1)
    likelihood = (log_p + prior.log_prob(z)).exp().mean(-1) * 2 * math.pi
    reconstruction = (log_p * q.log_prob(z).exp()).mean(-1) * 2 * math.pi
    rate = ((q.log_prob(z) - prior.log_prob(z)) * q.log_prob(z).exp()).mean() * 2 * math.pi

    weights = model.log_likelihood(bits.repeat(20_000, 1), samples=1).exp()
    assert_mean(weights.unflatten(0, (20_000, 2)), likelihood)
    found = model.elbo(bits.repeat(20_000, 1))
    assert_mean(found.reconstruction.unflatten(0, (20_000, 2)).detach(), reconstruction)
    torch.testing.assert_close(found.rate[:2], rate.expand(2), rtol=1e-4, atol=1e-6)
    assert torch.equal(found.elbo, found.reconstruction - found.rate)
    # Many samples in chunks: the memory is that of a chunk, the last one is smaller.
    decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    estimate = model.log_likelihood(bits, samples=20_000, chunk=3_000)
    assert ((estimate - likelihood.log()).abs() < 0.05).all()
    assert sizes == 6 * [6_000] + [4_000]
    assert (estimate.dtype, estimate.requires_grad) == (DOUBLE, False)


def test_by_hand():
    """One draw of z at a time, with the probabilities of the bits multiplied one by one."""
    model = build("power_spherical", 3, PIXELS, prior="von_mises_fisher", factors=2)
    torch.manual_seed(5)
    found = model.elbo(x, samples=4)
    torch.manual_seed(5)
    q = model.encode(x)
    logs = []
    for z in q.rsample((4,)):
        p = torch.sigmoid(model.decoder(z))
        logs.append((p * x + (1 - p) * (1 - x)).log().sum(-1))
    prior = VonMisesFisher(torch.tensor([1.0, 0.0, 0.0]), 10.0)
    rate = kl_divergence(q.base_dist, prior).sum(-1)
    torch.testing.assert_close(found.reconstruction, torch.stack(logs).mean(0))
    torch.testing.assert_close(found.rate, rate)
    torch.testing.assert_close(found.elbo, torch.stack(logs).mean(0) - rate)


def test_far_below_the_smallest_number():
    model = build("power_spherical", 4, PIXELS)
    with torch.no_grad():
        model.decoder[-1].bias.fill_(1e4)
    estimate = model.log_likelihood(torch.zeros(2, PIXELS), samples=200)
    torch.testing.assert_close(estimate, torch.full((2,), -PIXELS * 1e4, dtype=DOUBLE), rtol=1e-3, atol=0)


@pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher"])
@torch.no_grad()
def test_scores(posterior):
    """Against exact values, for a decoder that ignores z: log p(x|z) = log p(x)."""
    torch.manual_seed(4)
    model = build(posterior, 8, 6)
    model.decoder[0].weight.zero_()
    bits = torch.randint(2, (45, 6), generator=torch.Generator().manual_seed(2)).float()  # three blocks
    likelihood = model.decode(torch.zeros(45, 8)).log_prob(bits).sum(-1).double()
    elbo = likelihood - kl_divergence(model.encode(bits), model.prior())
    found = score(model, bits, samples=700, seed=0)
    assert found.elbo == pytest.approx(elbo.mean().item(), abs=1e-5)
    assert found.log_likelihood == pytest.approx(likelihood.mean().item(), abs=0.02)
    assert found.log_likelihood > found.elbo + 0.05
    torch.rand(3)  # the seed is all that is random
    assert score(model, bits, samples=700, seed=0) == found
    assert score(model, bits, samples=700, seed=1) != found


@pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher", "spherical_cauchy", "gaussian"])
def test_layers(posterior):
    model = build(posterior, 5, PIXELS)
    layers = [one for part in (model.encoder, model.decoder) for one in part if isinstance(one, nn.Linear)]
    sizes = [(layer.in_features, layer.out_features) for layer in layers]
    assert sizes == [(PIXELS, 256), (256, 128), (5, 128), (128, 256), (256, PIXELS)]
    assert (model.encode(x).batch_shape, model.encode(x).event_shape) == ((7,), (5,))
    objective = model.elbo(x)
    assert objective.rate.min() > 0
    (-objective.elbo.mean()).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("posterior", "family", "minimum"),
    [
        ("power_spherical", PowerSpherical, 1.0),
        ("von_mises_fisher", VonMisesFisher, 1.0),
        ("spherical_cauchy", SphericalCauchy, 0.2),
    ],
)
def test_concentrations(posterior, family, minimum):
    """κ = softplus(r) + 1, for the spherical Cauchy softplus(r) + 1/d; unbounded. At the least, the rate is small."""
    model = build(posterior, 5, PIXELS)
    with torch.no_grad():
        model.head.linear.weight.zero_()
        for raw in (3000.0, 0.0, -50.0):
            model.head.linear.bias[-1] = raw
            q = model.encode(x)
            assert type(q) is family
            expected = nn.functional.softplus(torch.tensor(raw)) + minimum
            torch.testing.assert_close(q.concentration, expected.expand(7))
    assert kl_divergence(q, HypersphericalUniform(5)).max() < 0.12


def test_priors():
    uniform = build("power_spherical", 5, PIXELS).prior()
    assert uniform.log_prob(torch.eye(5)[0]).item() == pytest.approx(-math.log(8 * math.pi**2 / 3))
    prior = build("power_spherical", 5, PIXELS, prior="von_mises_fisher").prior()
    assert type(prior) is VonMisesFisher
    assert torch.equal(prior.loc, torch.eye(5)[0])
    assert prior.concentration == 10
    assert build("power_spherical", 3, PIXELS, factors=4).prior().event_shape == (4, 3)
    model = build("gaussian", 5, PIXELS)
    assert model.prior().log_prob(torch.zeros(5)).item() == pytest.approx(-2.5 * math.log(2 * math.pi))
    assert model.to("meta").prior().mean.device.type == "meta"
    with pytest.raises(ValueError, match="prior must be uniform or von_mises_fisher, got 'unifrom'"):
        build("power_spherical", 3, PIXELS, prior="unifrom")


def test_the_closest_distribution():
    model = build("power_spherical", 5, PIXELS)
    other = with_closest_von_mises_fisher(model)
    q, closest = model.encode(x), other.encode(x)
    assert type(closest) is VonMisesFisher
    torch.testing.assert_close(closest.mean, q.mean, rtol=1e-4, atol=1e-5)
    assert other.decoder is model.decoder
    assert other.prior is model.prior
