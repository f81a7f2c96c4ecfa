"""Draws of the classes against the paper's algorithm and closed forms. The tests of kernels check the laws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.examples import DOUBLE, directions, dtypes, families
from helpers.statistical import assert_mean, assert_same_law, assert_uncorrelated
from powerspherical import PowerSpherical


def mean_cosine_slope(family: type, kappa: Tensor, dim: int) -> Tensor:
    """dE t/dκ by the derivative of the family's own mean."""
    kappa = kappa.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(family.family.mean_cosine(kappa, dim).sum(), kappa)
    return slope


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.3), (3, 5.0), (50, 200.0)])
def test_algorithm_1_of_the_paper(dim: int, kappa: float) -> None:
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


@families
@dtypes
def test_marginal(family: type, dtype: torch.dtype) -> None:
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


@families
@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 5.0), (8, 30.0)])
def test_gradient_of_a_second_moment(family: type, dim: int, kappa: float) -> None:
    """E (a·x)(b·x) is known, and so are its gradients in both parameters."""
    a, b = directions(2, dim, seed=5)
    loc = directions(dim).requires_grad_()
    concentration = torch.tensor(kappa, dtype=DOUBLE, requires_grad=True)
    p = family(loc, concentration)
    assert not p.sample().requires_grad
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


def test_mixins_are_initialised() -> None:
    """A class after the distribution in the order of inheritance has its constructor called, as with torch's."""

    class Mixin:
        def __init__(self) -> None:
            self.is_ready = True

    class Mine(PowerSpherical, Mixin):
        pass

    assert Mine(torch.eye(3)[0], 1.0).is_ready
