"""The distributions in Pyro: as sites of models and guides, in plates, and in variational inference."""

from __future__ import annotations

import importlib
import math
import sys

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import powerspherical
from helpers.examples import directions
from helpers.statistical import assert_mean
from powerspherical.distributions import unit_vector

pyro = pytest.importorskip("pyro")

from pyro import poutine  # noqa: E402
from pyro.distributions import constraints  # noqa: E402
from pyro.infer import (  # noqa: E402
    MCMC,
    NUTS,
    SVI,
    Predictive,
    Trace_ELBO,
    TraceMeanField_ELBO,
)
from pyro.infer.autoguide import (  # noqa: E402
    AutoDelta,
    AutoMultivariateNormal,
    AutoNormal,
    init_to_sample,
)

from powerspherical.pyro import (  # noqa: E402
    HypersphericalUniform,
    PowerSpherical,
    SphereReparam,
    SphericalCauchy,
    VonMisesFisher,
)

DIM = 4
CLASSES = {
    "PS": (PowerSpherical, powerspherical.PowerSpherical),
    "vMF": (VonMisesFisher, powerspherical.VonMisesFisher),
    "Cauchy": (SphericalCauchy, powerspherical.SphericalCauchy),
}
pyro_families = pytest.mark.parametrize(("family", "plain"), CLASSES.values(), ids=CLASSES)


@pytest.fixture(autouse=True)
def _fresh_store():
    pyro.clear_param_store()
    pyro.set_rng_seed(7)
    with pyro.validation_enabled(True):
        yield
    pyro.clear_param_store()


class TestClasses:
    @pyro_families
    def test_same_numbers(self, family: type, plain: type) -> None:
        loc, kappa = directions(3, DIM), torch.tensor([0.0, 2.0, 50.0])
        p, q = family(loc, kappa), plain(loc, kappa)
        x = q.sample()
        assert isinstance(p, plain)
        assert torch.equal(p.log_prob(x), q.log_prob(x))
        assert torch.equal(p.entropy(), q.entropy())
        torch.manual_seed(1)
        first = p()
        torch.manual_seed(1)
        assert torch.equal(first, q.rsample())
        assert torch.equal(p.sample(generator=torch.Generator().manual_seed(1)), first)

    @pyro_families
    def test_shapes(self, family: type, plain: type) -> None:
        p = family(directions(3, DIM), 2.0)
        assert p.shape((2,)) == (2, 3, DIM)
        assert p.event_dim == 1
        for expanded, batch_shape in (
            (p.expand((2, 3)), (2, 3)),
            (p.expand_by((2,)), (2, 3)),
            (p.expand_by((2,)).expand((5, 2, 3)), (5, 2, 3)),
        ):
            assert type(expanded) is family
            assert (expanded.batch_shape, expanded().shape) == (batch_shape, (*batch_shape, DIM))
        product = p.to_event(1)
        assert (product.batch_shape, product.event_shape) == ((), (3, DIM))
        assert product.log_prob(product()).shape == ()
        assert product.to_event(-1) is p
        masked = p.mask(torch.tensor([True, False, True]))
        assert masked.log_prob(masked())[1] == 0

    def test_uniform(self) -> None:
        prior = HypersphericalUniform(DIM)
        assert type(prior.expand_by((3,))) is HypersphericalUniform
        assert prior.expand_by((3,))().shape == (3, DIM)
        product = prior.expand((3, 2)).to_event(1)
        torch.testing.assert_close(product.log_prob(product()), -2 * prior.entropy().expand(3))

    @pyro_families
    def test_other_constructors(self, family: type, plain: type) -> None:
        loc = directions(3, DIM)
        for p, q in (
            (family.from_kl(loc, 1.5), plain.from_kl(loc, 1.5)),
            (family.from_mean_length(loc, 0.6), plain.from_mean_length(loc, 0.6)),
        ):
            assert type(p) is family
            torch.testing.assert_close(p.concentration, q.concentration)
            assert p().shape == (3, DIM)

    def test_closest_von_mises_fisher(self) -> None:
        closest = PowerSpherical(directions(3, DIM), 8.0, validate_args=False).closest_von_mises_fisher()
        assert type(closest) is VonMisesFisher
        assert closest().shape == (3, DIM)
        assert not closest._validate_args
        expected = powerspherical.PowerSpherical(directions(3, DIM), 8.0).closest_von_mises_fisher()
        torch.testing.assert_close(closest.concentration, expected.concentration)

    def test_divergences(self) -> None:
        """All pairs, also of a Pyro class and a plain one, and inside what Pyro wraps them in."""
        loc, other = directions(3, DIM), directions(3, DIM, seed=2)
        ours = [PowerSpherical(loc, 5.0), VonMisesFisher(other, 3.0), HypersphericalUniform(DIM).expand((3,))]
        plain = [
            powerspherical.PowerSpherical(loc, 5.0),
            powerspherical.VonMisesFisher(other, 3.0),
            powerspherical.HypersphericalUniform(DIM).expand((3,)),
        ]
        mask = torch.tensor([True, False, True])
        for p, plain_p in zip(ours, plain, strict=True):
            for q, plain_q in zip(ours, plain, strict=True):
                expected = kl_divergence(plain_p, plain_q)
                torch.testing.assert_close(kl_divergence(p, q), expected)
                torch.testing.assert_close(kl_divergence(p, plain_q), expected)
                torch.testing.assert_close(kl_divergence(p.to_event(1), q.to_event(1)), expected.sum())
                torch.testing.assert_close(kl_divergence(p.mask(mask), q.mask(True)), expected * mask)

    def test_without_pyro(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "pyro.distributions.torch_distribution", None)
        monkeypatch.delitem(sys.modules, "powerspherical.pyro")
        with pytest.raises(ImportError, match=r"needs Pyro: pip install 'powerspherical\[pyro\]'"):
            importlib.import_module("powerspherical.pyro")


