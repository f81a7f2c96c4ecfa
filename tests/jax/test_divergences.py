"""KL divergences of all ordered pairs at any angle, against mpmath and torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence

from helpers import mpmath_tables
from helpers.own_family import SquaredChordFamily

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import powerspherical  # noqa: E402
import powerspherical.jax as ps  # noqa: E402

NAMES = ["PowerSpherical", "VonMisesFisher", "SphericalCauchy"]
pairs = pytest.mark.parametrize(("first", "second"), list(itertools.product(NAMES, repeat=2)))
TABLE, CAUCHY = (mpmath_tables.load(name) for name in ("kl_pairs.json", "cauchy_kl.json"))


def reference(first: type, second: type, dim: int) -> np.ndarray | None:
    """Return rows (κ_p, κ_q, θ, KL) of a table, or None if there is none for the pair."""
    pair = [first.family.name, second.family.name]
    if pair in TABLE["pairs"]:
        values = np.array(TABLE["kl"][TABLE["dims"].index(dim)])[..., TABLE["pairs"].index(pair)]
        grid = np.meshgrid(TABLE["kappas"], TABLE["kappas"], TABLE["thetas"], indexing="ij")
        return np.stack([*(axis.ravel() for axis in grid), values.ravel()], -1)
    if (column := " || ".join(pair)) in CAUCHY["columns"]:
        rows = np.array([row for row in CAUCHY["kl"] if row[0] == dim])
        return rows[:, [1, 2, 3, CAUCHY["columns"].index(column)]]
    rows = np.array(mpmath_tables.load("cauchy.json")["pairs"], float)  # two spherical Cauchy distributions
    return rows[rows[:, 0] == 10, 1:]


@pairs
def test_the_table(first: str, second: str) -> None:
    """In float32 the angles are those of rounded directions, so the exact values there are torch's in float64."""
    classes = getattr(ps, first), getattr(ps, second)
    rows = reference(*classes, 64)
    dim = 10 if first == second == "SphericalCauchy" else 64
    kappa_p, kappa_q, theta, expected = rows.T
    locs = np.zeros((2, len(theta), dim))
    locs[0, :, 0], locs[1, :, 0], locs[1, :, 1] = 1, np.cos(theta), np.sin(theta)
    with jax.enable_x64(True):
        found = ps.kl_divergence(classes[0](locs[0], kappa_p), classes[1](locs[1], kappa_q))
    assert (np.abs(np.asarray(found) - expected) / np.maximum(expected, 1)).max() <= 2e-12
    p, q = (
        cls(loc.astype(np.float32), kappa.astype(np.float32))
        for cls, loc, kappa in zip(classes, locs, (kappa_p, kappa_q), strict=True)
    )
    found = ps.kl_divergence(p, q)
    assert found.dtype == jnp.float32
    there = (
        getattr(powerspherical, name)(
            torch.nn.functional.normalize(torch.tensor(np.asarray(one.loc, np.float64)), dim=-1),
            torch.tensor(np.asarray(one.concentration, np.float64)),
        )
        for name, one in ((first, p), (second, q))
    )
    exact = kl_divergence(*there).numpy()
    assert (np.abs(np.asarray(found) - exact) / np.maximum(exact, 1)).max() <= 1e-5


@pairs
def test_gradients(first: str, second: str) -> None:
    """In all parameters, also in float32, where some operations are differentiated outside of the float64 block."""
    rng = np.random.default_rng(1)
    locs = rng.normal(size=(2, 3, 8))
    locs /= np.linalg.norm(locs, axis=-1, keepdims=True)
    locs[0, 0] = locs[1, 0]
    parameters = locs[0], np.array([0.5, 3.0, 40.0]), locs[1], np.array([2.0, 0.0, 30.0])

    def divergence(classes, m, k, n, j):
        return classes[0](m, k), classes[1](n, j)

    leaves = [torch.tensor(x, requires_grad=True) for x in parameters]
    torchs = getattr(powerspherical, first), getattr(powerspherical, second)
    expected = torch.autograd.grad(kl_divergence(*divergence(torchs, *leaves)).sum(), leaves)
    classes = getattr(ps, first), getattr(ps, second)
    grad = jax.jit(
        jax.grad(lambda *args: ps.kl_divergence(*divergence(classes, *args)).sum(), argnums=(0, 1, 2, 3))
    )
    for mine, theirs in zip(grad(*(jnp.asarray(x, jnp.float32) for x in parameters)), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5)


