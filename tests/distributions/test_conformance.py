"""What torch.distributions promises of every distribution, on every example of the registry."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.special
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, transform_to

from helpers.examples import BRAIN, DOUBLE, FLOAT, Example, comparable, directions, dtypes, examples, families
from helpers.statistical import assert_mean, assert_uncorrelated
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher

COUNT = 10_000
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]


#: log of the unnormalised density as a function of t, κ and d.
UNNORMALISED = {
    PowerSpherical: lambda t, kappa, dim: kappa * torch.log1p(t),
    VonMisesFisher: lambda t, kappa, dim: kappa * t,
    SphericalCauchy: lambda t, kappa, dim: (
        (1 - dim) * torch.log(torch.cosh(torch.log1p(kappa)) - t * torch.sinh(torch.log1p(kappa)))
    ),
}


def rounding(value: Tensor, example: Example) -> float:
    """What float32 and half precision may cost in a number of the size of ``value``."""
    eps = {DOUBLE: 1e-12, FLOAT: 1e-5, BRAIN: 2e-2}[example.dtype]
    return eps * max(1.0, value.detach().abs().max().item())


class TestShapesAndTypes:
    @examples()
    def test_shapes(self, example: Example) -> None:
        p = example.make()
        assert (p.batch_shape, p.event_shape) == (example.batch_shape, (example.dim,))
        assert p.dim == example.dim
        for moment in (p.mean, p.mode, p.variance, p.stddev):
            assert moment.shape == (*example.batch_shape, example.dim)
        assert p.covariance_matrix.shape == (*example.batch_shape, example.dim, example.dim)
        assert p.entropy().shape == example.batch_shape

    @examples()
    def test_draws(self, example: Example) -> None:
        p = example.make()
        for sample_shape, draw in itertools.product([(), (4,), (2, 3)], [p.sample, p.rsample]):
            x = draw(sample_shape)
            assert x.shape == (*sample_shape, *example.batch_shape, example.dim)
            assert x.dtype == example.dtype
            assert p.log_prob(x).shape == (*sample_shape, *example.batch_shape)
            rows = x.reshape(-1, example.dim)
            if example.dtype != BRAIN:
                assert len(rows.unique(dim=0)) == len(rows)
        x = p.sample((500,))
        tolerance = 4 * torch.finfo(example.dtype).eps * example.dim**0.5
        assert (x.double().norm(dim=-1) - 1).abs().max() <= tolerance

    @examples()
    @pytest.mark.parametrize("device", DEVICES)
    def test_dtype_and_device(self, example: Example, device: str) -> None:
        p = example.make(device=device)
        x = p.sample()
        for result in (x, p.mean, p.mode, p.variance, p.covariance_matrix):
            assert (result.dtype, result.device.type) == (example.dtype, device)
        computed = torch.promote_types(example.dtype, FLOAT)
        for result in (p.log_prob(x), p.entropy()):
            assert (result.dtype, result.device.type) == (computed, device)
        if not isinstance(p, HypersphericalUniform):
            assert p.log_normalizer.dtype == computed

    @families
    def test_log_prob_has_the_precision_of_the_better_operand(self, family: type) -> None:
        x, loc = directions(3), directions(3, seed=2, dtype=FLOAT)
        assert family(loc, 1.0).log_prob(x).dtype == DOUBLE
        assert family(loc.double() / loc.double().norm(), 1.0).log_prob(x.float()).dtype == DOUBLE

    @examples()
    def test_log_prob_broadcasts(self, example: Example) -> None:
        p = example.make()
        one = directions(example.dim, dtype=example.dtype, seed=3)
        expected = p.log_prob(one.expand(2, *example.batch_shape, -1))
        torch.testing.assert_close(p.log_prob(one), expected[0])
        torch.testing.assert_close(p.log_prob(one.expand(2, *[1] * len(example.batch_shape), -1)), expected)


class TestIndependence:
    @examples(half=False)
    def test_batch_elements(self, example: Example) -> None:
        """Neither the cosines nor the tangents of two elements of the batch move together."""
        p = example.make().expand((2, *example.batch_shape))
        elements = p.sample((2000,)).flatten(1, -2)[:, :2].double()
        centred = elements - elements.mean(0)
        first, second = centred[:, 0], centred[:, 1]
        for i, j in ((0, 0), (0, 1), (1, 1), (-1, -1)):
            assert_uncorrelated(first[:, i], second[:, j])
        assert_uncorrelated(first.norm(dim=-1), second.norm(dim=-1))

    @families
    def test_cosines_of_a_shared_concentration(self, family: type) -> None:
        """One number κ for several directions is one parameter, not one draw."""
        loc = directions(3, 5)
        t = (family(loc, 5.0).sample((2000,)) * loc).sum(-1)
        for i, j in ((0, 1), (1, 2), (0, 2)):
            assert_uncorrelated(t[:, i], t[:, j])

    @families
    def test_every_pair(self, family: type) -> None:
        """(B, 1) against (1, B, d) is every pair, (B, B); against (B, d) it is refused."""
        loc = directions(3, 4)
        kappa = torch.tensor([[1.0], [10.0], [100.0]], dtype=DOUBLE)
        p = family(loc[None], kappa)
        assert (p.batch_shape, p.sample().shape) == ((3, 3), (3, 3, 4))
        torch.testing.assert_close(p.entropy(), family(loc[0], kappa[:, 0]).entropy()[:, None].expand(3, 3))
        torch.testing.assert_close(p.mode, loc.expand(3, 3, 4))


class TestDensity:
    @families
    @pytest.mark.parametrize("kappa", [0.0, 0.5, 8.0, 100.0])
    def test_integrates_to_one_on_the_sphere(self, family: type, kappa: float) -> None:
        """By a product rule whose axis has nothing to do with ``loc``."""
        height, weight = (torch.from_numpy(a) for a in scipy.special.roots_legendre(150))
        turn = torch.arange(200, dtype=DOUBLE) * (2 * math.pi / 200)
        ring = (1 - height**2).sqrt()[:, None]
        x = torch.stack([ring * turn.cos(), ring * turn.sin(), height[:, None].expand(-1, 200)], -1)
        p = family(directions(3), comparable(family, kappa, 3))
        total = (weight[:, None] * p.log_prob(x).exp()).sum() * 2 * math.pi / 200
        assert total.item() == pytest.approx(1, abs=1e-4 if kappa == 0.5 else 1e-12)

    @examples(uniform=False)
    def test_log_normalizer(self, example: Example) -> None:
        p = example.make()
        x = directions(*example.batch_shape, example.dim, dtype=example.dtype, seed=5)
        unit = [torch.nn.functional.normalize(v.double(), dim=-1) for v in (x, p.loc)]
        t, kappa = (unit[0] * unit[1]).sum(-1), p.concentration.double()
        unnormalised = UNNORMALISED[type(p)](t, kappa, example.dim)
        actual = p.log_prob(x).double() + p.log_normalizer.double()
        torch.testing.assert_close(actual, unnormalised, rtol=0, atol=rounding(kappa, example))

    @examples()
    def test_entropy(self, example: Example) -> None:
        p = example.make()
        x = p.sample((COUNT,))
        assert_mean(-p.log_prob(x), p.entropy(), rounding(p.entropy(), example))


class TestMoments:
    @examples()
    def test_mean(self, example: Example) -> None:
        p = example.make()
        assert_mean(p.sample((COUNT,)), p.mean, rounding(p.mean, example))

    @examples()
    def test_consistency(self, example: Example) -> None:
        p = example.make()
        covariance = p.covariance_matrix
        assert torch.equal(covariance, covariance.mT)
        close = {"rtol": 2e-2, "atol": 1e-2} if example.dtype == BRAIN else {}
        torch.testing.assert_close(p.variance, covariance.diagonal(dim1=-2, dim2=-1), **close)
        torch.testing.assert_close(p.stddev, p.variance.sqrt(), **close)
        # E‖x‖² = 1
        torch.testing.assert_close(
            (p.variance + p.mean.square()).sum(-1), torch.ones_like(p.mean[..., 0]), **close
        )

    @examples(uniform=False, half=False)
    def test_formulas(self, example: Example) -> None:
        """From the moments of the cosine, which the suite of the families checks: the tangential part is isotropic."""
        p = example.make()
        dim, kappa, loc = example.dim, p.concentration.double(), p.loc.double()
        length, variance = p.family.mean_cosine(kappa, dim), p.family.variance_cosine(kappa, dim)
        isotropic = (1 - length.square() - variance) / (dim - 1)
        axis = loc.unsqueeze(-1) * loc.unsqueeze(-2)
        covariance = (variance - isotropic)[..., None, None] * axis
        covariance = covariance + isotropic[..., None, None] * torch.eye(dim, dtype=DOUBLE)
        eps = 1e-10 if example.dtype == DOUBLE else 3e-6
        torch.testing.assert_close(p.mean.double(), length.unsqueeze(-1) * loc, rtol=0, atol=eps)
        torch.testing.assert_close(p.covariance_matrix.double(), covariance, rtol=0, atol=eps)

    @examples(uniform=False)
    def test_mode(self, example: Example) -> None:
        p = example.make()
        assert torch.equal(p.mode, p.loc)
        assert p.mean_direction is p.loc
        assert (p.log_prob(p.mode) >= p.log_prob(p.sample((100,)))).all()


class TestInterface:
    @examples()
    def test_expand(self, example: Example) -> None:
        p = example.make()
        q = p.expand((3, *example.batch_shape))
        assert type(q) is type(p)
        assert (q.batch_shape, q.event_shape) == ((3, *example.batch_shape), p.event_shape)
        x = q.sample()
        assert x.shape == (3, *example.batch_shape, example.dim)
        torch.testing.assert_close(q.log_prob(x), p.log_prob(x))
        assert torch.equal(q.entropy(), p.entropy().expand(q.batch_shape))
        torch.testing.assert_close(q.mean, p.mean.expand_as(x))
        for name in ("loc", "concentration"):
            if hasattr(p, name):
                assert getattr(q, name).data_ptr() == getattr(p, name).data_ptr()
        with pytest.raises(ValueError, match="norm"):
            q.log_prob(2 * x)

    @examples()
    def test_expand_to_an_impossible_shape(self, example: Example) -> None:
        p = example.make().expand((5, *example.batch_shape))
        for shape in ((4, *example.batch_shape), example.batch_shape):
            with pytest.raises((RuntimeError, ValueError)):
                p.expand(shape)

    @examples()
    def test_repr(self, example: Example) -> None:
        text = repr(example.make())
        family = text.partition("(")[0]
        assert family in ("PowerSpherical", "VonMisesFisher", "SphericalCauchy", "HypersphericalUniform")
        names = [f"dim: {example.dim}"] if family == "HypersphericalUniform" else ["loc: ", "concentration: "]
        assert all(name in text for name in names)

    @examples()
    def test_support(self, example: Example) -> None:
        p = example.make()
        x = p.sample((7,))
        assert p.support.event_dim == 1
        assert p.support.check(x).all()
        assert p.support.check(x).shape == x.shape[:-1]
        assert not p.support.check(1.1 * x).any()
        assert not p.support.check(x * math.nan).any()
        assert p.has_rsample

    @examples()
    def test_arg_constraints(self, example: Example) -> None:
        p = example.make()
        for name, constraint in p.arg_constraints.items():
            assert constraint.check(getattr(p, name)).all()
        names = [] if isinstance(p, HypersphericalUniform) else ["loc", "concentration"]
        assert list(p.arg_constraints) == names
        if names:
            assert p.arg_constraints["concentration"] is constraints.nonnegative

    @examples()
    def test_transform_to_the_support(self, example: Example) -> None:
        transform = transform_to(example.make().support)
        raw = 3 * torch.randn(4, example.dim, dtype=example.dtype)
        x = transform(raw)
        assert example.make().support.check(x).all()
        assert transform.codomain.check(x).all()
        torch.testing.assert_close(x * raw.norm(dim=-1, keepdim=True), raw)
        torch.testing.assert_close(transform(transform.inv(x)), x)

    @families
    def test_follows_the_global_default_of_validation(self, family: type) -> None:
        loc = torch.tensor([2.0, 0.0])
        Distribution.set_default_validate_args(True)
        with pytest.raises(ValueError, match="loc"):
            family(loc, 1.0)
        Distribution.set_default_validate_args(False)
        assert family(loc, 1.0).batch_shape == ()
        with pytest.raises(ValueError, match="loc"):
            family(loc, 1.0, validate_args=True)


class TestUniform:
    @families
    @dtypes
    @pytest.mark.parametrize("dim", [2, 3, 64, 1000])
    def test_is_the_concentration_zero(self, family: type, dtype: torch.dtype, dim: int) -> None:
        loc, uniform = directions(4, dim, dtype=dtype), HypersphericalUniform(dim, dtype=dtype)
        p = family(loc, 0.0)
        x = torch.cat([loc[:1], -loc[1:2], directions(2, dim, dtype=dtype, seed=6)])
        assert torch.equal(p.log_prob(x), uniform.log_prob(x))
        assert torch.equal(p.entropy(), uniform.entropy().expand(4))
        assert torch.equal(p.mean, uniform.mean.expand(4, dim))
        torch.testing.assert_close(p.variance, uniform.variance.expand(4, dim))
        torch.testing.assert_close(p.covariance_matrix, uniform.covariance_matrix.expand(4, dim, dim))

    @families
    @pytest.mark.parametrize("dim", [2, 3, 64])
    def test_gradients_at_the_concentration_zero(self, family: type, dim: int) -> None:
        """d log p/dκ = T - E T with T = log(1+t), t or (d-1)t; the entropy is stationary, with curvature -Var T."""
        loc, x = directions(5, dim).requires_grad_(), directions(5, dim, seed=7).requires_grad_()
        kappa = torch.zeros(5, dtype=DOUBLE, requires_grad=True)
        p = family(loc, kappa)
        in_kappa, in_loc, in_x = torch.autograd.grad(p.log_prob(x).sum(), (kappa, loc, x))
        t = (x * loc).sum(-1).detach()
        beta = (dim - 1) / 2
        if family is PowerSpherical:
            mean = scipy.special.digamma(beta) - scipy.special.digamma(2 * beta)
            variance = scipy.special.polygamma(1, beta) - scipy.special.polygamma(1, 2 * beta)
            expected = torch.log1p(t) - math.log(2) - mean
        else:
            factor = dim - 1 if family is SphericalCauchy else 1
            expected, variance = factor * t, factor**2 / dim
        torch.testing.assert_close(in_kappa, expected, rtol=1e-11, atol=1e-13)
        assert torch.equal(in_loc, torch.zeros_like(loc))
        assert torch.equal(in_x, torch.zeros_like(x))
        (first,) = torch.autograd.grad(p.entropy().sum(), kappa, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), kappa)
        assert torch.equal(first, torch.zeros_like(first))
        torch.testing.assert_close(second, torch.full_like(second, -float(variance)), rtol=1e-11, atol=0)

    def test_area(self) -> None:
        for dim, area in ((2, 2 * math.pi), (3, 4 * math.pi), (4, 2 * math.pi**2), (5, 8 * math.pi**2 / 3)):
            p = HypersphericalUniform(dim, dtype=DOUBLE)
            assert p.entropy().item() == pytest.approx(math.log(area), rel=1e-14)
            assert p.log_prob(directions(dim)).item() == pytest.approx(-math.log(area), rel=1e-14)

    def test_moments(self) -> None:
        p = HypersphericalUniform(5, dtype=DOUBLE).expand((2, 3))
        assert torch.equal(p.mean, torch.zeros(2, 3, 5, dtype=DOUBLE))
        assert p.mode.shape == (2, 3, 5)
        assert p.mode.isnan().all()
        assert torch.equal(p.variance, torch.full((2, 3, 5), 0.2, dtype=DOUBLE))
        assert torch.equal(p.covariance_matrix, (torch.eye(5, dtype=DOUBLE) / 5).expand(2, 3, 5, 5))

    def test_log_prob_follows_the_value(self) -> None:
        p = HypersphericalUniform(3)
        for dtype, expected in ((DOUBLE, DOUBLE), (FLOAT, FLOAT), (BRAIN, FLOAT)):
            assert p.log_prob(directions(3, dtype=dtype)).dtype == expected
