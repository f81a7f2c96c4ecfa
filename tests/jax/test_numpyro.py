"""The distributions in NumPyro: as sites of models and guides, in plates, with NUTS, SVI and enumeration."""

from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.stats

jax = pytest.importorskip("jax", reason="needs JAX")
numpyro = pytest.importorskip("numpyro", reason="needs NumPyro")

import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.contrib.control_flow import scan  # noqa: E402
from numpyro.distributions import biject_to, constraints  # noqa: E402
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, TraceMeanField_ELBO  # noqa: E402
from numpyro.infer.autoguide import AutoNormal  # noqa: E402
from numpyro.infer.util import log_density  # noqa: E402

import powerspherical.jax as plain  # noqa: E402
from powerspherical.numpyro import (  # noqa: E402
    HypersphericalUniform,
    NormalizeTransform,
    PowerSpherical,
    RotationallySymmetric,
    SphericalCauchy,
    VonMisesFisher,
)

LEVEL = 1e-6
DIM = 3  # where draws compile fastest
KEY = jax.random.key(20200607)
FAMILIES = [PowerSpherical, VonMisesFisher, SphericalCauchy]
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)


def directions(*shape: int, seed: int = 0) -> Any:
    vectors = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), jnp.float32)


def close(actual: Any, expected: Any, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    assert np.shape(actual) == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol, atol)


def angles(x: Any, loc: Any) -> Any:
    return 2 * jnp.arctan2(jnp.linalg.norm(x - loc, axis=-1), jnp.linalg.norm(x + loc, axis=-1))


def has_law(x: Any, p: plain.RotationallySymmetric) -> bool:
    """Whether points have the law of p around its direction (Kolmogorov–Smirnov)."""
    shares = np.asarray(p.cap_probability(angles(x, p.loc)), np.float64)
    return scipy.stats.kstest(shares, "uniform").pvalue > LEVEL


