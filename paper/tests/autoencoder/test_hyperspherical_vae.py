"""The hyperspherical VAE: bounds and likelihoods against exact integrals, priors, shapes, copies."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence

from helpers.examples import directions
from helpers.statistical import assert_mean
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.nn import PowerSphericalHead, SphericalCauchyHead, VonMisesFisherHead
from powerspherical_paper.autoencoder.hyperspherical_vae import HypersphericalVAE, Objective, Pass

PIXELS, HIDDEN, DIM = 12, 16, 4
DOUBLE = torch.float64


def bits(n: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (n, *(shape or (PIXELS,))), generator=generator).to(dtype)


def model_of(prior: Distribution | nn.Module | None = None, head: type = PowerSphericalHead, **options):
    features = options.get("product", 1) * DIM
    return HypersphericalVAE(
        nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.Tanh()),
        nn.Sequential(nn.Flatten(), nn.Linear(features, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, PIXELS)),
        head(HIDDEN, DIM, **options),
        prior,
    )


def gaussian(mean: Tensor) -> Distribution:
    return Independent(Normal(mean, 0.5), 1)


PRIORS = {
    "default": None,
    "uniform": HypersphericalUniform(DIM),
    "vMF": VonMisesFisher(directions(DIM, dtype=torch.float32), 3.0),
    "PS": PowerSpherical(directions(DIM, dtype=torch.float32), torch.tensor(3.0)),
    "Cauchy": SphericalCauchy(directions(DIM, dtype=torch.float32), 1.0),
}
priors = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
closest = PowerSpherical.closest_von_mises_fisher


class TestShapes:
    @priors
    @pytest.mark.parametrize(
        "head", [PowerSphericalHead, VonMisesFisherHead, SphericalCauchyHead], ids=["PS", "vMF", "Cauchy"]
    )
    @pytest.mark.parametrize("product", [None, 3])
    def test_everything(self, prior: Distribution | None, head: type, product: int | None) -> None:
        options = {} if product is None else {"product": product}
        model, x = model_of(prior, head, **options), bits(5)
        event = (DIM,) if product is None else (product, DIM)
        passed = model(x)
        assert isinstance(passed, Pass)
        posterior, z, reconstruction = passed
        assert (posterior.batch_shape, posterior.event_shape) == ((5,), event)
        assert z.shape == (5, *event)
        assert reconstruction.mean.shape == (5, PIXELS)
        assert model.prior().event_shape == event
        objective = model.elbo(x, samples=3)
        assert isinstance(objective, Objective)
        assert all(part.shape == (5,) and part.dtype == torch.float32 for part in objective)
        (-objective.elbo.mean()).backward()
        for parameter in model.parameters():
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().sum() > 0
        bound = model.log_likelihood(x, samples=7, chunk=3)
        assert (bound.shape, bound.dtype, bound.requires_grad) == ((5,), torch.float32, False)
        assert model.sample(2).shape == model.sample(2, mean=True).shape == (2, PIXELS)
        assert model.reconstruct(x).shape == model.reconstruct(x, sample=True).shape == (5, PIXELS)

    def test_latents_on_a_grid(self) -> None:
        """If an example has several latents, their rates are added."""
        model = HypersphericalVAE(
            nn.Conv2d(1, HIDDEN, 2, 2),
            nn.Sequential(Last(), nn.ConvTranspose2d(DIM, 1, 2, 2)),
            PowerSphericalHead(HIDDEN, DIM, axis=1, nats=2.0),
            HypersphericalUniform(DIM).expand((3, 3)),
        )
        x = bits(5, 1, 6, 6)
        assert model(x).latent.shape == (5, 3, 3, DIM)
        objective = model.elbo(x, samples=2)
        torch.testing.assert_close(objective.rate, torch.full((5,), 18.0))
        assert objective.elbo.shape == model.log_likelihood(x, samples=3).shape == (5,)
        assert model.sample(2).shape == (2, 1, 6, 6)

    def test_other_likelihoods(self) -> None:
        """A callable over vectors, and one over symbols."""
        model, x = model_of(), torch.randn(5, PIXELS)
        model.likelihood = gaussian
        assert model.elbo(x).elbo.shape == (5,)
        model.likelihood = lambda logits: Categorical(logits=logits.unflatten(-1, (4, 3)))
        model.encoder = nn.Sequential(nn.Linear(4, HIDDEN))
        symbols = torch.randint(3, (5, 4)).float()
        assert model.elbo(symbols).elbo.shape == (5,)
        assert model.sample(2).shape == (2, 4)

    def test_bad_arguments(self) -> None:
        parts = nn.Identity(), nn.Identity(), PowerSphericalHead(HIDDEN, DIM)
        with pytest.raises(ValueError, match=r"likelihood must be one of \['bernoulli'\]"):
            HypersphericalVAE(*parts, likelihood="gauss")
        with pytest.raises(ValueError, match=r"event shape \(5,\), but the posterior's is \(4,\)"):
            HypersphericalVAE(*parts, prior=HypersphericalUniform(5))
        with pytest.raises(
            ValueError,
            match=r"prior must be .* RotationallySymmetric distribution such as",
        ):
            HypersphericalVAE(*parts, prior=Independent(Normal(torch.zeros(DIM), 1.0), 1))
        learnt = VonMisesFisher(directions(DIM), torch.tensor(1.0, requires_grad=True))
        with pytest.raises(ValueError, match=r"to learn a prior, pass an nn\.Module"):
            HypersphericalVAE(*parts, prior=learnt)
        with pytest.raises(ValueError, match="Identity has no default prior"):
            HypersphericalVAE(nn.Identity(), nn.Identity(), nn.Identity())
        with pytest.raises(ValueError, match="samples must be ≥ 1, got 0"):
            model_of().elbo(bits(2), samples=0)
        with pytest.raises(ValueError, match="samples and chunk must be ≥ 1, got 0 and 100"):
            model_of().log_likelihood(bits(2), samples=0)

    def test_bad_shapes(self) -> None:
        model = model_of()
        with pytest.raises(ValueError, match="start with the number of examples"):
            model.elbo(bits(1)[0])
        model.decoder = nn.Linear(DIM, 1)
        with pytest.raises(ValueError, match=r"\(5, 12\), but the likelihood has shape \(1,\)"):
            model.elbo(bits(5))


class Last(nn.Module):
    """Moves channels from the last axis to the second."""

    def forward(self, z: Tensor) -> Tensor:
        return z.movedim(-1, 1)


class LearntPrior(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.ones(DIM + 1))

    def forward(self) -> Distribution:
        loc = nn.functional.normalize(self.raw[:DIM], dim=-1)
        return VonMisesFisher(loc, nn.functional.softplus(self.raw[DIM]), validate_args=False)


class TestPriors:
    @priors
    def test_rate_is_the_divergence(self, prior: Distribution | None) -> None:
        model, x = model_of(prior), bits(5)
        expected = kl_divergence(model.encode(x), prior or HypersphericalUniform(DIM))
        for beta in (1.0, 0.3):
            elbo, reconstruction, rate = model.elbo(x, beta)
            torch.testing.assert_close(rate, expected)
            torch.testing.assert_close(elbo, reconstruction - beta * rate)

    @pytest.mark.parametrize("product", [None, 3])
    def test_a_head_without_a_layer(self, product: int | None) -> None:
        factors = product or 1
        encoder, decoder = nn.Linear(PIXELS, factors * (DIM + 1)), nn.Linear(factors * DIM, PIXELS)
        head = PowerSphericalHead(None, DIM, product=product)
        model = HypersphericalVAE(encoder, nn.Sequential(nn.Flatten(), decoder), head)
        assert model.elbo(bits(5)).rate.shape == (5,)

    @priors
    def test_one_prior_for_every_factor(self, prior: Distribution | None) -> None:
        model, x = model_of(prior, product=3), bits(5)
        expected = kl_divergence(model.encode(x).base_dist, prior or HypersphericalUniform(DIM)).sum(-1)
        torch.testing.assert_close(model.elbo(x).rate, expected)

    def test_another_prior_for_each_factor(self) -> None:
        prior = VonMisesFisher(directions(3, DIM, dtype=torch.float32), torch.tensor([1.0, 5.0, 9.0]))
        model, x = model_of(Independent(prior, 1), product=3), bits(5)
        torch.testing.assert_close(
            model.elbo(x).rate, kl_divergence(model.encode(x).base_dist, prior).sum(-1)
        )

    def test_fixed_rate(self) -> None:
        rate = model_of(product=3, nats=4.0).elbo(bits(5)).rate
        torch.testing.assert_close(rate, torch.full((5,), 12.0))

    def test_learnt(self) -> None:
        model = model_of(LearntPrior())
        model.elbo(bits(5)).rate.sum().backward()
        assert (model.prior.raw.grad != 0).all()
        assert model.sample(3).shape == (3, PIXELS)

    def test_moves_with_the_model(self) -> None:
        for prior in PRIORS.values():
            model = model_of(prior).double()
            assert model.prior().sample().dtype == DOUBLE
            assert model.elbo(bits(2, dtype=DOUBLE)).elbo.dtype == DOUBLE
            assert model.sample(2).dtype == DOUBLE
            assert model.to("meta").prior().mean.device.type == "meta"


class Fixed(nn.Module):
    """A posterior that is the same for every example, in float64."""

    def __init__(self, q: Distribution) -> None:
        super().__init__()
        self.q = q

    def forward(self, x: Tensor) -> Distribution:
        return self.q.expand(x.shape[:1])


class TestLikelihood:
    def toy(self, prior: Distribution, q: Distribution) -> HypersphericalVAE:
        decoder = nn.Linear(2, 3).double()
        with torch.no_grad():
            decoder.weight.copy_(torch.tensor([[3.0, -1.0], [0.5, 2.0], [-2.0, 2.0]]))
            decoder.bias.copy_(torch.tensor([0.3, -0.2, 0.1]))
        return HypersphericalVAE(nn.Identity(), decoder, Fixed(q), prior)

    @pytest.mark.parametrize("posterior", [None, closest], ids=["PS", "closest vMF"])
    @pytest.mark.parametrize("name", ["uniform", "vMF", "PS"])
    def test_exact_on_the_circle(self, name: str, posterior) -> None:
        """Importance sampling agrees with the integral over the circle, by the trapezoidal rule."""
        pole = directions(2, seed=2)
        prior = {
            "uniform": HypersphericalUniform(2, dtype=DOUBLE),
            "vMF": VonMisesFisher(pole, 2.0),
            "PS": PowerSpherical(pole, 2.0),
        }[name]
        model = self.toy(prior, PowerSpherical(directions(2), 1.0))
        x = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=DOUBLE)

        angle = torch.arange(400, dtype=DOUBLE) * (2 * math.pi / 400)
        z = torch.stack((angle.cos(), angle.sin()), -1)
        joint = model.decode(z).log_prob(x.unsqueeze(1)).sum(-1) + prior.log_prob(z)
        exact = joint.logsumexp(-1) + math.log(2 * math.pi / 400)

        weights = model.log_likelihood(x.repeat(20000, 1), samples=1, posterior=posterior).exp()
        assert_mean(weights.unflatten(0, (20000, 2)), exact.exp())
        estimate = model.log_likelihood(x, samples=20000, chunk=2000, posterior=posterior)
        assert ((estimate - exact).abs() < 0.05).all()

    def test_exact_posterior_gives_the_likelihood_from_one_draw(self) -> None:
        """A Gaussian around z has the posterior vMF: every weight is the likelihood itself."""
        dim, scale = 3, 0.7
        x = directions(4, dim) * torch.tensor([[0.5], [1.0], [2.0], [0.1]], dtype=DOUBLE)
        length = x.norm(dim=-1)
        q = VonMisesFisher(x / length.unsqueeze(-1), length / scale**2)
        model = HypersphericalVAE(
            nn.Identity(),
            nn.Identity(),
            Fixed(q),
            HypersphericalUniform(dim, dtype=DOUBLE),
            lambda mean: Independent(Normal(mean, scale), 1),
        )
        exact = (
            q.log_normalizer
            - math.log(4 * math.pi)
            - (length.square() + 1) / (2 * scale**2)
            - dim / 2 * math.log(2 * math.pi * scale**2)
        )
        for samples, chunk in [(1, 100), (10, 3), (10, 10)]:
            torch.testing.assert_close(model.log_likelihood(x, samples, chunk), exact)
        objective = model.elbo(x, samples=200)  # the bound is tight
        reconstruction = objective.rate + exact
        assert ((objective.reconstruction - reconstruction).abs() < 0.5).all()

    def test_chunks_are_merged_exactly(self) -> None:
        """The same draws give the same estimate for any chunk size."""
        draws = directions(60, 2, 2)
        model, x = self.toy(HypersphericalUniform(2, dtype=DOUBLE), Replay(draws)), bits(2, 3, dtype=DOUBLE)
        whole = model.log_likelihood(x, samples=60, chunk=60)
        scores = model.decode(draws).log_prob(x).sum(-1) - math.log(2 * math.pi) - Replay.log_density(draws)
        torch.testing.assert_close(whole, scores.logsumexp(0) - math.log(60), rtol=1e-14, atol=0)
        for chunk in (1, 7, 30, 59, 1000):
            model.head.q = Replay(draws)
            torch.testing.assert_close(
                model.log_likelihood(x, samples=60, chunk=chunk), whole, rtol=1e-14, atol=0
            )

    def test_memory_is_that_of_a_chunk(self) -> None:
        model, sizes = model_of(), []
        model.decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[0]))
        model.log_likelihood(bits(5), samples=23, chunk=10)
        assert sizes == [50, 50, 15]

    def test_seed(self) -> None:
        model, x = model_of(), bits(5)
        torch.manual_seed(1)
        first = model.log_likelihood(x, samples=20)
        torch.manual_seed(1)
        assert torch.equal(model.log_likelihood(x, samples=20, chunk=1000), first)

    def test_far_below_the_smallest_number(self) -> None:
        model = model_of()
        with torch.no_grad():
            model.decoder[-1].bias.fill_(1e4)
        estimate = model.log_likelihood(torch.zeros(2, PIXELS), samples=200)
        torch.testing.assert_close(estimate, torch.full((2,), -PIXELS * 1e4), rtol=1e-3, atol=0)

    def test_posterior_of_a_product(self) -> None:
        """The transform is applied to each sphere."""
        seen = []

        def watched(q: PowerSpherical) -> VonMisesFisher:
            seen.append(q)
            return q.closest_von_mises_fisher()

        model, x = model_of(product=3), bits(5)
        assert model.log_likelihood(x, samples=5, posterior=watched).shape == (5,)
        assert seen[0].batch_shape == (5, 3)
        torch.testing.assert_close(model.reconstruct(x, posterior=closest), model.reconstruct(x))


class Replay(Distribution):
    """A posterior that returns given draws one after another."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, draws: Tensor) -> None:
        self.draws, self.next = draws, 0
        super().__init__(draws.shape[1:-1], draws.shape[-1:], validate_args=False)

    def expand(self, batch_shape: object, _instance: object = None) -> Distribution:
        return self

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        (count,) = sample_shape
        self.next += count
        return self.draws[self.next - count : self.next]

    @staticmethod
    def log_density(z: Tensor) -> Tensor:
        return 2 * z[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        return self.log_density(value)


@pytest.fixture(scope="module")
def trained() -> tuple[HypersphericalVAE, Tensor]:
    """A model of bits that depend on a point of a circle, and data."""
    torch.manual_seed(7)
    angle = torch.rand(256) * 2 * math.pi
    frame = torch.arange(PIXELS) * (2 * math.pi / PIXELS)
    x = torch.bernoulli(torch.sigmoid(6 * torch.cos(angle.unsqueeze(-1) - frame)))
    model = model_of(minimum=1.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        (-model.elbo(x).elbo.mean()).backward()
        optimiser.step()
    return model, x


class TestTraining:
    def test_learns_and_bounds(self, trained: tuple[HypersphericalVAE, Tensor]) -> None:
        model, x = trained
        with torch.no_grad():
            objective = model.elbo(x, samples=200)
        likelihood = model.log_likelihood(x, samples=1000)
        frequency = x.mean(0)
        independent = torch.distributions.Bernoulli(frequency).log_prob(x).sum(-1)
        assert objective.elbo.mean() > independent.mean() + 1.5
        assert objective.rate.mean() > 0.5
        # log p(x) = ELBO + KL(q‖p(z|x)), and the draws leave noise of about a tenth in the ELBO of an example.
        gap = likelihood - objective.elbo
        assert 0 < gap.mean() < 1.5
        assert gap.min() > -0.5
        with torch.no_grad():
            loose = model.elbo(x, beta=4.0, samples=200).elbo
        assert loose.mean() < objective.elbo.mean()

    def test_closest_vmf_serves_as_well(self, trained: tuple[HypersphericalVAE, Tensor]) -> None:
        model, x = trained
        own = model.log_likelihood(x[:64], samples=2000)
        other = model.log_likelihood(x[:64], samples=2000, posterior=closest)
        assert (own - other).abs().mean() < 0.1

    def test_reconstructions(self, trained: tuple[HypersphericalVAE, Tensor]) -> None:
        model, x = trained
        blank = (x - x.mean(0)).square().mean()
        assert (x - model.reconstruct(x)).square().mean() < 0.8 * blank
        # Neighbours on the ring agree as often in samples as in the data.
        draws = model.sample(2000)
        assert set(draws.unique().tolist()) == {0.0, 1.0}
        agreement = [(y == y.roll(1, -1)).float().mean() for y in (x, draws)]
        assert abs(agreement[0] - agreement[1]) < 0.15


class TestPrecision:
    def test_autocast(self) -> None:
        model, x = model_of(), bits(5)
        with torch.autocast("cpu", torch.bfloat16):
            objective = model.elbo(x)
            bound = model.log_likelihood(x, samples=10)
        assert all(part.dtype == torch.float32 for part in (*objective, bound))
        torch.testing.assert_close(objective.rate, model.elbo(x).rate, rtol=0.05, atol=0.01)
        objective.elbo.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    @priors
    def test_half_precision_model(self, prior: Distribution | None) -> None:
        model, x = model_of(prior).bfloat16(), bits(5, dtype=torch.bfloat16)
        assert model.elbo(x).elbo.dtype == torch.float32
        assert model.log_likelihood(x, samples=10).dtype == torch.float32
        assert model.sample(2).shape == (2, PIXELS)


class TestCopies:
    @priors
    def test_copies(self, prior: Distribution | None) -> None:
        model, x = model_of(prior, product=2), bits(5)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(copied.reconstruct(x), model.reconstruct(x))
            torch.testing.assert_close(copied.elbo(x).rate, model.elbo(x).rate)

    def test_state_dict(self) -> None:
        """The prior is part of the state."""
        model, other = (
            model_of(VonMisesFisher(directions(DIM, dtype=torch.float32, seed=seed), 2.0 * seed))
            for seed in (1, 2)
        )
        assert {"prior.loc", "prior.concentration"} < set(model.state_dict())
        other.load_state_dict(model.state_dict())
        x = bits(5)
        torch.testing.assert_close(other.elbo(x).rate, model.elbo(x).rate)
        torch.testing.assert_close(other.reconstruct(x), model.reconstruct(x))

    def test_representation(self) -> None:
        assert "HypersphericalUniform(dim: 4)" in repr(model_of())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "product",
    [
        None,
        pytest.param(
            2,
            marks=pytest.mark.skipif(
                torch.__version__ < "2.13",
                reason="this torch cannot trace the expand of its own distributions",
            ),
        ),
    ],
)
def test_compile(product: int | None) -> None:
    """One graph from data to bound, and its gradients."""
    torch.compiler.reset()
    options = {} if product is None else {"product": product}
    model, x = model_of(**options), bits(5)
    objective = torch.compile(model.elbo, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(objective.rate, model.elbo(x).rate)
    torch.testing.assert_close(objective.elbo, objective.reconstruction - objective.rate)
    (-objective.elbo.mean()).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0
    torch.compiler.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@priors
def test_cuda(prior: Distribution | None) -> None:
    """A model built on the CPU and moved: the prior moves too, and the rates do not change."""
    model, x = model_of(prior, product=2), bits(5)
    expected = model.elbo(x).rate
    model, x = model.cuda(), x.cuda()
    torch.testing.assert_close(model.elbo(x).rate.cpu(), expected, rtol=1e-3, atol=1e-4)
    with torch.autocast("cuda", torch.bfloat16):
        objective = model.elbo(x)
        bound = model.log_likelihood(x, samples=10)
    for value in (*objective, bound):
        assert (value.device.type, value.dtype) == ("cuda", torch.float32)
    assert model.sample(2).device.type == model.reconstruct(x).device.type == "cuda"
