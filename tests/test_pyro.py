"""The distributions in Pyro: as sites of models and guides, in plates, and in variational inference."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn.functional import normalize

import powerspherical
from helpers.examples import DOUBLE, IDS, directions
from helpers.statistical import assert_mean
from powerspherical.distributions import unit_vector

pyro = pytest.importorskip("pyro")

from pyro import poutine  # noqa: E402
from pyro.distributions import constraints  # noqa: E402
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO  # noqa: E402
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, init_to_sample  # noqa: E402

from powerspherical.pyro import (  # noqa: E402
    HypersphericalUniform,
    PowerSpherical,
    SphereReparam,
    SphericalCauchy,
    VonMisesFisher,
)

DIM = 4
FAMILIES = [PowerSpherical, VonMisesFisher, SphericalCauchy]
pyro_families = pytest.mark.parametrize("family", FAMILIES, ids=IDS)
PRIOR = HypersphericalUniform(DIM, dtype=DOUBLE)


def plain(family: type) -> type:
    """The class of the same name without Pyro's mixin."""
    return getattr(powerspherical, family.__name__)


@pytest.fixture(autouse=True)
def _fresh_store():
    pyro.clear_param_store()
    pyro.set_rng_seed(7)
    with pyro.validation_enabled(True):
        yield
    pyro.clear_param_store()


