"""Products of spheres: each equals the sum or the concatenation of its factors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributions import Distribution, Independent, kl_divergence, transform_to

from helpers.directions import unit as directions
from helpers.examples import FAMILIES, families
from helpers.members import naming
from helpers.modes import COPIES
from helpers.statistical import assert_mean, assert_reproducible
from powerspherical import (
    ConcatenatedSpheres,
    HypersphericalUniform,
    PowerSpherical,
    ProductOfSpheres,
    VonMisesFisher,
)


def stacked(family: type = PowerSpherical) -> ProductOfSpheres:
    """Batch shape (2,), three spheres of R^4."""
    return ProductOfSpheres(family(directions(2, 3, 4), torch.tensor([0.0, 1.0, 20.0]).double()))


def concatenated() -> ConcatenatedSpheres:
    """Batch shape (2,), spheres of R^2, R^3 and R^5."""
    return ConcatenatedSpheres(
        [
            PowerSpherical(directions(2), torch.tensor([3.0, 30.0]).double()),
            VonMisesFisher(directions(2, 3), 7.0),
            HypersphericalUniform(5, dtype=torch.float64),
        ]
    )


products = pytest.mark.parametrize("make", [stacked, concatenated])


class TestStacked:
    def test_empty_batch(self) -> None:
        p = ProductOfSpheres(PowerSpherical(directions(0, 3, 4), 2.0))
        assert p.log_prob(p.sample()).shape == p.entropy().shape == (0,)

    @families
    def test_is_the_independent_of_its_factors(self, family: type) -> None:
        p, q = stacked(family), stacked()
        plain_p, plain_q = Independent(p.base_dist, 1), Independent(q.base_dist, 1)
        assert (p.batch_shape, p.event_shape, p.dim) == ((2,), (3, 4), 4)
        x = p.sample((6,))
        assert x.shape == (6, 2, 3, 4)
        for ours, plain in [
            (p.log_prob(x), plain_p.log_prob(x)),
            (p.entropy(), plain_p.entropy()),
            (p.mean, plain_p.mean),
            (p.mode, plain_p.mode),
            (kl_divergence(p, q), kl_divergence(plain_p, plain_q)),
            (kl_divergence(p, plain_q), kl_divergence(plain_p, plain_q)),
        ]:
            torch.testing.assert_close(ours, plain, rtol=0, atol=0)

    @pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 4), (3, 5)], ids=str)
    def test_values_of_another_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"value must have the shape \(…, 3, 4\), got \("):
            stacked().log_prob(directions(*shape))

    def test_other_products(self) -> None:
        p, one, two, five = stacked(), directions(1, 4), directions(2, 4), directions(3, 5)
        every = ProductOfSpheres(PowerSpherical(one.expand(3, 4), 2.0))
        shared = ProductOfSpheres(PowerSpherical(one, 2.0))
        torch.testing.assert_close(kl_divergence(p, shared), kl_divergence(p, every))
        with pytest.raises(ValueError, match=r"p.batch_shape \(2, 3\) and q.batch_shape \(2,\)"):
            kl_divergence(p, ProductOfSpheres(PowerSpherical(two, 2.0)))
        with pytest.raises(ValueError, match="got dim 4 and dim 5"):
            kl_divergence(p, ProductOfSpheres(PowerSpherical(five, 2.0)))

    def test_bad_factors(self) -> None:
        with pytest.raises(ValueError, match=r"\(…, m\) for a product of m spheres, got \(\)"):
            ProductOfSpheres(PowerSpherical(directions(4), 2.0))
        with pytest.raises(ValueError, match=r"for a list of distributions use ConcatenatedSpheres"):
            ProductOfSpheres([HypersphericalUniform(4)])  # type: ignore[arg-type]

    @families
    def test_fit(self, family: type) -> None:
        x = stacked(family).sample((50,))
        weights = torch.rand(50, 2, dtype=torch.float64)
        found = ProductOfSpheres.fit(x, weights, family=family)
        assert type(found.base_dist) is family
        for i in range(3):
            alone = family.fit(x[:, :, i], weights)
            torch.testing.assert_close(found.base_dist.loc[:, i], alone.loc)
            torch.testing.assert_close(found.base_dist.concentration[:, i], alone.concentration)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"family": "Power"}, "unknown family 'Power'"),
            ({"family": 3}, "family must be a name"),
            ({"weights": torch.ones(5, 3)}, r"weights must have the shape \(5,\)"),
            ({"x": torch.ones(5, 4)}, r"x must have the shape \(n, …, m, d\), got \(5, 4\)"),
        ],
        ids=str,
    )
    def test_bad_fits(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ProductOfSpheres.fit(**{"x": directions(5, 3, 4), **options})


class TestConcatenated:
    def test_sums_and_concatenates(self) -> None:
        p, q = concatenated(), concatenated()
        assert (p.batch_shape, p.event_shape, p.dims) == ((2,), (10,), (2, 3, 5))
        x = p.sample((6,))
        parts = x.split((2, 3, 5), -1)
        expected = sum(factor.log_prob(part) for factor, part in zip(p.factors, parts, strict=True))
        torch.testing.assert_close(p.log_prob(x), expected)
        torch.testing.assert_close(p.entropy(), sum(factor.entropy() for factor in p.factors))
        torch.testing.assert_close(p.mean, torch.cat([factor.mean for factor in p.factors], -1))
        divergence = sum(kl_divergence(*pair) for pair in zip(p.factors, q.factors, strict=True))
        torch.testing.assert_close(kl_divergence(p, q), divergence)
        torch.testing.assert_close(p.mode[..., :5], torch.cat([p.factors[0].mode, p.factors[1].mode], -1))

    def test_equal_dimensions_agree_with_the_stacked_product(self) -> None:
        p = stacked()
        parts = [
            PowerSpherical(*pair)
            for pair in zip(p.base_dist.loc.unbind(1), p.base_dist.concentration.unbind(1), strict=True)
        ]
        q, x = ConcatenatedSpheres(parts), p.sample()
        torch.testing.assert_close(q.log_prob(x.flatten(-2)), p.log_prob(x))
        torch.testing.assert_close(q.entropy(), p.entropy())
        torch.testing.assert_close(q.variance, p.variance.flatten(-2))

    def test_support(self) -> None:
        p = concatenated()
        x = p.sample()
        assert p.support.check(x).all()
        assert not p.support.check(torch.cat([2 * x[:, :2], x[:, 2:]], -1)).any()
        y = transform_to(p.support)(torch.randn(7, 10))
        assert p.support.check(y).all()
        assert p.support.event_dim == 1

    def test_bad_factors(self) -> None:
        for factors in ([], [torch.distributions.Normal(0.0, 1.0)]):
            with pytest.raises(ValueError, match=r"factors must be at least one distribution on the sphere"):
                ConcatenatedSpheres(factors)
        with pytest.raises(ValueError, match=r"factors\[0\].batch_shape \(2,\) and factors\[1\].batch_shape"):
            ConcatenatedSpheres([PowerSpherical(directions(n, 4), 2.0) for n in (2, 3)])

    def test_bad_values(self) -> None:
        with pytest.raises(
            ValueError, match=r"\(…, 10\) for spheres of dimensions \(2, 3, 5\), got \(2, 9\)"
        ):
            concatenated().log_prob(torch.ones(2, 9))
        with pytest.raises(ValueError, match=r"value of shape \(2, 2\) must hold unit vectors"):
            concatenated().log_prob(torch.ones(2, 10))

    def test_other_products(self) -> None:
        other = ConcatenatedSpheres(map(HypersphericalUniform, (3, 2, 5)))
        with pytest.raises(ValueError, match=r"dimensions \(2, 3, 5\) and \(3, 2, 5\)"):
            kl_divergence(concatenated(), other)

    def test_fit(self) -> None:
        x, weights = concatenated().sample((50,)), torch.rand(50, 2, dtype=torch.float64)
        names = ("power_spherical", VonMisesFisher, "spherical_cauchy")
        found = ConcatenatedSpheres.fit(x, (2, 3, 5), weights, family=names)
        expected = zip(FAMILIES, x.split((2, 3, 5), -1), found.factors, strict=True)
        for family, part, factor in expected:
            assert type(factor) is family
            torch.testing.assert_close(factor.concentration, family.fit(part, weights).concentration)
        alike = ConcatenatedSpheres.fit(x, (2, 3, 5), bias_correction=True)
        assert {type(factor) for factor in alike.factors} == {PowerSpherical}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dims": (2, 1)}, "dim .*≥ 2"),
            ({"dims": (2, 4)}, r"x must have the shape \(…, 6\) for spheres of dimensions \(2, 4\)"),
            ({"family": ("power_spherical",)}, r"one for each of dims=\(2, 3\)"),
            ({"weights": torch.ones(4)}, r"weights must have the shape \(5,\)"),
        ],
        ids=str,
    )
    def test_bad_fits(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ConcatenatedSpheres.fit(**{"x": torch.ones(5, 5), "dims": (2, 3), **options})


@products
class TestBoth:
    def test_rate(self, make: Callable[[], Distribution]) -> None:
        p = make()
        if isinstance(p, ProductOfSpheres):
            uniform = ProductOfSpheres(HypersphericalUniform(4).expand((3,)))
        else:
            uniform = ConcatenatedSpheres(map(HypersphericalUniform, p.dims))
        expected = uniform.entropy() - p.entropy()
        torch.testing.assert_close(kl_divergence(p, uniform), expected.double(), rtol=1e-6, atol=1e-6)
        assert kl_divergence(uniform, p).shape == (2,)

    def test_draws_are_reproducible(self, make: Callable[[], Distribution]) -> None:
        assert_reproducible(make())

    def test_expand_and_copies(self, make: Callable[[], Distribution]) -> None:
        p = make()
        wide = p.expand((5, 2))
        assert type(wide) is type(p)
        assert (wide.batch_shape, wide.event_shape) == ((5, 2), p.event_shape)
        x = wide.rsample()
        assert x.shape == (5, 2, *p.event_shape)
        assert repr(p).startswith((f"{type(p).__name__}(PowerSph", "ConcatenatedSpheres([PowerSph"))
        for name, copied in COPIES.items():
            with naming(name):
                assert repr(copied(p)) == repr(p)
                torch.testing.assert_close(copied(p).log_prob(x), wide.log_prob(x))

    def test_draws(self, make: Callable[[], Distribution]) -> None:
        p = make()
        x = p.sample((4000,))
        assert_mean(x, p.mean)
        assert_mean(-p.log_prob(x), p.entropy(), rounding=1e-12)


@pytest.mark.parametrize("kind", ["stacked", "concatenated"])
def test_gradients(kind: str) -> None:
    loc, kappa = directions(2, 3, 4).requires_grad_(), torch.rand(2, 3).double().requires_grad_()
    if kind == "stacked":
        q = ProductOfSpheres(PowerSpherical(loc, kappa))
    else:
        factors = zip(loc.unbind(1), kappa.unbind(1), strict=True)
        q = ConcatenatedSpheres(PowerSpherical(*factor) for factor in factors)
    (q.rsample().flatten(1).cumsum(-1).sum() + q.entropy().sum()).backward()
    assert (loc.grad.abs().sum(-1) > 0).all()
    assert (kappa.grad != 0).all()
