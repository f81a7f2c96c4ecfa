"""The SciPy-style objects agree with SciPy where it is accurate, and with the torch distributions everywhere."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import torch

from helpers.examples import IDS, directions
from helpers.own_family import registered
from helpers.statistical import assert_law, assert_mean
from powerspherical import ConvergenceWarning, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.distributions import distribution_named
from powerspherical.engines import engine
from powerspherical.stats import (
    RotationalFamily,
    power_spherical,
    spherical_cauchy,
    uniform_sphere,
    von_mises_fisher,
)

FAMILIES = {
    power_spherical: PowerSpherical,
    von_mises_fisher: VonMisesFisher,
    spherical_cauchy: SphericalCauchy,
}
every = pytest.mark.parametrize(("family", "torch_family"), FAMILIES.items(), ids=IDS)
MU = directions(4).numpy()
X = directions(7, 4, seed=2).numpy()
ANGLES = np.linspace(0.1, 3.0, 7)


class TestScipy:
    @pytest.mark.parametrize("dim", [2, 3, 10])
    @pytest.mark.parametrize("kappa", [0.5, 10.0, 200.0])
    def test_von_mises_fisher(self, dim: int, kappa: float) -> None:
        mu, x = directions(dim).numpy(), directions(20, dim, seed=2).numpy()
        ours, scipys = von_mises_fisher(mu, kappa), scipy.stats.vonmises_fisher(mu, kappa)
        np.testing.assert_allclose(ours.logpdf(x), scipys.logpdf(x), rtol=1e-11)
        np.testing.assert_allclose(ours.pdf(x), scipys.pdf(x), rtol=1e-11)
        np.testing.assert_allclose(ours.entropy(), scipys.entropy(), rtol=1e-11)
        for size in ((), (5,), ((2, 3),)):
            assert ours.rvs(*size).shape == scipys.rvs(*size).shape
        assert (type(ours.pdf(mu)), ours.dim) == (type(scipys.pdf(mu)), scipys.dim)

    def test_fit(self) -> None:
        x = scipy.stats.vonmises_fisher(MU, 8.0).rvs(3000, random_state=1)
        ours, scipys = von_mises_fisher.fit(x), scipy.stats.vonmises_fisher.fit(x)
        np.testing.assert_allclose(ours[0], scipys[0], atol=1e-12)
        assert ours[1] == pytest.approx(scipys[1], rel=1e-9)

    @pytest.mark.parametrize(
        ("frozen", "expected"),
        [
            (von_mises_fisher([0, 1], 3.0), 2 * scipy.stats.vonmises.cdf(ANGLES, 3.0) - 1),
            (spherical_cauchy([0, 1], 3.0), 2 * scipy.stats.wrapcauchy.cdf(ANGLES, 0.6)),
            (power_spherical(MU, 6.0), scipy.stats.beta.sf((1 + np.cos(ANGLES)) / 2, 7.5, 1.5)),
        ],
        ids=["von Mises", "wrapped Cauchy", "beta"],
    )
    def test_probability_within_an_angle(self, frozen, expected: np.ndarray) -> None:
        np.testing.assert_allclose(frozen.cdf(ANGLES), expected, rtol=1e-9)
        near = ANGLES < 2.5  # farther out, the beta variable's probability rounds to 1
        np.testing.assert_allclose(frozen.ppf(expected[near]), ANGLES[near], rtol=1e-9)


def test_a_distribution_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = distribution_named(registered(monkeypatch).name)
    family = RotationalFamily(distribution)
    frozen, twin = family(MU, 9.0), distribution(torch.from_numpy(MU), 9.0)
    np.testing.assert_allclose(frozen.logpdf(X), twin.log_prob(torch.from_numpy(X)).numpy(), rtol=1e-12)
    assert frozen.rvs(5, random_state=0).shape == (5, 4)
    assert repr(family) == "squared_chord"
    assert repr(family([0, 1], 2)) == "squared_chord(mu=[0.0, 1.0], kappa=2.0)"
    assert family.__doc__.startswith("The squared chord distribution on the unit sphere of R^d.")


@pytest.mark.parametrize("dim", [2, 3, 20])
def test_the_uniform(dim: int) -> None:
    sphere = uniform_sphere(dim)
    area = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
    assert sphere.pdf(np.eye(dim)[0]) == pytest.approx(1 / area, rel=1e-13)
    assert sphere.entropy() == pytest.approx(math.log(area), rel=1e-13)
    assert sphere.cdf(math.pi / 2) == pytest.approx(0.5, rel=1e-9)
    assert sphere.ppf(0.5) == pytest.approx(math.pi / 2, rel=1e-9)
    np.testing.assert_array_equal(sphere.mean(), np.zeros(dim))
    np.testing.assert_allclose(sphere.cov(), np.eye(dim) / dim)
    assert sphere.dim == dim
    np.testing.assert_array_equal(sphere.rvs(3, random_state=1), uniform_sphere.rvs(dim, 3, random_state=1))
    draws = sphere.rvs(2000, random_state=5)
    np.testing.assert_allclose(np.linalg.norm(draws, axis=1), 1, atol=1e-14)
    assert_law(torch.from_numpy(np.arccos(draws[:, 0])), sphere.cdf)


@every
def test_numbers_are_the_torch_distributions(family, torch_family: type) -> None:
    """Also those that the family returns when it takes the parameters itself."""
    mu, kappa = directions(2, 4).numpy(), np.array([[0.0], [3.0], [1e4]])
    x, angle, probability = directions(3, 2, 4, seed=2).numpy(), np.array([0.1, 2.0]), np.array([0.2, 0.9])
    frozen, twin = family(mu, kappa), torch_family(torch.from_numpy(mu), torch.from_numpy(kappa))
    for name, arguments, expected in (
        ("logpdf", (x,), twin.log_prob(torch.from_numpy(x))),
        ("pdf", (x,), twin.log_prob(torch.from_numpy(x)).exp()),
        ("entropy", (), twin.entropy()),
        ("mean", (), twin.mean),
        ("cov", (), twin.covariance_matrix),
        ("cdf", (angle,), twin.cap_probability(torch.from_numpy(angle))),
        ("ppf", (probability,), twin.cap_angle(torch.from_numpy(probability))),
    ):
        found = getattr(frozen, name)(*arguments)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
        np.testing.assert_array_equal(getattr(family, name)(*arguments, mu, kappa), found)
    for found, expected in ((frozen.mu, twin.loc), (frozen.kappa, twin.concentration)):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
    assert frozen.rvs((5, 1)).shape == (5, 1, 3, 2, 4)
    np.testing.assert_array_equal(family.rvs(mu, kappa, 5, 1), frozen.rvs(5, 1))
    assert "density ∝" in family.__doc__


@every
def test_fit_is_the_torch_distributions(family, torch_family: type) -> None:
    x = family(MU, 12.0).rvs((500, 2), random_state=3)
    weights = np.random.default_rng(0).random((500, 2))
    corrected = torch_family is not SphericalCauchy  # it has no bias correction
    mu, kappa = family.fit(x, weights, bias_correction=corrected)
    twin = torch_family.fit(torch.from_numpy(x), torch.from_numpy(weights), bias_correction=corrected)
    np.testing.assert_allclose(mu, twin.loc.numpy(), rtol=1e-12)
    np.testing.assert_allclose(kappa, twin.concentration.numpy(), rtol=1e-12)
    assert isinstance(family.fit(x[:, 0])[1], float)


@every
def test_draws_follow_the_law(family, torch_family: type) -> None:
    frozen = family(MU, 7.0)
    draws = frozen.rvs(4000, random_state=11)
    assert_mean(torch.from_numpy(draws), torch.from_numpy(frozen.mean()))
    assert_law(torch.from_numpy(np.arccos(draws @ MU)), frozen.cdf)


@pytest.mark.parametrize(
    "make",
    [lambda: 7, lambda: np.random.default_rng(7), lambda: np.random.RandomState(7)],
    ids=["integer", "Generator", "RandomState"],
)
def test_draws_reproduce(make) -> None:
    frozen = power_spherical(MU, 7.0)
    before = torch.get_rng_state()
    first, again = frozen.rvs(5, random_state=make()), power_spherical(MU, 7.0, seed=make()).rvs(5)
    np.testing.assert_array_equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert not np.array_equal(first, frozen.rvs(5, random_state=8))
    held = power_spherical(MU, 7.0, seed=make())  # its generator advances with every call
    np.testing.assert_array_equal(held.rvs(5), first)
    assert not np.array_equal(held.rvs(5), first)
    np.testing.assert_array_equal(frozen.rvs(5, random_state=7), frozen.rvs(5, random_state=7))


@pytest.mark.parametrize("name", ["c", "torch"])
def test_all_bits_of_a_state_count(name: str) -> None:
    """torch's CPU generators have seeds of 32 bits: states that differ in the others gave the same draws."""

    class State(np.random.RandomState):
        def randint(self, *args, **options):
            return self.key

    states = [State(), State()]
    for place, state in enumerate(states):
        state.key = 5 + place * 2**40
    with engine(name):
        first, second = (power_spherical([0, 0, 1], 3.0).rvs(5, random_state=state) for state in states)
    assert not np.isclose(first, second).all(-1).any()


