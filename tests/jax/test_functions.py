"""Functions of κ, and densities, against mpmath and torch, with derivatives, in float32 and float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers import mpmath_tables
from helpers.directions import unit

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import powerspherical  # noqa: E402
import powerspherical.jax as ps  # noqa: E402
from powerspherical.jax import families, special  # noqa: E402

FAMILIES = {one.name: one for one in (families.POWER_SPHERICAL, families.VON_MISES_FISHER)}
NAMES = ["PowerSpherical", "VonMisesFisher", "SphericalCauchy"]
#: Functions of κ, the columns of the tables that have them, and the columns of their slopes.
QUANTITIES = {
    "relative_entropy": ("kl_uniform", "kl_uniform_prime"),
    "mean_cosine": ("mean", "mean_prime"),
    "mean_loss": ("mean_complement", None),
    "information": ("log_normalizer_second", None),
}
CASES = [(name, dim) for name in FAMILIES for dim in mpmath_tables.dims("functions.json", name)]


@pytest.mark.parametrize(("name", "dim"), CASES)
def test_the_table(name: str, dim: int) -> None:
    table = {k: v.numpy() for k, v in mpmath_tables.columns("functions.json", name, dim).items()}
    exact, family = table["kappa"], FAMILIES[name]
    for function, (column, slope) in QUANTITIES.items():
        with jax.enable_x64(True):
            value, grow = jax.jvp(
                lambda k, f=function: getattr(family, f)(k, dim),
                (jnp.asarray(exact),),
                (jnp.ones(len(exact)),),
            )
        np.testing.assert_allclose(value, table[column], rtol=2e-15, atol=0)
        if slope:
            np.testing.assert_allclose(grow, table[slope], rtol=2e-15, atol=0)
        kept = (exact.astype(np.float32) == exact) & (table[column] > 1e-34)  # others may underflow
        assert kept.sum() >= 4
        found = np.asarray(getattr(family, function)(jnp.asarray(exact, jnp.float32), dim), np.float64)
        np.testing.assert_allclose(found[kept], table[column][kept], rtol=2.5e-7, atol=0)


@pytest.mark.parametrize("name", sorted(special.__all__))
def test_special_functions_are_those_of_torch(name: str) -> None:
    argument = np.array([0.0, 1e-3, 0.3, 0.9]) if "inverse" in name else np.array([0.0, 1e-3, 1.0, 40.0, 1e7])
    there = getattr(powerspherical.special, name)
    if name == "log_sphere_area":
        assert special.log_sphere_area(7) == there(7)
        return
    function = getattr(special, name)
    if name == "log_bessel_i":
        function, there = (lambda x, d, f=f: f(d / 2 - 1, x) for f in (function, there))
        argument = argument[1:]
    leaf = torch.tensor(argument, requires_grad=True)
    expected = there(leaf, 5)
    (slope,) = torch.autograd.grad(expected.sum(), leaf)
    with jax.enable_x64(True):
        found, grow = jax.jvp(lambda x: function(x, 5), (jnp.asarray(argument),), (jnp.ones_like(argument),))
    # Near the zero of the log-partition of Power Spherical the error is relative to κ/d.
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(grow, slope, rtol=1e-13)
    single = function(jnp.asarray(argument, jnp.float32), 5)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected.detach(), rtol=2e-6, atol=1e-7)


def test_the_ends_of_the_axis() -> None:
    """Zero and subnormal κ give the limit, a negative κ counts as 0 with slope 0, infinity gives its limit, NaN NaN."""
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            kappa = jnp.array([0.0, -0.0, 1e-40, -0.5, math.inf, math.nan], dtype)
            value, slope = jax.jvp(lambda k: special.bessel_ratio(k, 5), (kappa,), (jnp.ones_like(kappa),))
        np.testing.assert_allclose(value, [0, 0, 0, 0, 1, math.nan], atol=1e-39)
        np.testing.assert_allclose(slope, [0.2, 0.2, 0.2, 0, 0, math.nan], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_members_are_those_of_torch(name: str) -> None:
    """In float64, with gradients of the density, and a Hessian of the entropy against a difference of gradients."""
    dim, kappa = 6, np.array([0.0, 0.5, 30.0, 1e4])
    loc, x = unit(4, dim, seed=1).double(), unit(4, dim, seed=2).double()
    p = getattr(powerspherical, name)(loc.requires_grad_(), torch.tensor(kappa, requires_grad=True))
    with jax.enable_x64(True):
        q = getattr(ps, name)(jnp.asarray(loc.detach().numpy()), jnp.asarray(kappa))
        for member in ("entropy", "mean", "mode", "variance", "covariance_matrix", "log_normalizer"):
            mine, theirs = (getattr(one, member) for one in (q, p))
            mine, theirs = (value() if callable(value) else value for value in (mine, theirs))
            np.testing.assert_allclose(mine, theirs.detach(), rtol=1e-13, atol=1e-15, err_msg=member)
        angles, shares = np.array([0.0, 1e-3, 1.0, 3.0]), np.array([0.0, 1e-9, 0.5, 1.0])
        for member, argument in (("cap_probability", angles), ("cap_angle", shares)):
            leaf, there = torch.tensor(kappa, requires_grad=True), torch.tensor(argument)
            expected = getattr(type(p)(loc.detach(), leaf), member)(there)
            (slope,) = torch.autograd.grad(expected.sum(), leaf)
            found, pull_back = jax.vjp(
                lambda k, m=member, a=argument: getattr(type(q)(q.loc, k), m)(a), q.concentration
            )
            np.testing.assert_allclose(found, expected.detach(), rtol=1e-10, err_msg=member)
            np.testing.assert_allclose(pull_back(jnp.ones(4))[0], slope, rtol=1e-8, atol=1e-300)
        expected = p.log_prob(x)
        slopes = torch.autograd.grad(expected.sum(), (p.loc, p.concentration))
        found, pull_back = jax.vjp(lambda m, k: type(q)(m, k).log_prob(x.numpy()), q.loc, q.concentration)
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-13)
        for mine, theirs in zip(pull_back(jnp.ones(4)), slopes, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
        slope = jax.grad(lambda k: type(q)(q.loc[0], k).entropy())
        difference = (slope(2.001) - slope(1.999)) / 0.002
        np.testing.assert_allclose(
            jax.hessian(lambda k: type(q)(q.loc[0], k).entropy())(2.0), difference, rtol=1e-5
        )
        with pytest.raises(NotImplementedError, match="differentiable once"):
            jax.hessian(lambda k: type(q)(q.loc[0], k).cap_probability(0.5))(2.0)


@pytest.mark.parametrize("name", NAMES)
def test_inverses_and_fits(name: str) -> None:
    cls, torchs = getattr(ps, name), getattr(powerspherical, name)
    loc = np.eye(8)[0]
    rates, lengths = np.array([0.0, 0.1, 3.0, 20.0]), np.array([0.0, 0.2, 0.9, 0.999])
    x = torchs(torch.tensor(loc), torch.tensor(9.0)).sample((200,)).numpy()
    with jax.enable_x64(True):
        q = cls.from_kl(loc, rates)
        np.testing.assert_allclose(q.relative_entropy(), rates, rtol=1e-12)
        np.testing.assert_allclose(
            jnp.linalg.norm(cls.from_mean_length(loc, lengths).mean, axis=-1), lengths, rtol=1e-12
        )
        slope = jax.grad(lambda n: cls.from_kl(loc, n).concentration)(3.0)
        inverse = jax.grad(lambda k: cls(loc, k).relative_entropy())(q.concentration[2])
        np.testing.assert_allclose(slope * inverse, 1, rtol=1e-11)
        found, expected = cls.fit(x), torchs.fit(torch.tensor(x))
    np.testing.assert_allclose(found.concentration, expected.concentration, rtol=1e-9)
    np.testing.assert_allclose(found.loc, expected.loc, atol=1e-10)
    single = cls.fit(x.astype(np.float32))
    assert single.loc.dtype == jnp.float32
    np.testing.assert_allclose(single.concentration, expected.concentration, rtol=1e-4)
    if name != "SphericalCauchy":
        with jax.enable_x64(True):
            found = cls.fit(x, np.arange(200.0), bias_correction=True)
        expected = torchs.fit(torch.tensor(x), torch.arange(200.0).double(), bias_correction=True)
        np.testing.assert_allclose(found.concentration, expected.concentration, rtol=1e-9)


def test_a_closest_von_mises_fisher_has_the_same_mean() -> None:
    p = ps.PowerSpherical(jnp.eye(5)[0], jnp.array([0.5, 40.0]))
    np.testing.assert_allclose(p.closest_von_mises_fisher().mean, p.mean, rtol=1e-6)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"concentration of shape \(4, 1\).*squeeze"):
        ps.PowerSpherical(jnp.ones((4, 3)), jnp.ones((4, 1)))
    with pytest.raises(ValueError, match="do not broadcast"):
        ps.PowerSpherical(jnp.ones((4, 3)), jnp.ones(3))
    with pytest.raises(ValueError, match="d ≥ 2"):
        ps.VonMisesFisher(jnp.ones(1), 1.0)
    with pytest.raises(ValueError, match="norm of loc"):
        ps.VonMisesFisher(jnp.ones(3), 1.0, validate_args=True)
    with pytest.raises(ValueError, match=r"concentration.*≥ 0.*-1"):
        ps.VonMisesFisher(jnp.eye(3)[0], -1.0, validate_args=True)
    with pytest.raises(ValueError, match="dim must be"):
        ps.HypersphericalUniform(1)
    with pytest.raises(ValueError, match="one dimension"):
        ps.kl_divergence(ps.HypersphericalUniform(3), ps.HypersphericalUniform(4))
    with pytest.raises(ValueError, match="value must have"):
        ps.HypersphericalUniform(3).log_prob(jnp.ones(4))