class TestSites:
    def test_trace(self) -> None:
        def model() -> None:
            pole = pyro.sample("pole", HypersphericalUniform(DIM))
            with pyro.plate("rows", 5, dim=-2):
                row = pyro.sample("row", VonMisesFisher(pole, 4.0))
                with pyro.plate("columns", 3, dim=-1):
                    pyro.sample("cell", PowerSpherical(row, 9.0))
            pyro.sample("set", PowerSpherical(pole, 2.0).expand((6,)).to_event(1))

        trace = poutine.trace(model).get_trace()
        trace.compute_log_prob()
        shapes = {name: trace.nodes[name]["value"].shape for name in ("pole", "row", "cell", "set")}
        assert shapes == {"pole": (DIM,), "row": (5, 1, DIM), "cell": (5, 3, DIM), "set": (6, DIM)}
        scores = {name: trace.nodes[name]["log_prob"].shape for name in shapes}
        assert scores == {"pole": (), "row": (5, 1), "cell": (5, 3), "set": ()}
        assert trace.log_prob_sum().shape == ()
        total = sum(trace.nodes[name]["log_prob"].sum() for name in shapes)
        torch.testing.assert_close(trace.log_prob_sum(), total)
        assert len(trace.nodes["cell"]["value"].reshape(-1, DIM).unique(dim=0)) == 15

    def test_subsampled_plate(self) -> None:
        """The score is scaled up, and a learnt direction for each datum is indexed along the plate."""
        loc = directions(10, DIM)

        def guide() -> None:
            with pyro.plate("data", 10, subsample_size=4) as index:
                local = pyro.param("loc", loc, constraint=unit_vector, event_dim=1)
                assert local.shape == (4, DIM)
                torch.testing.assert_close(local, loc[index])
                pyro.sample("z", PowerSpherical(local, 5.0))

        trace = poutine.trace(guide).get_trace()
        trace.compute_log_prob()
        site = trace.nodes["z"]
        torch.testing.assert_close(site["log_prob_sum"], 2.5 * site["fn"].log_prob(site["value"]).sum())

    def test_observations_are_checked(self) -> None:
        def model(x: Tensor) -> None:
            pyro.sample("x", PowerSpherical(directions(DIM), 2.0), obs=x)

        on, off = directions(DIM, seed=2), 2 * directions(DIM, seed=2)
        poutine.trace(model).get_trace(on).compute_log_prob()
        with pytest.raises(ValueError, match="must hold unit vectors"):
            poutine.trace(model).get_trace(off).compute_log_prob()
        with pyro.validation_enabled(False):
            poutine.trace(model).get_trace(off).compute_log_prob()

    @pyro_families
    def test_validation_follows_pyro(self, family: type, plain: type) -> None:
        with pytest.raises(ValueError, match="must hold unit vectors"):
            family(2 * directions(DIM), 1.0)
        with pyro.validation_enabled(False):
            family(2 * directions(DIM), 1.0)
            with pytest.raises(ValueError, match="must hold unit vectors"):
                family(2 * directions(DIM), 1.0, validate_args=True)

    def test_predictive(self) -> None:
        def model() -> None:
            pole = pyro.sample("pole", HypersphericalUniform(DIM))
            with pyro.plate("data", 3):
                pyro.sample("x", VonMisesFisher(pole, 1000.0))

        def guide() -> None:
            loc = pyro.param("loc", directions(DIM), constraint=unit_vector)
            pyro.sample("pole", PowerSpherical(loc, 1e4))

        draws = Predictive(model, guide=guide, num_samples=20)()["x"]
        assert draws.shape == (20, 3, DIM)
        torch.testing.assert_close(draws.norm(dim=-1), torch.ones(20, 3, dtype=torch.float64))
        assert (draws @ directions(DIM)).min() > 0.95
        prior = Predictive(model, num_samples=2000, parallel=True)()
        assert prior["x"].shape == (2000, 3, DIM)
        assert_mean(prior["x"][:, 0], 0.0)
        assert (prior["x"] * prior["pole"]).sum(-1).min() > 0.95  # "pole" has the shape (2000, 1, d)