class TestClasses:
    @pyro_families
    def test_numbers_are_those_of_the_plain_class(self, family: type) -> None:
        loc, kappa = directions(3, DIM), torch.tensor([0.0, 2.0, 50.0])
        p, q = family(loc, kappa), plain(family)(loc, kappa)
        x = q.sample()
        assert isinstance(p, plain(family))
        assert torch.equal(p.log_prob(x), q.log_prob(x))
        assert torch.equal(p.entropy(), q.entropy())
        torch.manual_seed(1)
        first = p()
        torch.manual_seed(1)
        assert torch.equal(first, q.rsample())
        assert torch.equal(p.sample(generator=torch.Generator().manual_seed(1)), first)

    @pytest.mark.parametrize("family", [*FAMILIES, HypersphericalUniform], ids=[*IDS, "uniform"])
    def test_shapes(self, family: type) -> None:
        uniform = family is HypersphericalUniform
        p = family(DIM).expand((3,)) if uniform else family(directions(3, DIM), 2.0)
        assert (p.shape((2,)), p.event_dim) == ((2, 3, DIM), 1)
        for expanded, batch_shape in (
            (p.expand((2, 3)), (2, 3)),
            (p.expand_by((2,)), (2, 3)),
            (p.expand_by((2,)).expand((5, 2, 3)), (5, 2, 3)),
        ):
            assert type(expanded) is family
            assert (expanded.batch_shape, expanded().shape) == (batch_shape, (*batch_shape, DIM))
        product = p.to_event(1)
        assert (product.batch_shape, product.event_shape) == ((), (3, DIM))
        assert product.to_event(-1) is p
        x = product()
        torch.testing.assert_close(product.log_prob(x), p.log_prob(x).sum())
        assert p.mask(torch.tensor([True, False, True])).log_prob(x)[1] == 0

    @pyro_families
    @pytest.mark.parametrize(("constructor", "value"), [("from_kl", 1.5), ("from_mean_length", 0.6)])
    def test_other_constructors(self, family: type, constructor: str, value: float) -> None:
        p, q = (getattr(made, constructor)(directions(3, DIM), value) for made in (family, plain(family)))
        assert type(p) is family
        torch.testing.assert_close(p.concentration, q.concentration)
        assert p().shape == (3, DIM)

    def test_closest_von_mises_fisher(self) -> None:
        loc = directions(3, DIM)
        closest = PowerSpherical(loc, 8.0, validate_args=False).closest_von_mises_fisher()
        assert type(closest) is VonMisesFisher
        assert closest().shape == (3, DIM)
        closest.log_prob(2 * loc)  # nothing is validated, as in the original
        expected = powerspherical.PowerSpherical(loc, 8.0).closest_von_mises_fisher()
        torch.testing.assert_close(closest.concentration, expected.concentration)

    def test_divergences(self) -> None:
        """All pairs, also of a Pyro class and a plain one, and inside what Pyro wraps them in."""
        locs = directions(2, 3, DIM)
        ours, theirs = (
            [
                module.PowerSpherical(locs[0], 5.0),
                module.VonMisesFisher(locs[1], 3.0),
                module.HypersphericalUniform(DIM).expand((3,)),
            ]
            for module in (powerspherical.pyro, powerspherical)
        )
        mask = torch.tensor([True, False, True])
        for p, plain_p in zip(ours, theirs, strict=True):
            for q, plain_q in zip(ours, theirs, strict=True):
                expected = kl_divergence(plain_p, plain_q)
                torch.testing.assert_close(kl_divergence(p, q), expected)
                torch.testing.assert_close(kl_divergence(p, plain_q), expected)
                torch.testing.assert_close(kl_divergence(p.to_event(1), q.to_event(1)), expected.sum())
                torch.testing.assert_close(kl_divergence(p.mask(mask), q.mask(True)), expected * mask)

    @pyro_families
    def test_validation_follows_pyro(self, family: type) -> None:
        with pytest.raises(ValueError, match="must hold unit vectors"):
            family(2 * directions(DIM), 1.0)
        with pyro.validation_enabled(False):
            family(2 * directions(DIM), 1.0)
            with pytest.raises(ValueError, match="must hold unit vectors"):
                family(2 * directions(DIM), 1.0, validate_args=True)

    @pyro_families
    @pytest.mark.parametrize("batch", [(), (2,), (3, 1)], ids=str)
    @pytest.mark.parametrize("kappa", [(), (2,), (3, 2)], ids=str)
    def test_shapes_are_inferred(self, family: type, batch: tuple, kappa: tuple) -> None:
        loc = directions(*batch, DIM)
        p = family(loc, torch.ones(kappa, dtype=DOUBLE))
        shapes = family.infer_shapes(loc=loc.shape, concentration=kappa)
        assert shapes == (p.batch_shape, p.event_shape)
        assert family.infer_shapes(loc=tuple(loc.shape)) == (batch, (DIM,))
        assert type(p.marginal).infer_shapes(dim=(), concentration=kappa) == (kappa, ())

    def test_the_shape_of_the_uniform_is_a_value(self) -> None:
        with pytest.raises(NotImplementedError, match=r"use HypersphericalUniform\(dim\).event_shape"):
            powerspherical.pyro.HypersphericalUniform.infer_shapes(dim=())

    def test_without_pyro_the_error_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
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
                    cell = PowerSpherical(row, 9.0)
                    pyro.sample("cell", cell)
                    pyro.sample("t", cell.marginal)
            pyro.sample("set", PowerSpherical(pole, 2.0).expand((6,)).to_event(1))

        trace = poutine.trace(model).get_trace()
        trace.compute_log_prob()
        shapes = {
            "pole": ((DIM,), ()),
            "row": ((5, 1, DIM), (5, 1)),
            "cell": ((5, 3, DIM), (5, 3)),
            "t": ((5, 3), (5, 3)),
            "set": ((6, DIM), ()),
        }
        sites = {name: trace.nodes[name] for name in shapes}
        assert {name: (site["value"].shape, site["log_prob"].shape) for name, site in sites.items()} == shapes
        torch.testing.assert_close(
            trace.log_prob_sum(), sum(site["log_prob"].sum() for site in sites.values())
        )
        assert len(sites["cell"]["value"].reshape(-1, DIM).unique(dim=0)) == 15

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
        assert (draws @ directions(DIM)).min() > 0.95
        prior = Predictive(model, num_samples=2000, parallel=True)()
        assert prior["x"].shape == (2000, 3, DIM)
        assert_mean(prior["x"][:, 0], 0.0)
        assert (prior["x"] * prior["pole"]).sum(-1).min() > 0.95  # "pole" has the shape (2000, 1, d)


