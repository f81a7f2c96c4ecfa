"""The auto-encoders: bounds and likelihoods against exact values, layers, posteriors and priors."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, kl_divergence

from helpers.directions import unit
from helpers.statistical import assert_mean
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical_paper.autoencoder.models import AutoEncoder, build, with_closest_von_mises_fisher

PIXELS, DOUBLE = 20, torch.float64
x = torch.randint(2, (7, PIXELS), generator=torch.Generator().manual_seed(0)).float()
spherical = pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher", "spherical_cauchy"])


class Fixed(nn.Module):
    """A head or a prior that returns the same distribution for every example."""

    def __init__(self, q):
        super().__init__()
        self.q = q

    def forward(self, *features):
        return self.q.expand(features[0].shape[:1]) if features else self.q


class Replay:
    """A posterior that returns given draws one after another."""

    def __init__(self, q, draws):
        self.log_prob, self.left = q.log_prob, draws

    def expand(self, batch_shape):
        return self

    def sample(self, shape):
        taken, self.left = self.left[: shape[0]], self.left[shape[0] :]
        return taken


def toy(prior, q):
    """A model of three bits that depend on a point of the circle, in float64."""
    decoder = nn.Linear(2, 3).double()
    with torch.no_grad():
        decoder.weight.copy_(torch.tensor([[3.0, -1.0], [0.5, 2.0], [-2.0, 2.0]]))
        decoder.bias.copy_(torch.tensor([0.3, -0.2, 0.1]))
    return AutoEncoder(nn.Identity(), decoder, Fixed(q), Fixed(prior))


class TestNumbers:
    @pytest.mark.parametrize("name", ["uniform", "vMF", "PS"])
    def test_on_the_circle(self, name):
        """Bound and likelihood agree with integrals over the circle by the trapezoidal rule."""
        pole = unit(2, seed=2)
        prior = {
            "uniform": HypersphericalUniform(2, dtype=DOUBLE),
            "vMF": VonMisesFisher(pole, 2.0),
            "PS": PowerSpherical(pole, 2.0),
        }[name]
        q = PowerSpherical(unit(2, seed=1), 0.4)  # with κ < (d-1)/2 the weights p/q have a finite variance
        model = toy(prior, q)
        bits = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=DOUBLE)

        angle = torch.arange(40_000, dtype=DOUBLE) * (2 * math.pi / 40_000)
        z = torch.stack((angle.cos(), angle.sin()), -1)
        log_p = model.decode(z).log_prob(bits.unsqueeze(1)).sum(-1)
        likelihood = (log_p + prior.log_prob(z)).exp().mean(-1) * 2 * math.pi
        reconstruction = (log_p * q.log_prob(z).exp()).mean(-1) * 2 * math.pi
        rate = ((q.log_prob(z) - prior.log_prob(z)) * q.log_prob(z).exp()).mean() * 2 * math.pi

        weights = model.log_likelihood(bits.repeat(20_000, 1), samples=1).exp()
        assert_mean(weights.unflatten(0, (20_000, 2)), likelihood)
        estimate = model.log_likelihood(bits, samples=20_000, chunk=2_000)
        assert ((estimate - likelihood.log()).abs() < 0.05).all()
        found = model.elbo(bits.repeat(20_000, 1))
        assert_mean(found.reconstruction.unflatten(0, (20_000, 2)).detach(), reconstruction)
        torch.testing.assert_close(found.rate[:2], rate.expand(2), rtol=1e-4, atol=1e-6)
        assert torch.equal(found.elbo, found.reconstruction - found.rate)

    def test_by_hand(self):
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

    def test_the_exact_posterior_gives_the_likelihood_from_one_draw(self):
        """If the bits do not depend on z, the posterior is the prior, and every weight is the likelihood."""
        model = build("power_spherical", 3, PIXELS)
        model.head = Fixed(HypersphericalUniform(3))
        with torch.no_grad():
            model.decoder[0].weight.zero_()
        exact = Bernoulli(logits=model.decoder(torch.zeros(1, 3))).log_prob(x).sum(-1).double()
        for samples, chunk in [(1, 100), (10, 3), (10, 10)]:
            torch.testing.assert_close(model.log_likelihood(x, samples, chunk), exact, rtol=1e-5, atol=0)

    def test_chunks(self):
        """The same draws give the same estimate for any chunk size. The memory is that of a chunk."""
        model, sizes = build("power_spherical", 4, PIXELS), []
        model.decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        q = model.encode(x)
        draws, found = q.sample((23,)), []
        for chunk in (10, 23, 1000):
            model.head = Fixed(Replay(q, draws))
            found.append(model.log_likelihood(x, samples=23, chunk=chunk))
            torch.testing.assert_close(found[-1], found[0])
        assert sizes == [70, 70, 21, 161, 161]
        assert (found[0].dtype, found[0].requires_grad) == (DOUBLE, False)

    def test_far_below_the_smallest_number(self):
        model = build("power_spherical", 4, PIXELS)
        with torch.no_grad():
            model.decoder[-1].bias.fill_(1e4)
        estimate = model.log_likelihood(torch.zeros(2, PIXELS), samples=200)
        torch.testing.assert_close(estimate, torch.full((2,), -PIXELS * 1e4, dtype=DOUBLE), rtol=1e-3, atol=0)

    def test_too_few_samples(self):
        model = build("power_spherical", 4, PIXELS)
        with pytest.raises(ValueError, match=r"^samples must be ≥ 1, got 0$"):
            model.elbo(x, samples=0)
        with pytest.raises(ValueError, match=r"^samples and chunk must be ≥ 1, got 0 and 100$"):
            model.log_likelihood(x, samples=0)


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
    assert (model.encode(x).batch_shape, model.encode(x).event_shape) == ((7,), (5,))
    assert model.reconstruct(x).shape == model.sample(7).shape == x.shape
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


@spherical
@pytest.mark.parametrize("dim", [5, 40])
def test_the_least_concentrations_mean_about_the_same(posterior, dim):
    """The mean has a length of about 1/d, and the rate is a fraction of a nat."""
    model = build(posterior, dim, PIXELS)
    with torch.no_grad():
        model.head.linear.weight.zero_()
        model.head.linear.bias[-1] = -50.0
        q = model.encode(x)
    torch.testing.assert_close(q.mean.norm(dim=-1), torch.full((len(x),), 1 / dim), rtol=0.3, atol=0)
    assert kl_divergence(q, HypersphericalUniform(dim)).max() < 0.6 / dim


def test_priors():
    uniform = build("power_spherical", 5, PIXELS).prior()
    assert uniform.log_prob(torch.eye(5)[0]).item() == pytest.approx(-math.log(8 * math.pi**2 / 3))
    prior = build("power_spherical", 5, PIXELS, prior="von_mises_fisher").prior()
    assert type(prior) is VonMisesFisher
    assert torch.equal(prior.loc, torch.eye(5)[0])
    assert prior.concentration == 10
    model = build("gaussian", 5, PIXELS)
    assert model.prior().log_prob(torch.zeros(5)).item() == pytest.approx(-2.5 * math.log(2 * math.pi))
    assert model.to("meta").prior().mean.device.type == "meta"
    with pytest.raises(ValueError, match="unknown prior 'unifrom'; choose uniform or von_mises_fisher"):
        build("power_spherical", 3, PIXELS, prior="unifrom")


@pytest.mark.parametrize("prior", ["uniform", "von_mises_fisher"])
def test_product(prior):
    model = build("power_spherical", 3, PIXELS, prior=prior, factors=4)
    assert model.encode(x).event_shape == model.prior().event_shape == (4, 3)
    assert model.log_likelihood(x, samples=2).isfinite().all()


def test_the_closest_distribution():
    model = build("power_spherical", 5, PIXELS)
    other = with_closest_von_mises_fisher(model)
    q, closest = model.encode(x), other.encode(x)
    assert type(closest) is VonMisesFisher
    torch.testing.assert_close(closest.mean, q.mean, rtol=1e-4, atol=1e-5)
    assert other.decoder is model.decoder
    assert other.prior is model.prior