class TestParameters:
    def test_unit_vectors_stay_unit_vectors(self) -> None:
        """Ascent on the sphere finds the direction of the largest inner product."""
        target = directions(3, DIM, seed=2)
        optimiser = pyro.optim.Adam({"lr": 0.1})
        for _ in range(100):
            loc = pyro.param("loc", directions(3, DIM), constraint=unit_vector)
            torch.testing.assert_close(loc.norm(dim=-1), torch.ones(3, dtype=loc.dtype))
            (-(loc * target).sum()).backward()
            optimiser([loc.unconstrained()])
            pyro.infer.util.zero_grads([loc.unconstrained()])
        assert (pyro.param("loc") * target).sum(-1).min() > 0.999

    @pytest.mark.parametrize(
        "options", [{}, {"init_loc_fn": init_to_sample}], ids=["default", "init_to_sample"]
    )
    def test_point_estimate_by_autoguide(self, options: dict) -> None:
        """AutoDelta finds the mode, from wherever Pyro starts it: for a sphere, from the image of the origin."""
        data = directions(5, DIM)

        def model() -> None:
            pole = pyro.sample("pole", HypersphericalUniform(DIM, dtype=torch.float64))
            with pyro.plate("data", 5):
                pyro.sample("x", VonMisesFisher(pole, 4.0), obs=data)

        guide = AutoDelta(model, **options)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        for _ in range(200):
            svi.step()
        mode = torch.nn.functional.normalize(data.sum(0), dim=-1)
        assert guide.median()["pole"] @ mode > 0.999


def positive(name: str, start: Tensor) -> Tensor:
    return pyro.param(name, start, constraint=constraints.positive)