def steps(svi: SVI, number: int) -> list[float]:
    """The losses of that many steps."""
    return [svi.step() for _ in range(number)]


class Conjugate:
    """Latent directions with a vMF prior and a vMF likelihood: the posterior of each is vMF along κ₀m + κx."""

    def __init__(self, rows: int = 2, prior: float = 3.0, known: float = 5.0) -> None:
        self.pole, self.prior, self.known = directions(DIM, seed=4), prior, known
        self.data = directions(rows, DIM, seed=5)
        natural = prior * self.pole + known * self.data
        self.posterior = powerspherical.VonMisesFisher(normalize(natural, dim=-1), natural.norm(dim=-1))
        parts = (powerspherical.VonMisesFisher(self.pole, kappa).log_normalizer for kappa in (prior, known))
        self.log_evidence = (self.posterior.log_normalizer - sum(parts)).sum()

    def model(self) -> None:
        with pyro.plate("rows", len(self.data)):
            z = pyro.sample("z", VonMisesFisher(self.pole, self.prior))
            pyro.sample("x", VonMisesFisher(z, self.known), obs=self.data)

    def guide(self) -> None:
        loc = pyro.param("loc", directions(len(self.data), DIM, seed=6), constraint=unit_vector)
        start = torch.full((len(self.data),), 2.0, dtype=DOUBLE)
        kappa = pyro.param("kappa", start, constraint=constraints.positive)
        with pyro.plate("rows", len(self.data)):
            pyro.sample("z", PowerSpherical(loc, kappa))

    @property
    def free(self) -> Callable[[], None]:
        return poutine.reparam(self.model, {"z": SphereReparam()})


