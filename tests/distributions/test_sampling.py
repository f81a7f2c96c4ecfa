"""Draws of the classes against the moments of the same classes. The tests of kernels check the laws in full."""

from __future__ import annotations

import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from helpers.examples import DOUBLE, directions, dtypes, families
from helpers.statistical import assert_law, assert_mean, assert_same_law, assert_uncorrelated
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy


def mean_cosine_slope(family: type, kappa: Tensor, dim: int) -> Tensor:
    """dE t/dκ by the derivative of the family's own mean."""
    kappa = kappa.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(family.family.mean_cosine(kappa, dim).sum(), kappa)
    return slope


class TestLaw:
    @families
    @dtypes
    def test_spread_at_large_concentration(self, family: type, dtype: torch.dtype) -> None:
        """E‖x-μ‖² = 2(1 - E t), to one percent where a clamp or a cosine would lose it all."""
        if family is SphericalCauchy:
            pytest.skip("its E‖x-μ‖² comes from few points far out")
        loc = directions(3, dtype=dtype)
        squares = (family(loc, 1e8).sample((400_000,)) - loc).double().square().sum(-1)
        expected = 4e-8 if family is PowerSpherical else 2e-8
        assert squares.mean().item() == pytest.approx(expected, rel=0.01)
        assert_mean(squares, 2 * family.family.mean_cosine_complement(torch.tensor(1e8, dtype=DOUBLE), 3))

    def test_uniform(self) -> None:
        for dim in (2, 3, 64):
            x = HypersphericalUniform(dim, dtype=DOUBLE).sample((10_000,))
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
        assert_mean(slope, mean_cosine_slope(family, kappa, 5), 1e-5)
        assert_uncorrelated(t[:, 0], t[:, 1])


class TestGradient:
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

    @families
    def test_reaches_both_parameters(self, family: type) -> None:
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
