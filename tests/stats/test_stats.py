"""The SciPy-style objects agree with SciPy where it is accurate, and with the torch distributions everywhere."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import torch

from helpers.examples import directions
from helpers.own_family import registered
from helpers.statistical import assert_law, assert_mean
from powerspherical import (
    ConvergenceWarning,
    HypersphericalUniform,
    PowerSpherical,
    SphericalCauchy,
    VonMisesFisher,
)
from powerspherical.distributions import distribution_named
from powerspherical.stats import (
    RotationalFamily,
    power_spherical,
    spherical_cauchy,
    uniform_sphere,
    von_mises_fisher,
)

every = pytest.mark.parametrize(
    ("family", "torch_family"),
    [
        (power_spherical, PowerSpherical),
        (von_mises_fisher, VonMisesFisher),
        (spherical_cauchy, SphericalCauchy),
    ],
    ids=["PS", "vMF", "Cauchy"],
)
MU = directions(4).numpy()
X = directions(7, 4, seed=2).numpy()


@pytest.mark.parametrize("dim", [2, 3, 10])
@pytest.mark.parametrize("kappa", [0.5, 10.0, 200.0])
def test_von_mises_fisher_is_scipys(dim: int, kappa: float) -> None:
    mu, x = directions(dim).numpy(), directions(20, dim, seed=2).numpy()
    ours, scipys = von_mises_fisher(mu, kappa), scipy.stats.vonmises_fisher(mu, kappa)
    np.testing.assert_allclose(ours.logpdf(x), scipys.logpdf(x), rtol=1e-11)
    np.testing.assert_allclose(ours.pdf(x), scipys.pdf(x), rtol=1e-11)
    np.testing.assert_allclose(ours.entropy(), scipys.entropy(), rtol=1e-11)
    assert ours.rvs(5).shape == scipys.rvs(5).shape
    assert ours.rvs().shape == scipys.rvs().shape
    assert ours.rvs((2, 3)).shape == scipys.rvs((2, 3)).shape
    assert (type(ours.pdf(mu)), ours.dim) == (type(scipys.pdf(mu)), scipys.dim)


def test_von_mises_fisher_fits_as_scipy_does() -> None:
    x = scipy.stats.vonmises_fisher(MU, 8.0).rvs(3000, random_state=1)
    (mu, kappa), (scipys_mu, scipys_kappa) = von_mises_fisher.fit(x), scipy.stats.vonmises_fisher.fit(x)
    np.testing.assert_allclose(mu, scipys_mu, atol=1e-12)
    assert kappa == pytest.approx(scipys_kappa, rel=1e-9)


def test_the_circle_is_scipys_von_mises() -> None:
    """cdf and ppf agree with an independent implementation."""
    angles = np.linspace(0.1, 3.0, 7)
    expected = 2 * scipy.stats.vonmises.cdf(angles, 3.0) - 1
    circle = von_mises_fisher([0, 1], 3.0)
    np.testing.assert_allclose(circle.cdf(angles), expected, rtol=1e-9)
    np.testing.assert_allclose(circle.ppf(expected), angles, rtol=1e-9)


def test_the_power_spherical_cosine_is_a_beta_variable() -> None:
    angles, beta, kappa = np.linspace(0.1, 3.0, 7), 1.5, 6.0
    expected = scipy.stats.beta.sf((1 + np.cos(angles)) / 2, beta + kappa, beta)
    np.testing.assert_allclose(power_spherical(MU, kappa).cdf(angles), expected, rtol=1e-9)


def test_the_spherical_cauchy_on_the_circle_is_scipys_wrapped_cauchy() -> None:
    angles, rho = np.linspace(0.1, 3.0, 7), 0.6
    circle = spherical_cauchy([0, 1], 2 * rho / (1 - rho))
    wrapped = scipy.stats.wrapcauchy(rho)
    x = np.stack([np.sin(angles), np.cos(angles)], -1)
    np.testing.assert_allclose(circle.pdf(x), wrapped.pdf(angles), rtol=1e-12)
    np.testing.assert_allclose(circle.cdf(angles), 2 * wrapped.cdf(angles), rtol=1e-9)


def test_a_distribution_of_ones_own(monkeypatch) -> None:
    distribution = distribution_named(registered(monkeypatch).name)
    family = RotationalFamily(distribution)
    frozen = family(MU, 9.0)
    twin = distribution(torch.from_numpy(MU), 9.0)
    np.testing.assert_allclose(frozen.logpdf(X), twin.log_prob(torch.from_numpy(X)).numpy(), rtol=1e-12)
    assert frozen.rvs(5, random_state=0).shape == (5, 4)
    assert repr(family) == "squared_chord"
    assert repr(family([0, 1], 2)) == "squared_chord(mu=[0.0, 1.0], kappa=2.0)"
    assert family.__doc__.startswith("The squared chord distribution on the unit sphere of R^d.")


@pytest.mark.parametrize("dim", [2, 3, 20])
def test_the_uniform(dim: int) -> None:
    sphere = uniform_sphere(dim)
    area = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
    pole = np.eye(dim)[0]
    assert sphere.pdf(pole) == pytest.approx(1 / area, rel=1e-13)
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
    kappa = np.array([[0.0], [3.0], [1e4]])
    mu = directions(2, 4).numpy()
    frozen = family(mu, kappa)
    twin = torch_family(torch.from_numpy(mu), torch.from_numpy(kappa))
    x, angle, probability = directions(3, 2, 4, seed=2).numpy(), np.array([0.1, 2.0]), np.array([0.2, 0.9])
    pairs = [
        (frozen.logpdf(x), twin.log_prob(torch.from_numpy(x))),
        (frozen.pdf(x), twin.log_prob(torch.from_numpy(x)).exp()),
        (frozen.entropy(), twin.entropy()),
        (frozen.mean(), twin.mean),
        (frozen.cov(), twin.covariance_matrix),
        (frozen.cdf(angle), twin.cap_probability(torch.from_numpy(angle))),
        (frozen.ppf(probability), twin.cap_angle(torch.from_numpy(probability))),
        (frozen.mu, twin.loc),
        (frozen.kappa, twin.concentration),
    ]
    for ours, theirs in pairs:
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)
    assert frozen.rvs((5, 1)).shape == (5, 1, 3, 2, 4)


@every
def test_the_family_takes_the_parameters_itself(family, torch_family: type) -> None:
    frozen = family(MU, 3.0)
    for name, arguments in (
        ("pdf", (X,)),
        ("logpdf", (X,)),
        ("cdf", (0.7,)),
        ("ppf", (0.7,)),
        ("entropy", ()),
        ("mean", ()),
        ("cov", ()),
    ):
        np.testing.assert_array_equal(
            getattr(family, name)(*arguments, MU, 3.0), getattr(frozen, name)(*arguments)
        )
    np.testing.assert_array_equal(family.rvs(MU, 3.0, 5, 1), frozen.rvs(5, 1))
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


def test_draws_are_not_those_of_torchs_seed_alone() -> None:
    """The draws are those of the torch sampler with the same seed."""
    seed = int(np.random.default_rng(4).integers(2**63 - 1))
    torch.manual_seed(seed)
    expected = HypersphericalUniform(3, dtype=torch.float64).sample((6,))
    np.testing.assert_array_equal(uniform_sphere(3).rvs(6, random_state=4), expected.numpy())


def test_objects_show_what_they_are() -> None:
    assert [
        repr(family) for family in (power_spherical, von_mises_fisher, spherical_cauchy, uniform_sphere)
    ] == [
        "power_spherical",
        "von_mises_fisher",
        "spherical_cauchy",
        "uniform_sphere",
    ]
    assert repr(uniform_sphere(3)) == "uniform_sphere(dim=3)"
    assert repr(power_spherical([0, 1], 2)) == "power_spherical(mu=[0.0, 1.0], kappa=2.0)"
    one, many = von_mises_fisher(MU, [1.5, 3]), von_mises_fisher(X, 1.0)
    np.testing.assert_array_equal(eval(repr(one)).mu, one.mu)
    np.testing.assert_array_equal(eval(repr(one)).kappa, one.kappa)
    assert repr(many) == f"von_mises_fisher(mu=<array of shape (7, 4)>, kappa={[1.0] * 7})"


def test_a_short_search_is_reported() -> None:
    x = power_spherical(np.eye(30)[0], 1.0).rvs(50, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"did not settle in 1 steps .* raise max_iter"):
        power_spherical.fit(x, max_iter=1)
    power_spherical.fit(x, max_iter=500)


def test_what_a_frozen_object_shows_is_a_copy() -> None:
    frozen = power_spherical(MU, 3.0)
    frozen.mu[:] = 0
    np.testing.assert_array_equal(frozen.mu, MU / np.linalg.norm(MU))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, list])
def test_unit_vectors_of_any_kind(dtype) -> None:
    mu = np.eye(3)[1].tolist() if dtype is list else np.eye(3, dtype=dtype)[1]
    assert power_spherical(mu, 2).pdf(mu) == power_spherical(np.eye(3)[1], 2.0).pdf(np.eye(3)[1])
    rounded = MU.astype(np.float32)
    assert power_spherical(rounded, 5.0).logpdf(MU) == pytest.approx(
        power_spherical(MU, 5.0).logpdf(MU), abs=1e-6
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: power_spherical([1, 1], 1.0),
            r"mu of shape \(2,\) .* norm 1.41421356: divide by np.linalg.norm\(mu",
        ),
        (lambda: power_spherical([np.nan, 1], 1.0), "row 0 of mu has NaN"),
        (lambda: power_spherical([3e200, 4e200], 1.0), "mu .* norm 5e\\+200"),
        (lambda: power_spherical([1], 1.0), "mu .* d ≥ 2"),
        (lambda: power_spherical(1.0, 1.0), "mu .* d ≥ 2"),
        (lambda: power_spherical(["a", "b"], 1.0), "mu must be an array of real numbers"),
        (
            lambda: power_spherical([0, 1], -1.0),
            r"kappa of shape \(\) must be finite and ≥ 0 .* such as -1; negate mu to concentrate around the opposite",
        ),
        (lambda: power_spherical([0, 1], math.inf), "kappa .* finite"),
        (lambda: power_spherical(np.eye(3), [1.0, 2.0]), r"mu.shape\[:-1\] \(3,\) and kappa.shape \(2,\)"),
        (
            lambda: power_spherical(np.eye(3), np.ones((3, 1))),
            r"kappa of shape \(3, 1\) .* mu of shape \(3, 3\): use kappa.squeeze\(-1\) .* mu\[None\]",
        ),
        (lambda: power_spherical(MU, 1.0).pdf([0, 1]), r"x must have the shape \(…, 4\), got \(2,\)"),
        (lambda: power_spherical(np.eye(3), 1.0).pdf(np.eye(3)[:2]), r"x.shape\[:-1\] \(2,\)"),
        (lambda: power_spherical(MU, 1.0).logpdf(2 * X), r"x of shape \(7, 4\) .* norm 2"),
        (
            lambda: power_spherical(np.eye(3), 1.0).cdf([1.0, 2.0]),
            r"angle.shape \(2,\) and the parameters' shape \(3,\)",
        ),
        (
            lambda: power_spherical(np.eye(3), 1.0).ppf([0.1, 0.2]),
            r"probability.shape \(2,\) and the parameters' shape",
        ),
        (lambda: power_spherical(MU, 1.0).cdf(4.0), "angle must lie in"),
        (lambda: power_spherical(MU, 1.0).ppf(1.5), "probability must lie in"),
        (lambda: power_spherical(MU, 1.0).rvs(-1), "size must be an integer ≥ 0"),
        (lambda: power_spherical(MU, 1.0).rvs(2.5), "size must be"),
        (lambda: power_spherical(MU, 1.0).rvs((2, -1)), "size must be an integer ≥ 0"),
        (lambda: power_spherical(MU, 1.0).rvs(3, random_state="x"), "random_state must be None"),
        (lambda: power_spherical(MU, 1.0).rvs(3, random_state=-1), "random_state must be None"),
        (lambda: power_spherical(MU, 1.0, seed=0.5), "random_state must be None"),
        (lambda: power_spherical.fit(2 * X), "x .* norm 2"),
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
