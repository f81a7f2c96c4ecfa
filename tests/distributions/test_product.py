"""Products of spheres: each equals the sum of its factors."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Independent, kl_divergence

from helpers.directions import unit as directions
from helpers.examples import families
from helpers.members import naming
from helpers.modes import COPIES
from helpers.statistical import assert_mean, assert_reproducible
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    ProductOfSpheres,
)


def stacked(family: type = PowerSpherical) -> ProductOfSpheres:
    """Batch shape (2,), three spheres of R^4."""
    return ProductOfSpheres(family(directions(2, 3, 4), torch.tensor([0.0, 1.0, 20.0]).double()))


def test_empty_batch() -> None:
    p = ProductOfSpheres(PowerSpherical(directions(0, 3, 4), 2.0))
    assert p.log_prob(p.sample()).shape == p.entropy().shape == (0,)


@families
def test_is_the_independent_of_its_factors(family: type) -> None:
    p, q = stacked(family), stacked()
    plain_p, plain_q = Independent(p.base_dist, 1), Independent(q.base_dist, 1)
    assert (p.batch_shape, p.event_shape, p.dim) == ((2,), (3, 4), 4)
    x = p.sample((6,))
    assert x.shape == (6, 2, 3, 4)
    for ours, plain in [
        (p.log_prob(x), p.base_dist.log_prob(x).sum(-1)),
        (p.entropy(), p.base_dist.entropy().sum(-1)),
        (plain_p.log_prob(x), p.log_prob(x)),
        (plain_p.entropy(), p.entropy()),
        (p.mean, plain_p.mean),
        (p.mode, plain_p.mode),
        (kl_divergence(p, q), kl_divergence(p.base_dist, q.base_dist).sum(-1)),
        (kl_divergence(plain_p, plain_q), kl_divergence(p, q)),
        (kl_divergence(p, plain_q), kl_divergence(plain_p, plain_q)),
    ]:
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    assert plain_p.support.check(x).all()
    assert plain_p.expand((4, 2)).sample().shape == (4, 2, 3, 4)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 4), (3, 5)], ids=str)
def test_values_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"value must have the shape \(…, 3, 4\), got \("):
        stacked().log_prob(directions(*shape))


def test_other_products() -> None:
    p, one, two, five = stacked(), directions(1, 4), directions(2, 4), directions(3, 5)
    every = ProductOfSpheres(PowerSpherical(one.expand(3, 4), 2.0))
    shared = ProductOfSpheres(PowerSpherical(one, 2.0))
    torch.testing.assert_close(kl_divergence(p, shared), kl_divergence(p, every))
    with pytest.raises(ValueError, match=r"p.batch_shape \(2, 3\) and q.batch_shape \(2,\)"):
        kl_divergence(p, ProductOfSpheres(PowerSpherical(two, 2.0)))
    with pytest.raises(ValueError, match="got dim 4 and dim 5"):
        kl_divergence(p, ProductOfSpheres(PowerSpherical(five, 2.0)))


def test_bad_factors() -> None:
    with pytest.raises(ValueError, match=r"\(…, m\) for a product of m spheres, got \(\)"):
        ProductOfSpheres(PowerSpherical(directions(4), 2.0))
    with pytest.raises(ValueError, match=r"for a list of distributions stack their parameters"):
        ProductOfSpheres([HypersphericalUniform(4)])  # type: ignore[arg-type]


def test_rate() -> None:
    p = stacked()
    uniform = ProductOfSpheres(HypersphericalUniform(4).expand((3,)))
    expected = uniform.entropy() - p.entropy()
    torch.testing.assert_close(kl_divergence(p, uniform), expected.double(), rtol=1e-6, atol=1e-6)
    assert kl_divergence(uniform, p).shape == (2,)


def test_draws_are_reproducible() -> None:
    assert_reproducible(stacked())


def test_expand_and_copies() -> None:
    p = stacked()
    wide = p.expand((5, 2))
    assert type(wide) is ProductOfSpheres
    assert (wide.batch_shape, wide.event_shape) == ((5, 2), p.event_shape)
    x = wide.rsample()
    assert x.shape == (5, 2, *p.event_shape)
    assert repr(p).startswith("ProductOfSpheres(PowerSpherical(")
    for name, copied in COPIES.items():
        with naming(name):
            assert repr(copied(p)) == repr(p)
            torch.testing.assert_close(copied(p).log_prob(x), wide.log_prob(x))


def test_draws() -> None:
    p = stacked()
    x = p.sample((4000,))
    assert_mean(x, p.mean)
    assert_mean(-p.log_prob(x), p.entropy(), rounding=1e-12)


def test_gradients() -> None:
    loc, kappa = directions(2, 3, 4).requires_grad_(), torch.rand(2, 3).double().requires_grad_()
    q = ProductOfSpheres(PowerSpherical(loc, kappa))
    (q.rsample().cumsum(-1).sum() + q.entropy().sum()).backward()
    assert (loc.grad.abs().sum(-1) > 0).all()
    assert (kappa.grad != 0).all()
