"""What torch.distributions promises of every distribution, on every example of the registry."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.distributions import Distribution, constraints, transform_to

from helpers.examples import BRAIN, DOUBLE, FLOAT, Example, directions, dtypes, examples, families
from helpers.statistical import assert_mean, assert_uncorrelated
from powerspherical import HypersphericalUniform, PowerSpherical

COUNT = 10_000
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]


class TestShapesAndTypes:
    @examples()
    @pytest.mark.parametrize("device", DEVICES)
    def test_results(self, example: Example, device: str) -> None:
        p, vector = example.make(device=device), (*example.batch_shape, example.dim)
        assert (p.batch_shape, p.event_shape, p.dim) == (example.batch_shape, (example.dim,), example.dim)
        samples = [p.sample(), p.mean, p.mode, p.variance, p.stddev, p.covariance_matrix]
        assert [x.shape for x in samples] == [*[vector] * 5, (*vector, example.dim)]
        assert {(x.dtype, x.device.type) for x in samples} == {(example.dtype, device)}
        scores = [p.log_prob(samples[0]), p.entropy()]
        if not isinstance(p, HypersphericalUniform):
            scores.append(p.log_normalizer)
        computed = torch.promote_types(example.dtype, FLOAT)
        assert {(x.shape, x.dtype, x.device.type) for x in scores} == {
            (example.batch_shape, computed, device)
        }

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


class TestMoments:
    @examples()
    def test_of_draws(self, example: Example) -> None:
        p = example.make()
        x = p.sample((COUNT,))
        eps = {DOUBLE: 1e-12, FLOAT: 1e-5, BRAIN: 2e-2}[example.dtype]
        assert_mean(x, p.mean, eps)
        assert_mean(-p.log_prob(x), p.entropy(), eps * max(1.0, p.entropy().abs().max().item()))

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
    def test_support_and_parameters(self, example: Example) -> None:
        p = example.make()
        x = p.sample((7,))
        assert p.has_rsample
        assert p.support.event_dim == 1
        assert p.support.check(x).all()
        assert p.support.check(x).shape == x.shape[:-1]
        assert not p.support.check(torch.stack((1.1 * x, x * math.nan))).any()
        is_uniform = isinstance(p, HypersphericalUniform)
        names = [] if is_uniform else ["loc", "concentration"]
        assert list(p.arg_constraints) == names
        for name, constraint in p.arg_constraints.items():
            assert constraint.check(getattr(p, name)).all()
        if not is_uniform:
            assert p.arg_constraints["concentration"] is constraints.nonnegative
        assert repr(p).startswith(f"{type(p).__name__}(")
        assert all(f"{name}: " in repr(p) for name in names or ["dim"])

    @pytest.mark.parametrize("dim", [2, 64])
    def test_transform_to_the_support(self, dim: int) -> None:
        transform, raw = transform_to(PowerSpherical.support), 3 * torch.randn(4, dim)
        x = transform(raw)
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
        loc.requires_grad_()
        p = family(loc, 0.0)
        x = torch.cat([loc[:1], -loc[1:2], directions(2, dim, dtype=dtype, seed=6)]).detach()
        value = p.log_prob(x)
        assert torch.equal(value, uniform.log_prob(x))
        assert torch.equal(torch.autograd.grad(value.sum(), loc)[0], torch.zeros_like(loc))
        assert torch.equal(p.entropy(), uniform.entropy().expand(4))
        assert torch.equal(p.mean, uniform.mean.expand(4, dim))
        torch.testing.assert_close(p.variance, uniform.variance.expand(4, dim))
        torch.testing.assert_close(p.covariance_matrix, uniform.covariance_matrix.expand(4, dim, dim))

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