class TestInference:
    @pytest.mark.slow
    def test_mean_direction(self) -> None:
        """With a uniform prior on the mean direction of vMF data, the posterior is vMF in closed form."""
        truth, known = directions(DIM, seed=3), 6.0
        data = powerspherical.VonMisesFisher(truth, known).sample((15,))
        resultant = data.sum(0)
        length = resultant.norm()
        posterior = powerspherical.VonMisesFisher(resultant / length, known * length)
        likelihood = powerspherical.VonMisesFisher(truth, known)
        area = HypersphericalUniform(DIM, dtype=torch.float64).entropy()
        log_evidence = posterior.log_normalizer - area - 15 * likelihood.log_normalizer

        def model() -> None:
            pole = pyro.sample("pole", HypersphericalUniform(DIM, dtype=torch.float64))
            with pyro.plate("data", 15):
                pyro.sample("x", VonMisesFisher(pole, known), obs=data)

        def guide() -> None:
            loc = pyro.param("loc", directions(DIM, seed=6), constraint=unit_vector)
            kappa = positive("kappa", torch.tensor(10.0, dtype=torch.float64))
            pyro.sample("pole", PowerSpherical(loc, kappa))

        elbo = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.99}), elbo)
        before = svi.evaluate_loss()
        for _ in range(400):
            svi.step()
        learnt = powerspherical.PowerSpherical(pyro.param("loc").detach(), pyro.param("kappa").detach())
        assert learnt.loc @ posterior.loc > 0.999
        # The best of the family, by a search over its one other parameter.
        grid = torch.logspace(0, 4, 4001, dtype=torch.float64)
        gaps = kl_divergence(powerspherical.PowerSpherical(posterior.loc, grid), posterior)
        assert abs(math.log(learnt.concentration / grid[gaps.argmin()])) < 0.1
        gap = kl_divergence(learnt, posterior)
        assert gaps.min() <= gap < gaps.min() + 0.02
        # ELBO = log evidence - KL(guide‖posterior), here by 2000 particles.
        with torch.no_grad():
            losses = torch.tensor([elbo.loss(model, guide) for _ in range(250)], dtype=torch.float64)
        assert_mean(-losses, log_evidence - gap)
        assert losses.mean() < before - 5

    @pytest.mark.slow
    def test_latent_directions_in_a_plate(self) -> None:
        """A vMF prior and a vMF likelihood for each latent: the posterior is vMF along κ₀m + κx."""
        pole, prior_kappa, known, count = directions(DIM, seed=4), 3.0, 5.0, 6
        data = directions(count, DIM, seed=5)
        natural = prior_kappa * pole + known * data
        posterior = powerspherical.VonMisesFisher(
            torch.nn.functional.normalize(natural, dim=-1), natural.norm(dim=-1)
        )

        def model() -> None:
            with pyro.plate("data", count):
                z = pyro.sample("z", VonMisesFisher(pole, prior_kappa))
                pyro.sample("x", VonMisesFisher(z, known), obs=data)

        def guide() -> None:
            loc = pyro.param("loc", directions(count, DIM, seed=6), constraint=unit_vector)
            kappa = positive("kappa", torch.full((count,), 2.0, dtype=torch.float64))
            with pyro.plate("data", count):
                pyro.sample("z", PowerSpherical(loc, kappa))

        elbo = TraceMeanField_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.99}), elbo)
        losses = [svi.step() for _ in range(400)]
        assert sum(losses[-20:]) < sum(losses[:20])
        learnt = powerspherical.PowerSpherical(pyro.param("loc").detach(), pyro.param("kappa").detach())
        assert (learnt.loc * posterior.loc).sum(-1).min() > 0.995
        grid = posterior.concentration * torch.logspace(-1, 1, 1001, dtype=torch.float64)[:, None]
        gaps = kl_divergence(powerspherical.PowerSpherical(posterior.loc, grid), posterior).min(0).values
        assert (kl_divergence(learnt, posterior) < gaps + 0.03).all()

    @pyro_families
    def test_mean_field_uses_the_closed_form(self, family: type, plain: type) -> None:
        """Without data the loss is the divergence itself, without noise."""
        loc = directions(5, DIM)
        priors = {
            "vMF": VonMisesFisher(directions(DIM, seed=2), 3.0),
            "PS": PowerSpherical(directions(DIM, seed=2), 3.0),
            "Cauchy": SphericalCauchy(directions(DIM, seed=2), 3.0),
            "uniform": HypersphericalUniform(DIM, dtype=torch.float64),
        }

        def guide(_: object) -> None:
            with pyro.plate("data", 5):
                pyro.sample("z", family(loc, 4.0))

        def model(prior: object) -> None:
            with pyro.plate("data", 5):
                pyro.sample("z", prior)

        for prior in priors.values():
            expected = kl_divergence(plain(loc, 4.0), prior).sum()
            loss = TraceMeanField_ELBO().loss(model, guide, prior)
            assert loss == pytest.approx(expected.item(), rel=1e-12)


def test_marginals_are_sites_too() -> None:
    q = PowerSpherical(torch.eye(3)[0], 5.0)
    with pyro.plate("draws", 4):
        assert pyro.sample("t", q.marginal).shape == (4,)


class Conjugate:
    """Latent directions with a vMF prior and a vMF likelihood: the posterior of each is vMF along κ₀m + κx."""

    def __init__(self, rows: int = 2, prior: float = 3.0, known: float = 5.0) -> None:
        self.pole, self.prior, self.known = directions(DIM, seed=4), prior, known
        self.data = directions(rows, DIM, seed=5)
        natural = prior * self.pole + known * self.data
        self.posterior = powerspherical.VonMisesFisher(
            torch.nn.functional.normalize(natural, dim=-1), natural.norm(dim=-1)
        )
        parts = (powerspherical.VonMisesFisher(self.pole, kappa).log_normalizer for kappa in (prior, known))
        self.log_evidence = (self.posterior.log_normalizer - sum(parts)).sum()

    def model(self) -> None:
        with pyro.plate("rows", len(self.data)):
            z = pyro.sample("z", VonMisesFisher(self.pole, self.prior))
            pyro.sample("x", VonMisesFisher(z, self.known), obs=self.data)

    def guide(self) -> None:
        loc = pyro.param("loc", directions(len(self.data), DIM, seed=6), constraint=unit_vector)
        kappa = positive("kappa", torch.full((len(self.data),), 2.0, dtype=torch.float64))
        with pyro.plate("rows", len(self.data)):
            pyro.sample("z", PowerSpherical(loc, kappa))

    @property
    def free(self):
        return poutine.reparam(self.model, {"z": SphereReparam()})


