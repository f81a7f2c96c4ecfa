"""Draws: their law, gradients in both parameters, extremes, transforms; the random bits and normals behind them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import powerspherical  # noqa: E402
import powerspherical.jax as ps  # noqa: E402
from helpers.statistical import LEVEL, assert_law  # noqa: E402
from powerspherical.jax import random  # noqa: E402

NAMES = ["PowerSpherical", "VonMisesFisher", "SphericalCauchy"]
names = pytest.mark.parametrize("name", NAMES)
ROWS = 20_000


@names
@pytest.mark.parametrize("dim", [2, 3, 6, 40])
def test_law_and_gradients(name: str, dim: int) -> None:
    """At ±e₁, and for κ from 0 to 1e9, by one compiled function."""
    cls, there = getattr(ps, name), getattr(powerspherical, name)
    loc = jnp.zeros((4, dim)).at[:, 0].set(jnp.array([1.0, -1.0, 1.0, -1.0]))
    kappa = jnp.array([0.0, 0.7, 20.0, 1e9])
    repeated = jnp.tile(kappa, (ROWS, 1))

    def draws(key, loc, kappa):
        x, pull_back = jax.vjp(lambda m, k: cls(m, k).sample(key), jnp.tile(loc, (ROWS, 1, 1)), kappa)
        # The gradients of t in κ, and of x₂ in μ.
        return x, pull_back(x.at[:].set(loc))[1], pull_back(jnp.zeros_like(x).at[..., 1].set(1.0))[0]

    x, in_kappa, in_loc = jax.jit(draws)(jax.random.key(dim), loc, repeated)
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=-1), 1, atol=3e-7)
    assert np.isfinite(in_kappa).all()
    assert np.isfinite(in_loc).all()
    exact = torch.tensor(np.asarray(kappa, np.float64), requires_grad=True)
    member = there(torch.tensor(np.asarray(loc, np.float64)), exact)
    mean = member.marginal.mean
    (slope,) = torch.autograd.grad(mean.sum(), exact)
    found = np.asarray(in_kappa, np.float64)
    error = found.std(0) / ROWS**0.5
    far = abs(found.mean(0) - slope.numpy())
    near = far <= scipy.stats.norm.isf(LEVEL) * error + 1e-5 * abs(slope.numpy())
    assert near[:3].all(), (
        far / error
    )  # at κ = 1e9 one draw in a billion has most of the mean of a spherical Cauchy
    turned = np.asarray(in_loc, np.float64)[..., 1]  # ∂x₂/∂μ₂, whose mean is E t
    spread = scipy.stats.norm.isf(LEVEL) * turned.std(0) / ROWS**0.5 + 1e-6
    assert (abs(turned.mean(0) - mean.detach().numpy()) <= spread).all()
    cosine = np.asarray((x * loc).sum(-1), np.float64)
    for column, k in ((0, 0.0), (1, 0.7), (2, 20.0)):
        law = there(torch.eye(dim, dtype=torch.float64)[0], torch.tensor(float(np.float32(k)))).marginal
        assert_law(
            torch.tensor(cosine[:, column]),
            lambda t, law=law: law.cdf(torch.as_tensor(t).clamp(-1, 1).double()).numpy(),
        )


def test_high_dimensions_and_bad_concentrations() -> None:
    loc = jnp.zeros(10**6).at[0].set(1.0)
    for name in NAMES:
        cls = getattr(ps, name)
        grad = jax.grad(lambda m, k, cls=cls: cls(m, k).sample(jax.random.key(0))[:2].sum(), argnums=(0, 1))
        assert all(np.isfinite(x).all() for x in grad(loc, 1e5))
        x = cls(loc[:5], jnp.array([jnp.nan, jnp.inf])).sample(jax.random.key(0))
        assert np.isnan(x[0]).all()
        np.testing.assert_allclose(x[1], loc[:5], atol=1e-17)


@names
def test_float64(name: str) -> None:
    """The derivative in κ is the exact one at a fixed probability, as in torch."""
    with jax.enable_x64(True):
        loc = jnp.eye(6)[0]
        x, slope = jax.jvp(
            lambda k: getattr(ps, name)(loc, k).sample(jax.random.key(2), (50,)), (jnp.asarray(4.0),), (1.0,)
        )
    t = torch.tensor(np.asarray(x)[:, 0])
    there = getattr(powerspherical, name).family
    ends = powerspherical.families.Cosine(1 - t, 1 + t)
    expected = there.slope(ends, None, torch.full_like(t, 4.0), 6) * (1 - t * t)
    np.testing.assert_allclose(slope[:, 0], expected, rtol=1e-8)


def test_second_derivatives_raise() -> None:
    def first(kappa):
        return ps.PowerSpherical(jnp.eye(5)[0], kappa).sample(jax.random.key(0))[0]

    for derivative in (jax.hessian(first), jax.jacfwd(jax.jacfwd(first)), jax.jit(jax.grad(jax.grad(first)))):
        with pytest.raises(NotImplementedError, match="differentiable once"):
            derivative(2.0)


def test_transforms() -> None:
    """``vmap``, ``checkpoint``, ``scan`` and pytrees of distributions give what plain calls give."""
    loc, kappa, keys = jnp.eye(4)[:3], jnp.array([0.5, 4.0, 90.0]), jax.random.split(jax.random.key(3), 3)

    def draw(key, m, k):
        return ps.VonMisesFisher(m, k).sample(key)

    plain = jnp.stack([draw(*each) for each in zip(keys, loc, kappa, strict=True)])
    np.testing.assert_allclose(jax.vmap(draw)(keys, loc, kappa), plain, atol=1e-6)
    grad = jax.grad(lambda k: draw(keys[0], loc, k)[:, 0].sum())
    again = jax.jit(jax.grad(jax.checkpoint(lambda k: draw(keys[0], loc, k)[:, 0].sum())))
    np.testing.assert_allclose(again(kappa), grad(kappa), rtol=1e-5)
    q = ps.VonMisesFisher(loc, kappa)
    np.testing.assert_allclose(jax.vmap(lambda p: p.entropy())(q), q.entropy(), rtol=1e-6)
    _, found = jax.lax.scan(lambda _, p: (None, p.entropy()), None, q)
    np.testing.assert_allclose(found, q.entropy(), rtol=1e-6)
    for key in (jax.random.PRNGKey(0), jax.random.key(0, impl="rbg")):
        np.testing.assert_allclose(jnp.linalg.norm(q.sample(key), axis=-1), 1, atol=3e-7)


def test_bits_and_normals() -> None:
    """The bits are those of JAX. All 2²⁴ normals are finite, odd, increasing, and right to a few roundings."""
    key = jax.random.key(5)
    np.testing.assert_array_equal(random.bits(key, (7, 9)), jax.random.bits(key, (7, 9)))
    assert not (random.bits(key, (7, 9), 1) == random.bits(key, (7, 9))).any()
    values = np.asarray(jax.jit(random.normal_of_bits)(jnp.arange(2**24, dtype=np.uint32) << 8))
    values = np.roll(values, 2**23)  # the bits are signed
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -2e-7 * np.abs(values[1:])).all()
    np.testing.assert_array_equal(values, -values[::-1])
    every = np.arange(0, 2**24, 997)
    exact = scipy.stats.norm.ppf((every + 0.5) * 2.0**-24)
    np.testing.assert_allclose(values[every], exact, rtol=2e-6)


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("torch", "tensorflow", "tensorflow_probability")))  # None makes an import fail
import jax, jax.numpy as jnp
import powerspherical, powerspherical.jax as ps
p = ps.PowerSpherical(jnp.eye(3)[0], 2.0)
ps.kl_divergence(p, ps.VonMisesFisher(p.sample(jax.random.key(0)), 1.0)).block_until_ready()
try:
    powerspherical.PowerSpherical
except ImportError as error:
    print(error)
"""


