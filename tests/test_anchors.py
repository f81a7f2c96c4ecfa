"""Calls that give wrong values, NaN or too little precision in other libraries: ours give the true values.

Each test says which library fails, and how. None of these libraries is imported.
"""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch.distributions import kl_divergence

from helpers.examples import DOUBLE, FLOAT, directions, families
from helpers.statistical import assert_mean
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher

signs = pytest.mark.parametrize("sign", [1.0, -1.0], ids=["e1", "-e1"])


def mean_cosine(dim: int, kappa: float) -> float:
    """E t of von Mises–Fisher, I_{d/2}(κ)/I_{d/2-1}(κ)."""
    half = mpmath.mpf(dim) / 2
    return float(mpmath.besseli(half, kappa) / mpmath.besseli(half - 1, kappa))


def von_mises_fisher_log_density(dim: int, kappa: float, cosine: float) -> float:
    with mpmath.workdps(30):
        order, kappa = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        log_bessel = mpmath.log(mpmath.besseli(order, kappa))
        return float(
            order * mpmath.log(kappa) - (order + 1) * mpmath.log(2 * mpmath.pi) - log_bessel + kappa * cosine
        )


class TestFirstAxis:
    """power-spherical 0.8.1 and TensorFlow Probability reflect e₁ to μ: close to e₁ the reflection is 0/0."""

    @families
    @pytest.mark.parametrize("offset", [0.0, 1e-8, 3e-7, 1e-5, 1e-3])
    @signs
    def test_draws_near_it_have_unit_norm(self, family: type, offset: float, sign: float) -> None:
        loc = torch.nn.functional.normalize(torch.tensor([sign, offset, 0.0]), dim=0)
        x = family(loc, 5.0).sample((1000,))
        assert (x.double().norm(dim=-1) - 1).abs().max() <= 4 * torch.finfo(FLOAT).eps * 3**0.5

    @families
    @pytest.mark.parametrize("dim", [2, 4, 16])
    @signs
    def test_collapsed_tokens_have_gradients(self, family: type, dim: int, sign: float) -> None:
        """Draw, rate and density of κ = 0, which needs no clamp, in one batch with other κ."""
        loc = (sign * torch.eye(dim)[0]).repeat(4, 1).requires_grad_()
        kappa = torch.tensor([0.0, 1e-8, 5.0, 50.0], requires_grad=True)
        p = family(loc, kappa)
        x = p.rsample((100,))
        rate = kl_divergence(p, HypersphericalUniform(dim))
        loss = x.square()[..., -1].sum() + rate.sum() + p.log_prob(x).sum()
        for gradient in torch.autograd.grad(loss, (loc, kappa)):
            assert gradient.isfinite().all()


@pytest.mark.parametrize(("dim", "kappa"), [(3, 1.0), (4, 8.0), (16, 0.5)])
def test_the_derivative_of_a_beta_variable_is_exact(dim: int, kappa: float) -> None:
    """dz/dα of z = (1+t)/2 ~ Beta(α, β) at a fixed probability, in float64: to 1e-8, while torch's has 1e-3."""
    loc = directions(dim)
    concentration = torch.full((3,), kappa, dtype=DOUBLE, requires_grad=True)
    x = PowerSpherical(loc, concentration).rsample()
    (slope,) = torch.autograd.grad(((1 + x @ loc) / 2).sum(), concentration)
    with mpmath.workdps(30):
        alpha, beta = (mpmath.mpf(dim) - 1) / 2 + kappa, (mpmath.mpf(dim) - 1) / 2
        for point, actual in zip(x.detach(), slope, strict=True):
            z = 1 - mpmath.mpf((point - loc).square().sum().item()) / 4
            in_alpha = mpmath.diff(lambda a: mpmath.betainc(a, beta, 0, z, regularized=True), alpha)  # noqa: B023
            density = z ** (alpha - 1) * (1 - z) ** (beta - 1) / mpmath.beta(alpha, beta)
            assert actual.item() == pytest.approx(float(-in_alpha / density), rel=1e-8)


class TestManyDimensions:
    def test_draws_follow_the_law(self) -> None:
        """The rejection sampler of s-vae-pytorch gives a mean cosine far from the 0.188 of d = 512 and κ = 100."""
        loc = directions(512)
        t = VonMisesFisher(loc, 100.0).sample((4000,)) @ loc
        assert_mean(t, mean_cosine(512, 100))

    @pytest.mark.parametrize("dim", [100, 256, 1000, 10_000])
    @pytest.mark.parametrize("kappa", [1e-3, 1.0, 500.0, 1e4])
    def test_the_density_is_finite_and_right(self, dim: int, kappa: float) -> None:
        """SciPy's Bessel function, also behind s-vae-pytorch, underflows or overflows at these orders."""
        loc, x = directions(dim), directions(dim, seed=2)
        expected = von_mises_fisher_log_density(dim, kappa, (loc @ x).item())
        assert VonMisesFisher(loc, kappa).log_prob(x).item() == pytest.approx(expected, rel=1e-12)

    @families
    def test_draws_need_no_matrix(self, family: type, monkeypatch: pytest.MonkeyPatch) -> None:
        """SciPy rotates by a d × d matrix."""
        for name in ("qr", "svd", "householder_product"):
            monkeypatch.delattr(torch.linalg, name)
        x = family(directions(2048), 100.0).sample((100,))
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(100, dtype=DOUBLE))


class TestLargeConcentrations:
    @pytest.mark.parametrize("kappa", [80.0, 89.0, 100.0, 1e4, 1e8])
    def test_the_density_does_not_overflow(self, kappa: float) -> None:
        """log κ/(4π sinh κ) + κt on the sphere of R³, where Pyro's sinh κ overflows in float32 from 89 on."""
        loc = directions(3, dtype=FLOAT)
        expected = math.log(kappa / (2 * math.pi)) - math.log1p(-math.exp(-2 * kappa))
        assert VonMisesFisher(loc, kappa).log_prob(loc).item() == pytest.approx(expected, rel=1e-6)