class TestClasses:
    @families
    def test_numbers_are_those_of_the_plain_class(self, family: type) -> None:
        loc, kappa = directions(3, DIM), jnp.array([0.0, 2.0, 50.0])
        p, q = family(loc, kappa), getattr(plain, family.__name__)(loc, kappa)
        x = p.sample(KEY, (5,))
        assert isinstance(p, type(q))
        assert isinstance(p, dist.Distribution)
        for draws in (q.sample(KEY, (5,)), p.rsample(KEY, (5,)), p(rng_key=KEY, sample_shape=(5,))):
            assert np.array_equal(x, draws)
        assert np.array_equal(p.log_prob(x), q.log_prob(x))
        assert np.array_equal(p.mean, q.mean)
        assert np.array_equal(p.entropy(), q.entropy())
        assert type(family.from_kl(loc, 1.5)) is family

    def test_closest_von_mises_fisher(self) -> None:
        p = PowerSpherical(directions(3, DIM), 8.0)
        closest = p.closest_von_mises_fisher()
        assert type(closest) is VonMisesFisher
        close(closest.mean, p.mean)

    @pytest.mark.parametrize(
        "family", [PowerSpherical, HypersphericalUniform], ids=lambda family: family.__name__
    )
    def test_shapes(self, family: type) -> None:
        uniform = family is HypersphericalUniform
        p = family(DIM, batch_shape=(3,)) if uniform else family(directions(3, DIM), 2.0)
        assert (p.shape((2,)), p.event_dim, p.has_rsample) == ((2, 3, DIM), 1, True)
        for expanded in (p.expand((2, 3)), p.expand_by((2,)), p.mask(True).expand((2, 3))):
            x = expanded.sample(KEY, (5,))
            assert (expanded.batch_shape, x.shape) == ((2, 3), (5, 2, 3, DIM))
            assert len(np.unique(x.reshape(-1, DIM), axis=0)) == 30
            close(expanded.log_prob(x), p.log_prob(x))
        product = p.to_event(1)
        x = product.sample(KEY)
        assert (product.batch_shape, product.event_shape, x.shape) == ((), (3, DIM), (3, DIM))
        close(product.log_prob(x), p.log_prob(x).sum())
        assert p.mask(jnp.array([True, False, True])).log_prob(x)[1] == 0

    @pytest.mark.parametrize("batch", [(), (2,), (3, 1)], ids=str)
    @pytest.mark.parametrize("kappa", [(), (2,), (3, 2)], ids=str)
    def test_shapes_are_inferred(self, batch: tuple, kappa: tuple) -> None:
        p = VonMisesFisher(directions(*batch, DIM), jnp.ones(kappa))
        inferred = VonMisesFisher.infer_shapes(loc=(*batch, DIM), concentration=kappa)
        assert inferred == (p.batch_shape, p.event_shape)

    @pytest.mark.parametrize(
        ("family", "dim"), [(PowerSpherical, 2), (VonMisesFisher, 2), (VonMisesFisher, 10_000)]
    )
    def test_draws_are_in_the_support(self, family: type, dim: int) -> None:
        """NumPyro allows 10√d roundings of the norm, and gives other points the log-density -∞."""
        kappa = jnp.array([0.0, 1e-3, 1.0, 1e3, 1e6, 1e9])
        x = family(jnp.full(dim, dim**-0.5), kappa).sample(KEY, (10 if dim > 1000 else 1000,))
        assert constraints.sphere(x).all()

    def test_validation(self) -> None:
        family, loc = VonMisesFisher, directions(DIM)
        with pytest.raises(ValueError, match="the norm of loc"):
            family(2 * loc, 1.0)
        with pytest.raises(ValueError, match="invalid loc"):
            family(1.001 * loc, 1.0)
        with pytest.raises(ValueError, match="concentration"):
            family(loc, -1.0)
        unchecked = family(2 * loc, 1.0, validate_args=False)
        again = jax.tree.map(lambda leaf: leaf, unchecked)
        for p in (unchecked, again):
            assert jnp.isfinite(p.log_prob(3 * loc))
        with pytest.warns(UserWarning, match="Out-of-support"):
            assert family(loc, 1.0).log_prob(3 * loc) == -jnp.inf
        with dist.distribution.validation_enabled(False):
            family(2 * loc, 1.0)

    def test_are_pytrees(self) -> None:
        """A ``vmap`` that returns distributions gives a batch of them, also if it maps over one parameter only."""
        loc, kappa = directions(5, DIM), jnp.arange(1.0, 4.0)
        batch = jax.vmap(lambda one: PowerSpherical(one, kappa))(loc)
        x = batch.sample(KEY)
        assert x.shape == (5, 3, DIM)
        close(batch.log_prob(x), PowerSpherical(loc[:, None], kappa).log_prob(x))
        close(jax.vmap(lambda p, x: p.log_prob(x))(batch, x), batch.log_prob(x))

    def test_the_uniform_is_a_pytree(self) -> None:
        p = jax.jit(lambda q: q)(HypersphericalUniform(DIM, batch_shape=(3,), validate_args=False))
        assert (p.dim, p.batch_shape) == (DIM, (3,))
        assert jnp.isfinite(p.log_prob(2 * directions(DIM))).all()

    @pytest.mark.parametrize("missing", ["numpyro", "jax"])
    def test_without_numpyro_the_error_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, missing: str
    ) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        monkeypatch.setitem(sys.modules, f"{missing}.distributions", None)
        monkeypatch.delitem(sys.modules, "powerspherical.numpyro")
        hint = r"powerspherical.numpyro needs NumPyro and JAX: pip install 'powerspherical\[numpyro\]'"
        with pytest.raises(ImportError, match=hint):
            importlib.import_module("powerspherical.numpyro")

    def test_torch_is_not_imported(self) -> None:
        script = "import sys, powerspherical.numpyro; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


class TestDivergences:
    def test_all_pairs(self) -> None:
        for p, q in itertools.product([*FAMILIES, HypersphericalUniform], repeat=2):
            assert dist.kl_divergence.dispatch(p, q) is plain.kl_divergence

    def test_wrapped_distributions(self) -> None:
        p, q = PowerSpherical(directions(3, DIM), 5.0), HypersphericalUniform(DIM)
        expected = plain.kl_divergence(p, q)
        assert expected.shape == (3,)
        close(dist.kl_divergence(p, q), expected)
        close(dist.kl_divergence(p.expand((2, 3)), q), jnp.stack([expected] * 2))
        close(dist.kl_divergence(p.to_event(1), q.expand((3,)).to_event(1)), expected.sum())

    def test_a_family_of_your_own(self) -> None:
        class Exponential(plain.Family):
            name = title = "exponential"

            def log_kernel(self, t: Any, kappa: Any, dim: int) -> Any:
                return -kappa * t.minus

        class Mine(RotationallySymmetric):
            family = Exponential()

        mine, theirs = (family(directions(3), 5.0) for family in (Mine, VonMisesFisher))
        uniform = HypersphericalUniform(3)
        close(dist.kl_divergence(mine, uniform), dist.kl_divergence(theirs, uniform), rtol=1e-5)
        close(mine.log_prob(mine.loc), theirs.log_prob(mine.loc), rtol=1e-5)