class TestInference:
    @pytest.mark.parametrize("options", [{}, {"init_loc_fn": init_to_sample}], ids=["default", "sample"])
    def test_point_estimate_by_autoguide(self, options: dict) -> None:
        """AutoDelta finds the mode, from wherever Pyro starts it: for a sphere, from the image of the origin."""
        data = directions(5, DIM)

        def model() -> None:
            pole = pyro.sample("pole", PRIOR)
            with pyro.plate("data", 5):
                pyro.sample("x", VonMisesFisher(pole, 4.0), obs=data)

        guide = AutoDelta(model, **options)
        steps(SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()), 200)
        assert guide.median()["pole"] @ normalize(data.sum(0), dim=-1) > 0.999

    @pytest.mark.slow
    def test_the_best_member_of_the_family_is_found(self) -> None:
        case = Conjugate(rows=6)
        elbo = Trace_ELBO(num_particles=16, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(case.model, case.guide, pyro.optim.ClippedAdam({"lr": 0.2, "lrd": 0.97}), elbo)
        steps(svi, 150)
        learnt = powerspherical.PowerSpherical(pyro.param("loc").detach(), pyro.param("kappa").detach())
        assert (learnt.loc * case.posterior.loc).sum(-1).min() > 0.995
        # The best of the family, by a search over its one other parameter.
        grid = case.posterior.concentration * torch.logspace(-1, 1, 1001, dtype=DOUBLE)[:, None]
        best = kl_divergence(powerspherical.PowerSpherical(case.posterior.loc, grid), case.posterior).min(0)
        gap = kl_divergence(learnt, case.posterior)
        assert (best.values <= gap).all()
        assert (gap < best.values + 0.03).all()
        # ELBO = log evidence - KL(guide‖posterior), here by 1600 particles.
        with torch.no_grad():
            losses = torch.tensor([svi.evaluate_loss() for _ in range(100)], dtype=DOUBLE)
        assert_mean(-losses, case.log_evidence - gap.sum())

    @pyro_families
    @pytest.mark.parametrize("prior", [*(family(directions(DIM, seed=2), 3.0) for family in FAMILIES), PRIOR])
    def test_mean_field_uses_the_closed_form(self, family: type, prior: object) -> None:
        """Without data the loss is the divergence itself, without noise."""

        def site(q: object) -> None:
            with pyro.plate("data", 5):
                pyro.sample("z", q)

        q = family(directions(5, DIM), 4.0)
        loss = TraceMeanField_ELBO().loss(lambda: site(prior), lambda: site(q))
        assert loss == pytest.approx(kl_divergence(q, prior).sum().item(), rel=1e-12)


class TestSphereReparam:
    @pytest.mark.parametrize(
        "infer",
        [
            lambda model: AutoNormal(model)(),
            lambda model: AutoMultivariateNormal(model)(),
            lambda model: MCMC(NUTS(model), 1, warmup_steps=1, disable_progbar=True).run(),
        ],
        ids=["AutoNormal", "AutoMultivariateNormal", "NUTS"],
    )
    def test_without_it_the_error_names_it(self, infer: Callable) -> None:
        with pytest.raises(NotImplementedError, match=r"powerspherical\.pyro\.SphereReparam\(\)"):
            infer(Conjugate().model)

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
    def test_density(self, family: type, event: bool) -> None:
        """That of z is N(z; 0, I) times the density of x relative to the uniform; each vector has its own length."""
        p = family(directions(3, DIM), 4.0)

        def model() -> Tensor:
            return pyro.sample("x", p.to_event(1) if event else p)

        if not event:
            model = pyro.plate("rows", 3)(model)
        trace = poutine.trace(poutine.reparam(model, {"x": SphereReparam()})).get_trace()
        trace.compute_log_prob()
        x, z = trace.nodes["x"]["value"], trace.nodes["x_vector"]["value"]
        torch.testing.assert_close(x, z / z.norm(dim=-1, keepdim=True))
        normal = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
        expected = (p.log_prob(x) + PRIOR.entropy() + normal).sum()
        assert trace.nodes["x_vector"]["log_prob"].shape == (() if event else (3,))
        torch.testing.assert_close(trace.nodes["x_vector"]["log_prob_sum"], expected)
        torch.testing.assert_close(trace.log_prob_sum(), expected)

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
        kernel = NUTS(case.free, max_tree_depth=2)
        mcmc = MCMC(kernel, num_samples=300, warmup_steps=40, disable_progbar=True)
        mcmc.run()
        z = Predictive(case.free, mcmc.get_samples())()["z"]
        assert z.shape == (300, 1, DIM)
        mean, variance = case.posterior.mean, case.posterior.variance
        # A chain has fewer independent draws than draws: keep every third.
        assert_mean(z[::3], mean)
        assert_mean(z[::3].square(), variance + mean.square())
        # The prior alone, or the likelihood alone, is farther away than the error of the mean.
        for other in (case.data, case.pole):
            assert (z.mean(0) - mean).norm() < 0.2 * (z.mean(0) - other).norm()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("guide_type", "options"),
        [(AutoNormal, {"init_loc_fn": init_to_sample}), (AutoMultivariateNormal, {})],
        ids=["AutoNormal from a sample", "AutoMultivariateNormal"],
    )
    def test_autoguides(self, guide_type: type, options: dict) -> None:
        case = Conjugate(known=50.0)
        guide = guide_type(case.free, **options)
        elbo = Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(case.free, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.98}), elbo)
        steps(svi, 150)
        with torch.no_grad():
            losses = torch.tensor([svi.evaluate_loss() for _ in range(50)])
        # A Gaussian in R^d differs from the posterior of z; the ELBO is below the evidence by that divergence.
        assert case.log_evidence - 1.5 < -losses.mean() < case.log_evidence + 0.1
        z = Predictive(case.free, guide=guide, num_samples=500)()["z"]
        cosine = (z * case.posterior.loc).sum(-1).mean(0)
        torch.testing.assert_close(cosine, case.posterior.marginal.mean, rtol=0.02, atol=0)