def test_the_uniform() -> None:
    loc, kappa, prior = jnp.eye(4)[0], jnp.array([0.0, 1e-3, 2.0, 500.0]), ps.HypersphericalUniform(4)
    for name in NAMES:
        p, q = getattr(ps, name)(loc, kappa), getattr(powerspherical, name)
        there = q(torch.eye(4, dtype=torch.float64)[0], torch.tensor(np.asarray(kappa, np.float64)))
        uniform = powerspherical.HypersphericalUniform(4, dtype=torch.float64)
        np.testing.assert_allclose(ps.kl_divergence(p, prior), kl_divergence(there, uniform), rtol=4e-7)
        np.testing.assert_allclose(ps.kl_divergence(prior, p), kl_divergence(uniform, there), rtol=4e-7)
    assert ps.kl_divergence(prior, ps.HypersphericalUniform(4, batch_shape=(2,))).tolist() == [0, 0]


def test_second_derivatives() -> None:
    def divergence(kappa):
        return ps.kl_divergence(
            ps.PowerSpherical(jnp.eye(5)[0], kappa), ps.VonMisesFisher(jnp.eye(5)[1], kappa)
        )

    with jax.enable_x64(True):
        slope = jax.grad(divergence)
        difference = (slope(3.001) - slope(2.999)) / 0.002
    np.testing.assert_allclose(jax.hessian(divergence)(3.0), difference, rtol=1e-5)


class Chord:
    """The own family of the other tests: its log-density is written for torch, but serves JAX as it is."""

    name, title = SquaredChordFamily.name, SquaredChordFamily.title

    def log_kernel(self, t, kappa, dim):
        return -kappa * t.minus * t.minus / 4


class ChordInJax(Chord, ps.Family):
    pass


class SquaredChord(ps.RotationallySymmetric):
    family = ChordInJax()


def test_a_family_of_ones_own() -> None:
    """Its functions of κ and a divergence are those of the same family in torch, and draws have its law."""

    class InTorch(Chord, powerspherical.families.Family):
        pass

    family, kappa, dim = InTorch(), np.array([0.5, 8.0]), 5
    exact = torch.tensor(kappa)
    with jax.enable_x64(True):
        p = SquaredChord(jnp.eye(dim)[0], kappa)
        np.testing.assert_allclose(p.relative_entropy(), family.relative_entropy(exact, dim), rtol=1e-9)
        np.testing.assert_allclose(p.mean[:, 0], family.mean_cosine(exact, dim), rtol=1e-9)
        angle = powerspherical.families.Cosine(*torch.tensor([[0.4] * 2, [1.6] * 2], dtype=torch.float64))
        q = ps.PowerSpherical(jnp.array([0.6, 0.8, 0, 0, 0]), 3.0)
        other = powerspherical.families.POWER_SPHERICAL
        expected = other.divergence(family, exact, torch.full((2,), 3.0).double(), angle, dim)
        np.testing.assert_allclose(ps.kl_divergence(p, q), expected, rtol=1e-9)
        half = p.cap_angle(0.5)
        np.testing.assert_allclose(p.cap_probability(half), 0.5, rtol=1e-12)
    single = SquaredChord(p.loc.astype(jnp.float32), p.concentration.astype(jnp.float32))
    x = single.sample(jax.random.key(1), (4000,))
    inside = (np.asarray(x)[..., 0] > np.cos(half)).mean(0)
    assert (abs(inside - 0.5) < 5 * 0.5 / 4000**0.5).all()
    assert jnp.isfinite(
        jax.grad(lambda k: SquaredChord(single.loc, k).sample(jax.random.key(1), (3,))[..., 0].sum())(2.0)
    )
