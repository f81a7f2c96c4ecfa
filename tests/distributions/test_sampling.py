"""Draws follow their laws, and their gradients are those of the laws' expectations."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from helpers.examples import DOUBLE, FLOAT, directions, dtypes, families
from helpers.statistical import LEVEL, assert_law, assert_mean, assert_same_law, assert_uncorrelated
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy

dims = pytest.mark.parametrize("dim", [2, 3, 5, 64, 1000])
kappas = pytest.mark.parametrize("kappa", [0.0, 0.1, 1.0, 50.0, 1e4, 1e6])


def count(dim: int) -> int:
    return 2_000_000 // (dim + 200)


def distance_cdf(family: type, kappa: float, dim: int):
    """P(‖X-μ‖ ≤ r): 1-t = r²/2, and 1+t = 2 - r²/2 with no digits to lose."""

    def cdf(distance: np.ndarray) -> np.ndarray:
        one_minus_t = torch.from_numpy(distance).square() / 2
        concentration = torch.full_like(one_minus_t, kappa)
        _, log_sf = family.family.log_tails(one_minus_t, 2 - one_minus_t, concentration, dim)
        return log_sf.exp().numpy()

    return cdf


def mean_cosine_slope(family: type, kappa: float, dim: int) -> float:
    """d/dκ of E t: of κ/(κ+d-1); of the ratio A of Bessel functions, A' = 1 - A² - (d-1)A/κ; or E (1-t²)/(1+κ) for the
    spherical Cauchy, t = tanh(y + log(1+κ)), where y has the density ∝ sech^{d-1} y.
    """
    if family is PowerSpherical:
        return (dim - 1) / (kappa + dim - 1) ** 2
    if family is SphericalCauchy:
        y = torch.linspace(-40, 40, 4001, dtype=DOUBLE)
        weight = torch.cosh(y) ** (1 - dim)
        return ((weight / torch.cosh(y + math.log1p(kappa)) ** 2).sum() / weight.sum() / (1 + kappa)).item()
    if kappa == 0:
        return 1 / dim
    with mpmath.workdps(40):
        kappa = mpmath.mpf(kappa)
        ratio = mpmath.besseli(mpmath.mpf(dim) / 2, kappa) / mpmath.besseli(mpmath.mpf(dim) / 2 - 1, kappa)
        return float(1 - ratio**2 - (dim - 1) * ratio / kappa)


def cosine_slopes(family: type, loc: Tensor, kappa: float, number: int) -> tuple[Tensor, Tensor]:
    """Draws, and dt/dκ of each."""
    concentration = torch.full((number,), kappa, dtype=loc.dtype, requires_grad=True)
    x = family(loc, concentration).rsample()
    (slope,) = torch.autograd.grad((x * loc).sum(), concentration)
    return x.detach(), slope


class TestLaw:
    @families
    @dims
    @kappas
    @dtypes
    def test_distance_from_the_mean_direction(
        self, family: type, dim: int, kappa: float, dtype: torch.dtype
    ) -> None:
        loc = directions(dim, dtype=dtype)
        x = family(loc, kappa).sample((count(dim),))
        assert_law((x - loc).norm(dim=-1), distance_cdf(family, kappa, dim))

    @families
    @dims
    @kappas
    def test_tangent_is_uniform(self, family: type, dim: int, kappa: float) -> None:
        """And independent of the cosine. A coordinate c of it has c² ~ Beta(1/2, (d-2)/2)."""
        loc = directions(dim)
        if family is SphericalCauchy:
            kappa = kappa**0.5  # the angles are then those of the others
        x = family(loc, kappa).sample((count(dim),))
        axis = directions(dim, seed=2)
        axis = torch.nn.functional.normalize(axis - (axis @ loc) * loc, dim=0)
        across = x - (x @ loc).unsqueeze(-1) * loc
        coordinate = (x @ axis) / across.norm(dim=-1)
        positive = int((coordinate > 0).sum())
        assert scipy.stats.binomtest(positive, len(x)).pvalue > LEVEL
        if dim == 2:
            torch.testing.assert_close(coordinate.abs(), torch.ones_like(coordinate), rtol=0, atol=1e-7)
            assert_uncorrelated((coordinate > 0).double(), (x - loc).norm(dim=-1))
        else:
            assert_law(coordinate.square(), scipy.stats.beta(0.5, (dim - 2) / 2).cdf)
            assert_uncorrelated(coordinate.abs(), (x - loc).norm(dim=-1))

    @families
    @dtypes
    def test_spread_at_large_concentration(self, family: type, dtype: torch.dtype) -> None:
        """E‖x-μ‖² = 2(1 - E t), to one percent where a clamp or a cosine would lose it all."""
        if family is SphericalCauchy:
            pytest.skip(
                "its E‖x-μ‖² comes from few points far out; test_distance_from_the_mean_direction has the law"
            )
        loc = directions(3, dtype=dtype)
        x = family(loc, 1e8).sample((400_000,))
        squares = (x - loc).double().square().sum(-1)
        kappa = torch.tensor(1e8, dtype=DOUBLE)
        expected = 2 * family.family.mean_cosine_complement(kappa, 3).item()
        assert expected == pytest.approx(4e-8 if family is PowerSpherical else 2e-8, rel=1e-6)
        assert squares.mean().item() == pytest.approx(expected, rel=0.01)
        assert_mean(squares, expected)

    def test_uniform(self) -> None:
        for dim in (2, 3, 64):
            x = HypersphericalUniform(dim, dtype=DOUBLE).sample((count(dim),))
            axis = directions(dim)
            assert_law((1 + x @ axis) / 2, scipy.stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf)

    @pytest.mark.parametrize(("dim", "kappa"), [(2, 0.3), (3, 5.0), (10, 2.0), (50, 200.0)])
    def test_algorithm_1_of_the_paper(self, dim: int, kappa: float) -> None:
        """A transcription of De Cao & Aziz (2020), Algorithm 1, has the same law in any projection."""
        loc, number = directions(dim), 20_000
        z = torch.distributions.Beta(
            torch.tensor((dim - 1) / 2 + kappa, dtype=DOUBLE), torch.tensor((dim - 1) / 2, dtype=DOUBLE)
        ).sample((number, 1))
        v = torch.nn.functional.normalize(torch.randn(number, dim - 1, dtype=DOUBLE), dim=-1)
        t = 2 * z - 1
        y = torch.cat([t, (1 - t**2).sqrt() * v], dim=-1)
        u = torch.nn.functional.normalize(torch.eye(dim, dtype=DOUBLE)[0] - loc, dim=0)
        theirs = y - 2 * (y @ u).unsqueeze(-1) * u

        ours = PowerSpherical(loc, kappa).sample((number,))
        first, last = torch.eye(dim, dtype=DOUBLE)[[0, -1]]
        for axis in (loc, first, last, directions(dim, seed=3), directions(dim, seed=4)):
            assert_same_law(ours @ axis, theirs @ axis)


class TestConcentrationGradient:
    @families
    @dtypes
    @pytest.mark.parametrize("dim", [2, 3, 5, 64, 512])
    @pytest.mark.parametrize("kappa", [0.0, 2.0, 100.0])
    def test_mean(self, family: type, dtype: torch.dtype, dim: int, kappa: float) -> None:
        _, slope = cosine_slopes(family, directions(dim, dtype=dtype), kappa, count(dim))
        expected = mean_cosine_slope(family, kappa, dim)
        assert_mean(slope, expected, 1e-5 * expected if dtype == FLOAT else 0.0)

    @families
    @pytest.mark.parametrize("dim", [2, 3, 64])
    @pytest.mark.parametrize("kappa", [0.5, 10.0, 1e3])
    def test_is_the_implicit_derivative(self, family: type, dim: int, kappa: float) -> None:
        loc = directions(dim)
        x, slope = cosine_slopes(family, loc, kappa, 500)
        ends = [(x - sign * loc).square().sum(-1) / 2 for sign in (1, -1)]
        rate = family.family.implicit_slope(*ends, torch.full_like(slope, kappa), dim)
        expected = rate * ends[0] * ends[1]
        torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-14)

    @families
    @pytest.mark.parametrize(("dim", "kappa"), [(2, 0.7), (5, 2.0), (20, 60.0)])
    def test_is_exact(self, family: type, dim: int, kappa: float) -> None:
        """Against -∂F/∂κ / ∂F/∂t with F the integral of the density over [-1, t], by mpmath."""
        loc = directions(dim)
        x, slope = cosine_slopes(family, loc, kappa, 3)

        sinh, cosh = mpmath.sinh(mpmath.log1p(kappa)), mpmath.cosh(mpmath.log1p(kappa))

        def statistic(s):  # the derivative of the log density in κ
            if family is SphericalCauchy:
                c = mpmath.cos(s)
                return (dim - 1) / (1 + mpmath.mpf(kappa)) * (c * cosh - sinh) / (cosh - c * sinh)
            return mpmath.log(2 * mpmath.cos(s / 2) ** 2) if family is PowerSpherical else mpmath.cos(s)

        def weight(s):  # the density of the angle: no end is singular
            if family is SphericalCauchy:
                return (cosh - mpmath.cos(s) * sinh) ** (1 - dim) * mpmath.sin(s) ** (dim - 2)
            return mpmath.exp(kappa * statistic(s)) * mpmath.sin(s) ** (dim - 2)

        with mpmath.workdps(20):
            parts = [0, 0.5, 1, 2, mpmath.pi]
            mean = mpmath.quad(lambda s: statistic(s) * weight(s), parts) / mpmath.quad(weight, parts)
            for point, actual in zip(x, slope, strict=True):
                angle = 2 * math.asin(((point - loc).norm() / 2).item())
                change = mpmath.quad(
                    lambda s: (statistic(s) - mean) * weight(s), mpmath.linspace(angle, mpmath.pi, 5)
                )
                expected = -change / weight(angle) * mpmath.sin(angle)
                assert actual.item() == pytest.approx(float(expected), rel=1e-8)

    @pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (6, 3.0), (64, 50.0)])
    def test_power_spherical_in_single_precision(self, dim: int, kappa: float) -> None:
        """dt/dκ = ½(1-t²) dlog G/dκ to 1e-3, where G ~ Gamma(β+κ) is the one of t = (G-H)/(G+H)."""
        loc = directions(dim, dtype=FLOAT)
        concentration = torch.full((500,), kappa, requires_grad=True)
        x, (one_minus_t, one_plus_t, noise) = torch.ops.powerspherical.draw(
            loc, concentration, (500,), None, 0, dim, "power_spherical"
        )
        (slope,) = torch.autograd.grad((x * loc).sum(), concentration)
        gamma = noise.detach().double().numpy()
        shape, step = kappa + (dim - 1) / 2, 1e-4 * (1 + kappa)
        probability = scipy.special.gammainc(shape, gamma)
        # The smaller tail, or differences of the quantile would drown in its rounding.
        upper = probability > 0.5
        tail = np.where(upper, scipy.special.gammaincc(shape, gamma), probability)
        ends = [
            np.where(upper, scipy.special.gammainccinv(a, tail), scipy.special.gammaincinv(a, tail))
            for a in (shape - step, shape + step)
        ]
        derivative = torch.from_numpy((ends[1] - ends[0]) / (2 * step) / gamma)
        expected = (one_minus_t * one_plus_t).double() / 2 * derivative
        torch.testing.assert_close(slope.double(), expected, rtol=1e-3, atol=1e-3 * expected.mean().item())


class TestMarginal:
    @families
    @pytest.mark.parametrize("dim", [2, 3, 64])
    @pytest.mark.parametrize("kappa", [0.0, 1.0, 1e4])
    def test_law(self, family: type, dim: int, kappa: float) -> None:
        marginal = family(directions(dim), kappa).marginal
        t = marginal.rsample((10_000,))
        assert_law(t, lambda value: marginal.cdf(torch.from_numpy(value)).numpy())
        assert_same_law(t, family(directions(dim), kappa).sample((10_000,)) @ directions(dim))

    @families
    @dtypes
    def test_shapes_and_gradient(self, family: type, dtype: torch.dtype) -> None:
        kappa = torch.tensor([0.5, 3.0, 40.0], dtype=dtype, requires_grad=True)
        marginal = family(directions(5, dtype=dtype), kappa).marginal
        assert (marginal.batch_shape, marginal.event_shape) == ((3,), ())
        assert not marginal.sample().requires_grad
        rows = kappa.detach().expand(10_000, 3).clone().requires_grad_()
        t = type(marginal)(5, rows).rsample()
        assert (t.shape, t.dtype, marginal.rsample((2, 4)).shape) == ((10_000, 3), dtype, (2, 4, 3))
        (slope,) = torch.autograd.grad(t.sum(), rows)
        assert_mean(slope, torch.tensor([mean_cosine_slope(family, k, 5) for k in kappa.tolist()]), 1e-5)
        assert_uncorrelated(t[:, 0], t[:, 1])


class TestDirectionGradient:
    @families
    @dtypes
    @pytest.mark.parametrize("dim", [2, 3, 10])
    @pytest.mark.parametrize("place", ["e1", "-e1", "elsewhere"])
    def test_of_the_mean(self, family: type, dtype: torch.dtype, dim: int, place: str) -> None:
        """E x = A μ, so that the gradient of g·E x is A times the tangential part of g."""
        first = torch.eye(dim, dtype=dtype)[0]
        loc = {"e1": first, "-e1": -first, "elsewhere": directions(dim, dtype=dtype)}[place]
        rows = loc.repeat(20_000, 1).requires_grad_()
        p = family(rows, 5.0)
        upstream = torch.randn(dim, dtype=dtype)
        (gradient,) = torch.autograd.grad((p.rsample() @ upstream).sum(), rows)
        length = family.family.mean_cosine(torch.tensor(5.0, dtype=DOUBLE), dim)
        assert_mean(gradient, length * (upstream - (upstream @ loc) * loc), 1e-5)
        assert (gradient @ loc).abs().max() <= 20 * torch.finfo(dtype).eps * upstream.norm()

    @families
    @pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 5.0), (8, 30.0)])
    def test_of_a_second_moment(self, family: type, dim: int, kappa: float) -> None:
        """E (a·x)(b·x) is known, and so are its gradients in both parameters."""
        a, b = directions(2, dim, seed=5)
        loc = directions(dim).requires_grad_()
        concentration = torch.tensor(kappa, dtype=DOUBLE, requires_grad=True)
        p = family(loc, concentration)
        moment = a @ (p.covariance_matrix + torch.outer(p.mean, p.mean)) @ b
        in_loc, in_kappa = torch.autograd.grad(moment, (loc, concentration))
        tangential = in_loc - (in_loc @ loc) * loc

        rows = loc.detach().repeat(40_000, 1).requires_grad_()
        concentrations = concentration.detach().repeat(40_000).requires_grad_()
        x = family(rows, concentrations).rsample()
        value = (x @ a) * (x @ b)
        row_gradients, kappa_gradients = torch.autograd.grad(value.sum(), (rows, concentrations))
        assert_mean(value, moment)
        assert_mean(row_gradients, tangential, 1e-12)
        assert_mean(kappa_gradients, in_kappa)


class TestStream:
    @families
    @dtypes
    def test_seed_reproduces(self, family: type, dtype: torch.dtype) -> None:
        p = family(directions(4, 5, dtype=dtype), 3.0)
        draws = []
        for seed in (7, 7, 8):
            torch.manual_seed(seed)
            draws.append(p.rsample((3,)))
        assert torch.equal(draws[0], draws[1])
        assert not torch.isclose(draws[0], draws[2]).all(-1).any()
        assert not torch.isclose(p.sample(), p.sample()).all(-1).any()

    def test_seed_reproduces_the_uniform(self) -> None:
        p = HypersphericalUniform(4)
        torch.manual_seed(7)
        first, second = p.sample((3,)), p.sample((3,))
        torch.manual_seed(7)
        assert torch.equal(first, p.sample((3,)))
        assert not torch.isclose(first, second).all(-1).any()

    @families
    def test_gradients(self, family: type) -> None:
        """rsample reaches both parameters, also through a broadcast; sample reaches none."""
        loc, kappa = directions(4, 3).requires_grad_(), torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
        p = family(loc, kappa)
        assert not p.sample((5,)).requires_grad
        for gradient in torch.autograd.grad(p.rsample((5,))[..., 0].sum(), (loc, kappa)):
            assert gradient.isfinite().all()
            assert (gradient != 0).any()
        assert not HypersphericalUniform(3).rsample().requires_grad


def test_mixins_are_initialised() -> None:
    """A class after the distribution in the order of inheritance has its constructor called, as with torch's."""

    class Mixin:
        def __init__(self) -> None:
            self.is_ready = True

    class Mine(PowerSpherical, Mixin):
        pass

    assert Mine(torch.eye(3)[0], 1.0).is_ready