def test_without_a_state_numpys_own_decides() -> None:
    kept = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(3)  # noqa: NPY002
        first, second = uniform_sphere(3).rvs(2), uniform_sphere(3).rvs(2)
        np.random.seed(3)  # noqa: NPY002
        again = uniform_sphere(3).rvs(2)
    finally:
        np.random.set_state(kept)  # noqa: NPY002
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    "frozen",
    [power_spherical(MU, 7.0), von_mises_fisher(MU, 7.0), spherical_cauchy(MU, 7.0), uniform_sphere(4)],
)
def test_threads_draw_what_one_draws(frozen) -> None:
    """Seeded draws in four threads equal those in one, and torch's generator is not used."""

    def draw(seed: int) -> np.ndarray:
        return frozen.rvs(200, random_state=seed)

    before = torch.get_rng_state()
    expected = list(map(draw, range(300)))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(draw, range(300)))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(found, expected)


def test_objects_show_what_they_are() -> None:
    names = ["power_spherical", "von_mises_fisher", "spherical_cauchy", "uniform_sphere"]
    assert [repr(one) for one in (*FAMILIES, uniform_sphere)] == names
    assert repr(uniform_sphere(3)) == "uniform_sphere(dim=3)"
    assert repr(power_spherical([0, 1], 2)) == "power_spherical(mu=[0.0, 1.0], kappa=2.0)"
    one = von_mises_fisher(MU, [1.5, 3])
    again = eval(repr(one))
    np.testing.assert_array_equal(again.mu, one.mu)
    np.testing.assert_array_equal(again.kappa, one.kappa)
    many = f"von_mises_fisher(mu=<array of shape (7, 4)>, kappa={[1.0] * 7})"
    assert repr(von_mises_fisher(X, 1.0)) == many
    one.mu[:] = 0  # a copy
    np.testing.assert_array_equal(one.mu, again.mu)