class TestSphereReparam:
    def test_without_it_the_error_names_it(self) -> None:
        case = Conjugate()
        told = r"powerspherical\.pyro\.SphereReparam\(\)"
        for guide in (AutoNormal, AutoMultivariateNormal):
            with pytest.raises(NotImplementedError, match=told):
                guide(case.model)()
        with pytest.raises(NotImplementedError, match=told):
            MCMC(NUTS(case.model), 1, warmup_steps=1, disable_progbar=True).run()

    def test_wrong_sites(self) -> None:
        case = Conjugate()
        with pytest.raises(NotImplementedError, match="'x' is observed"):
            poutine.reparam(case.model, {"x": SphereReparam()})()
        with (
            pytest.raises(ValueError, match="needs a distribution on the unit sphere at the site 'y'"),
            poutine.reparam(config={"y": SphereReparam()}),
        ):
            pyro.sample("y", pyro.distributions.Normal(0.0, 1.0))

    @pyro_families
    @pytest.mark.parametrize("event", [False, True], ids=["batch", "event"])
    def test_density(self, family: type, plain: type, event: bool) -> None:
        """That of z is N(z; 0, I) times the density of x relative to the uniform; each vector has its own length."""
        p = family(directions(3, DIM), 4.0)
        area = HypersphericalUniform(DIM, dtype=torch.float64).entropy()

        def model() -> Tensor:
            return pyro.sample("x", p.to_event(1) if event else p)

        if not event:
            model = pyro.plate("rows", 3)(model)
        trace = poutine.trace(poutine.reparam(model, {"x": SphereReparam()})).get_trace()
        trace.compute_log_prob()
        x, z = trace.nodes["x"]["value"], trace.nodes["x_vector"]["value"]
        torch.testing.assert_close(x, z / z.norm(dim=-1, keepdim=True))
        normal = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
        expected = p.log_prob(x) + area + normal
        assert trace.nodes["x_vector"]["log_prob"].shape == (() if event else (3,))
        torch.testing.assert_close(trace.nodes["x_vector"]["log_prob_sum"], expected.sum())
        torch.testing.assert_close(trace.log_prob_sum(), expected.sum())

    def test_prior_draws(self) -> None:
        """Those of the site are as before, and lengths are those of normal vectors."""
        p = VonMisesFisher(directions(DIM), 4.0)

        def model() -> Tensor:
            return pyro.sample("x", p)

        draws = Predictive(poutine.reparam(model, {"x": SphereReparam()}), num_samples=4000, parallel=True)()
        assert_mean(draws["x"], p.mean)
        assert_mean(draws["x_vector"].square().sum(-1), DIM)

    @pytest.mark.slow
    def test_nuts(self) -> None:
        case = Conjugate(rows=1)
        kernel = NUTS(case.free, max_tree_depth=3)
        mcmc = MCMC(kernel, num_samples=300, warmup_steps=60, disable_progbar=True)
        mcmc.run()
        z = Predictive(case.free, mcmc.get_samples())()["z"]
        assert z.shape == (300, 1, DIM)
        mean, variance = case.posterior.mean, case.posterior.variance
        # A chain has fewer independent draws than draws: keep every third.
        assert_mean(z[::3], mean)
        assert_mean(z[::3].square(), variance + mean.square())
        # The prior alone, or the likelihood alone, is farther away than the error of the mean.
        assert (z.mean(0) - mean).norm() < 0.2 * (z.mean(0) - case.data).norm()
        assert (z.mean(0) - mean).norm() < 0.2 * (z.mean(0) - case.pole).norm()

    @pytest.mark.slow
    @pytest.mark.parametrize("guide_type", [AutoNormal, AutoMultivariateNormal])
    @pytest.mark.parametrize("options", [{}, {"init_loc_fn": init_to_sample}], ids=["default", "sample"])
    def test_autoguides(self, guide_type: type, options: dict) -> None:
        case = Conjugate(known=50.0)
        guide = guide_type(case.free, **options)
        elbo = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(case.free, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99}), elbo)
        for _ in range(300):
            svi.step()
        with torch.no_grad():
            losses = torch.tensor([svi.evaluate_loss() for _ in range(100)])
        # A Gaussian in R^d differs from the posterior of z; the ELBO is below the evidence by that divergence.
        assert case.log_evidence - 1.5 < -losses.mean() < case.log_evidence + 0.1
        z = Predictive(case.free, guide=guide, num_samples=500)()["z"]
        cosine = (z * case.posterior.loc).sum(-1).mean(0)
        torch.testing.assert_close(cosine, case.posterior.marginal.mean, rtol=0.02, atol=0)