class TestTransform:
    @pytest.mark.parametrize("dim", [2, 3, 16])
    def test_inverse(self, dim: int) -> None:
        to_sphere, x = biject_to(constraints.sphere), directions(7, dim)
        assert isinstance(to_sphere, NormalizeTransform)
        z = to_sphere.inv(x)
        close(to_sphere(z), x)
        assert constraints.sphere(to_sphere(100 * z)).all()
        close(jnp.linalg.norm(z, axis=-1), jnp.full(7, math.sqrt(dim + 7)))

    @pytest.mark.parametrize("dim", [2, 16])
    def test_log_determinant(self, dim: int) -> None:
        """That of z ↦ (x, F(‖z‖)) with F the cdf of the χ distribution with d + 8 degrees of freedom."""
        transform, x = NormalizeTransform(), directions(dim)
        tangents = np.linalg.svd(x[None])[2][1:]

        def full(z: Any) -> Any:
            cdf = jax.scipy.special.gammainc(0.5 * (dim + transform.extra), 0.5 * (z @ z))
            return jnp.append(tangents @ transform(z), cdf)

        z = np.array([[0.5], [3.0], [6.0]]) * x
        _, expected = np.linalg.slogdet(jax.jit(jax.vmap(jax.jacfwd(full)))(z))
        close(transform.log_abs_det_jacobian(z, transform(z)), expected, rtol=1e-4, atol=1e-4)


class TestSites:
    def test_plates(self) -> None:
        def model() -> None:
            pole = numpyro.sample("pole", HypersphericalUniform(DIM))
            with numpyro.plate("rows", 5, dim=-2):
                row = numpyro.sample("row", VonMisesFisher(pole, 4.0))
                with numpyro.plate("columns", 3, dim=-1):
                    numpyro.sample("cell", PowerSpherical(row, 9.0))
            with numpyro.plate("data", 10, subsample_size=5, dim=-2):
                numpyro.sample("part", VonMisesFisher(pole, 2.0))

        trace = handlers.trace(handlers.seed(model, KEY)).get_trace()
        shapes = {"pole": (), "row": (5, 1), "cell": (5, 3), "part": (5, 1)}
        values = {name: trace[name]["value"] for name in shapes}
        assert {name: value.shape[:-1] for name, value in values.items()} == shapes
        assert len(np.unique(values["cell"].reshape(-1, DIM), axis=0)) == 15
        found, _ = log_density(handlers.seed(model, KEY), (), {}, values)
        pole, row = values["pole"], values["row"]
        parts = (
            HypersphericalUniform(DIM).log_prob(pole),
            VonMisesFisher(pole, 4.0).log_prob(row).sum(),
            PowerSpherical(row, 9.0).log_prob(values["cell"]).sum(),
            2 * VonMisesFisher(pole, 2.0).log_prob(values["part"]).sum(),
        )
        close(found, sum(parts), rtol=1e-5)

    def test_scan(self) -> None:
        """A random walk on the sphere, whose log-density is that of its steps."""
        kappa = jnp.array([5.0, 50.0])

        def model(steps: Any = None) -> Any:
            def step(last: Any, x: Any) -> Any:
                return numpyro.sample("x", VonMisesFisher(last, kappa), obs=x), None

            return scan(step, jnp.tile(jnp.eye(DIM)[0], (2, 1)), steps, length=4)

        steps = directions(4, 2, DIM)
        trace = handlers.trace(handlers.seed(model, KEY)).get_trace(steps)
        before = jnp.concatenate((jnp.tile(jnp.eye(DIM)[:1], (1, 2, 1)), steps[:-1]))
        density = trace["x"]["fn"].log_prob(steps)
        close(density, VonMisesFisher(before, kappa).log_prob(steps))

    def test_mixture(self) -> None:
        loc, kappa, shares = directions(3, DIM), jnp.array([1.0, 10.0, 100.0]), jnp.array([0.5, 0.3, 0.2])
        components = PowerSpherical(loc, kappa)
        mixture = dist.MixtureSameFamily(dist.Categorical(shares), components)
        x = jax.jit(mixture.sample, static_argnums=1)(KEY, (4000,))
        assert x.shape == (4000, DIM)
        each = components.log_prob(x[:, None]) + jnp.log(shares)
        close(mixture.log_prob(x), jax.scipy.special.logsumexp(each, -1), rtol=1e-5, atol=1e-5)
        close(mixture.mean, (shares[:, None] * components.mean).sum(0))
        scores = (x.mean(0) - mixture.mean) / (x.std(0) / math.sqrt(len(x)))
        assert jnp.abs(scores).max() < scipy.stats.norm.isf(LEVEL / 2 / DIM)

    def test_enumeration(self) -> None:
        """Summing out which component a point belongs to gives the density of the mixture."""
        pytest.importorskip("funsor", reason="needs funsor")
        from numpyro.contrib.funsor import config_enumerate, enum
        from numpyro.contrib.funsor import log_density as enumerated

        components, shares = VonMisesFisher(directions(3, DIM), 5.0), jnp.array([0.5, 0.3, 0.2])
        x = directions(7, DIM, seed=1)

        def model() -> None:
            with numpyro.plate("data", len(x)):
                which = numpyro.sample("which", dist.Categorical(shares))
                numpyro.sample("x", VonMisesFisher(components.loc[which], 5.0), obs=x)

        found, _ = enumerated(enum(config_enumerate(model), first_available_dim=-2), (), {}, {})
        mixture = dist.MixtureSameFamily(dist.Categorical(shares), components)
        close(found, mixture.log_prob(x).sum(), rtol=1e-5)