def test_a_short_search_is_reported() -> None:
    x = power_spherical(np.eye(30)[0], 1.0).rvs(50, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"did not settle in 1 steps .* raise max_iter"):
        power_spherical.fit(x, max_iter=1)
    power_spherical.fit(x, max_iter=500)


def test_unit_vectors_of_any_kind() -> None:
    pole = np.eye(3)[1]
    for mu in (pole.astype(np.float32), pole.astype(np.int64), pole.tolist()):
        assert power_spherical(mu, 2).pdf(mu) == power_spherical(pole, 2.0).pdf(pole)
    rounded, exact = (power_spherical(mu, 5.0).logpdf(MU) for mu in (MU.astype(np.float32), MU))
    assert rounded == pytest.approx(exact, abs=1e-6)


def frozen(mu: object = MU, kappa: object = 1.0, **options: object):
    return power_spherical(mu, kappa, **options)


I3 = np.eye(3)


def test_what_scipy_refuses() -> None:
    """κ = 0 and arrays of κ. The statistics page says so."""
    sphere = uniform_sphere(4)
    for kappa in (0, np.array([0.0, 3.0])):
        with pytest.raises(ValueError, match="kappa"):
            scipy.stats.vonmises_fisher(MU, kappa)
    batch = von_mises_fisher(MU, [0.0, 3.0])
    np.testing.assert_allclose(batch.logpdf(X[0])[0], sphere.logpdf(X[0]))
    np.testing.assert_allclose(batch.logpdf(X[0])[1], scipy.stats.vonmises_fisher(MU, 3.0).logpdf(X[0]))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: frozen([1, 1]), r"mu of shape \(2,\) .* norm 1.41421356: divide by np.linalg.norm\(mu"),
        (lambda: frozen([np.nan, 1]), "row 0 of mu has NaN"),
        (lambda: frozen([3e200, 4e200]), "mu .* norm 5e\\+200"),
        (lambda: frozen([1]), "mu .* d ≥ 2"),
        (lambda: frozen(1.0), "mu .* d ≥ 2"),
        (lambda: frozen(["a", "b"]), "mu must be an array of real numbers"),
        (
            lambda: frozen([0, 1], -1.0),
            r"kappa of shape \(\) must be finite and ≥ 0 .* such as -1; negate mu",
        ),
        (lambda: frozen([0, 1], math.inf), "kappa .* finite"),
        (lambda: frozen(I3, [1.0, 2.0]), r"mu.shape\[:-1\] \(3,\) and kappa.shape \(2,\)"),
        (
            lambda: frozen(I3, np.ones((3, 1))),
            r"kappa of shape \(3, 1\) .* use kappa.squeeze\(-1\) .* mu\[None\]",
        ),
        (lambda: frozen().pdf([0, 1]), r"x must have the shape \(…, 4\), got \(2,\)"),
        (lambda: frozen(I3).pdf(I3[:2]), r"x.shape\[:-1\] \(2,\)"),
        (lambda: frozen().logpdf(2 * X), r"x of shape \(7, 4\) .* norm 2"),
        (lambda: frozen(I3).cdf([1, 2]), r"angle.shape \(2,\) and batch_shape \(3,\)"),
        (lambda: frozen(I3).ppf([0.1, 0.2]), r"probability.shape \(2,\) and batch_shape"),
        (lambda: frozen().cdf(4.0), "angle must lie in"),
        (lambda: frozen().ppf(1.5), "probability must lie in"),
        (lambda: frozen().rvs(-1), "size must be an integer ≥ 0"),
        (lambda: frozen().rvs(2.5), "size must be"),
        (lambda: frozen().rvs((2, -1)), "size must be an integer ≥ 0"),
        (lambda: frozen().rvs(3, random_state="x"), "random_state must be None"),
        (lambda: frozen().rvs(3, random_state=-1), "random_state must be None"),
        (lambda: frozen(seed=0.5), "random_state must be None"),
        (lambda: power_spherical.fit(2 * X), "x .* norm 2"),
        (
            lambda: power_spherical.fit(X[:, 0]),
            r"got \(7,\): convert angles with np.stack\(\(np.cos\(x\), np.sin\(x\)\)",
        ),
        (
            lambda: spherical_cauchy.fit(X, bias_correction=True),
            "bias_correction .* exponential families only",
        ),
        (lambda: power_spherical.fit(X, np.ones(3)), r"weights must have the shape \(7,\)"),
        (lambda: uniform_sphere(1), "dim .* ≥ 2"),
    ],
)
def test_bad_input(call, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "torch" not in str(error.value)
