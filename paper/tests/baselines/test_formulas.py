"""The published methods follow their distributions where they work, and fail where they are known to."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from helpers.statistical import assert_law, assert_mean
from powerspherical_paper.baselines import formulas
from powerspherical_paper.quadrature import Symmetric

N = 20_000


def unit(dim):
    return torch.nn.functional.normalize(torch.randn(dim), dim=-1)


def draws(method, dim, kappa, **options):
    """Draws in float32, and their cosines to the mean direction."""
    torch.manual_seed(dim)
    loc = unit(dim)
    x = method(loc, torch.full((N,), float(kappa)), **options)
    assert x.shape == (N, dim)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(N), rtol=0, atol=1e-5)
    return x, loc, x @ loc


def vmf_cdf(dim, kappa):
    """The distribution function of the cosine, by summing the density over a fine grid."""
    angle = np.linspace(0, math.pi, 40_001)[1:-1]
    weight = np.exp(kappa * (np.cos(angle) - 1)) * np.sin(angle) ** (dim - 2)
    below = 1 - np.cumsum(weight) / weight.sum()
    return lambda t: np.interp(np.arccos(np.clip(t, -1, 1)), angle, below)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 20.0), (16, 5.0), (64, 100.0)])
def test_power_spherical(dim, kappa):
    x, loc, t = draws(formulas.power_spherical, dim, kappa)
    assert_law(t, stats.beta((dim - 1) / 2 + kappa, (dim - 1) / 2, loc=-1, scale=2).cdf)
    assert_mean(x, kappa / (kappa + dim - 1) * loc, rounding=1e-6)


@pytest.mark.parametrize("taylor", [True, False])
@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 9.0), (16, 5.0), (5, 100.0), (64, 9.5)])
def test_von_mises_fisher(dim, kappa, taylor):
    x, loc, t = draws(formulas.von_mises_fisher, dim, kappa, taylor=taylor)
    assert_law(t, vmf_cdf(dim, kappa))
    assert_mean(x, Symmetric.von_mises_fisher(dim, kappa).mean(np.cos) * loc, rounding=1e-6)


def test_the_exact_b_cancels_in_float32_and_no_proposal_is_accepted():
    kappa = torch.tensor([10.0, 1e5])
    assert formulas.von_mises_fisher_cosine(kappa, 3).isfinite().tolist() == [True, False]
    assert formulas.von_mises_fisher_cosine(kappa.double(), 3).isfinite().all()
    x = formulas.von_mises_fisher(unit(3), kappa, wide=True)
    assert x.dtype == torch.float32
    assert x.isfinite().all()


def test_power_spherical_derivative():
    """The derivative of E t = κ/(κ+d-1), from torch's implicit derivative of the Beta draw."""
    torch.manual_seed(1)
    dim, kappa = 8, 10.0
    each, loc = torch.full((N,), kappa, requires_grad=True), unit(dim)
    (gradient,) = torch.autograd.grad((formulas.power_spherical(loc, each) @ loc).sum(), each)
    assert_mean(gradient, (dim - 1) / (kappa + dim - 1) ** 2, rounding=1e-4)