def test_no_torch() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("powerspherical.PowerSpherical needs torch: pip install torch")


SHARDED = """
import jax, jax.numpy as jnp
import powerspherical.jax as ps
from jax.sharding import AxisType, PartitionSpec as P
loc, kappa, key = jnp.eye(4)[:1].repeat(8, 0), jnp.linspace(1, 9, 8), jax.random.key(0)

def total(loc, kappa):
    p = ps.VonMisesFisher(loc, kappa)
    return p.sample(key).sum() + p.log_prob(loc).sum() + ps.kl_divergence(p, ps.PowerSpherical(loc, kappa + 1)).sum()

plain = jax.jit(jax.grad(total, (0, 1)))(loc, kappa)
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(mesh):
    found = jax.jit(jax.grad(total, (0, 1)))(jax.reshard(loc, P("i")), jax.reshard(kappa, P("i")))
    assert found[1].sharding.spec == P("i")
for mine, theirs in zip(found, plain):
    assert jnp.allclose(jax.device_get(mine), theirs, rtol=1e-5, atol=1e-6)
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
mapped = jax.shard_map(lambda m, k: total(m, k)[None], mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i"))
found = jax.jit(jax.grad(lambda k: mapped(loc, k).sum()))(kappa)
assert jnp.isfinite(found).all()
"""


@pytest.mark.slow
def test_sharding() -> None:
    """Over four devices, of which the platform pretends to have so many."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], capture_output=True, text=True, env=os.environ | flags
    )
    assert done.returncode == 0, done.stderr