@pytest.fixture
def data() -> Any:
    return VonMisesFisher(jnp.array([0.6, 0.0, 0.8]), 10.0).sample(KEY, (50,))


@pytest.fixture
def posterior(data: Any) -> VonMisesFisher:
    """That of a mean direction with a uniform prior, for κ = 10."""
    total = 10.0 * data.sum(0)
    length = jnp.linalg.norm(total)
    return VonMisesFisher(total / length, length)


@pytest.mark.slow
class TestInference:
    def test_nuts_samples_conjugate_posteriors(self) -> None:
        """Two directions with data equal to the pole of the prior. The posterior of each is vMF around its pole."""
        poles = {f"d = {dim}": (jnp.full(dim, dim**-0.5), kappa) for dim, kappa in ((3, 85.0), (16, 295.0))}

        def model() -> None:
            for name, (pole, kappa) in poles.items():
                loc = numpyro.sample(name, VonMisesFisher(pole, kappa / 2))
                with numpyro.plate(f"data, {name}", 10):
                    numpyro.sample(f"x, {name}", VonMisesFisher(loc, kappa / 20), obs=jnp.tile(pole, (10, 1)))

        mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=500, progress_bar=False)
        mcmc.run(KEY, extra_fields=("diverging",))
        assert not mcmc.get_extra_fields()["diverging"].any()
        for name, (pole, kappa) in poles.items():
            assert has_law(mcmc.get_samples()[name], VonMisesFisher(pole, kappa))

    @staticmethod
    def model(data: Any) -> None:
        pole = numpyro.sample("pole", HypersphericalUniform(3))
        with numpyro.plate("data", len(data)):
            numpyro.sample("x", VonMisesFisher(pole, 10.0), obs=data)

    @staticmethod
    def guide(data: Any) -> None:
        loc = numpyro.param("loc", jnp.eye(3)[0], constraint=constraints.sphere)
        kappa = numpyro.param("kappa", 300.0, constraint=constraints.positive)
        numpyro.sample("pole", VonMisesFisher(loc, kappa))

    def test_svi_with_a_guide_on_the_sphere(self, data: Any, posterior: VonMisesFisher) -> None:
        """The family of the guide contains the exact posterior."""
        optimiser = numpyro.optim.Adam(lambda step: 0.05 * 0.99**step)
        svi = SVI(self.model, self.guide, optimiser, TraceMeanField_ELBO(num_particles=4))
        found = svi.run(KEY, 500, data, progress_bar=False)
        q = VonMisesFisher(found.params["loc"], found.params["kappa"])
        assert dist.kl_divergence(q, posterior) < 0.02
        assert constraints.sphere(q.loc)

    def test_an_automatic_guide(self, data: Any, posterior: VonMisesFisher) -> None:
        guide = AutoNormal(self.model)
        svi = SVI(self.model, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
        found = svi.run(KEY, 300, data, progress_bar=False)
        poles = guide.sample_posterior(KEY, found.params, sample_shape=(100,))["pole"]
        assert posterior.loc @ poles.mean(0) > 0.98
