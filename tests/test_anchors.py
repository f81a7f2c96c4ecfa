"""Calls that are known to fail in other libraries, on ours against the true values.

Each class names the library; each test, the failure. Nothing but this package is imported for it.
"""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, kl_divergence

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from helpers.statistical import assert_mean, assert_uncorrelated
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher


def mean_cosine(dim: int, kappa: float) -> mpmath.mpf:
    """E t of von Mises–Fisher, I_{d/2}(κ)/I_{d/2-1}(κ)."""
    half = mpmath.mpf(dim) / 2
    return mpmath.besseli(half, kappa) / mpmath.besseli(half - 1, kappa)


def mean_cosine_slope(dim: int, kappa: float) -> float:
    ratio = mean_cosine(dim, kappa)
    return float(1 - ratio**2 - (dim - 1) * ratio / kappa)


def von_mises_fisher_log_density(dim: int, kappa: float, cosine: float) -> float:
    with mpmath.workdps(30):
        order, kappa = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        log_bessel = mpmath.log(mpmath.besseli(order, kappa))
        return float(
            order * mpmath.log(kappa) - (order + 1) * mpmath.log(2 * mpmath.pi) - log_bessel + kappa * cosine
        )


def power_spherical_log_normalizer(dim: int, kappa: float) -> mpmath.mpf:
    alpha, beta = (mpmath.mpf(dim) - 1) / 2 + kappa, (mpmath.mpf(dim) - 1) / 2
    return (
        (alpha + beta) * mpmath.log(2)
        + beta * mpmath.log(mpmath.pi)
        + mpmath.loggamma(alpha)
        - mpmath.loggamma(alpha + beta)
    )


def power_spherical_kl_to_uniform(dim: int, kappa: float) -> float:
    """Table 1 of De Cao & Aziz (2020): H(X) = log N - κ(log 2 + ψ(α) - ψ(α+β))."""
    with mpmath.workdps(40):
        alpha, beta = (mpmath.mpf(dim) - 1) / 2 + kappa, (mpmath.mpf(dim) - 1) / 2
        log_area = (
            mpmath.log(2) + mpmath.mpf(dim) / 2 * mpmath.log(mpmath.pi) - mpmath.loggamma(mpmath.mpf(dim) / 2)
        )
        mean = mpmath.log(2) + mpmath.digamma(alpha) - mpmath.digamma(alpha + beta)
        return float(log_area - power_spherical_log_normalizer(dim, kappa) + kappa * mean)


def row_gradients(p_of, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the first coordinate of a draw, in each row of the parameters."""
    leaves = [v.clone().requires_grad_() for v in parameters]
    return torch.autograd.grad(p_of(*leaves).rsample()[..., 0].sum(), leaves)


class TestReferencePackage:
    """power-spherical 0.8.1."""

    @families
    def test_shapes(self, family: type) -> None:
        p = family(directions(4, 3), torch.rand(4, dtype=DOUBLE))
        assert (p.batch_shape, p.event_shape) == ((4,), (3,))
        assert p.expand((2, 4)).batch_shape == (2, 4)
        assert p.mean.shape == p.variance.shape == (4, 3)

    @families
    def test_independent(self, family: type) -> None:
        p = family(directions(4, 3), 2.0)
        q = Independent(p, 1)
        assert (q.batch_shape, q.event_shape) == ((), (4, 3))
        x = q.rsample((5,))
        torch.testing.assert_close(q.log_prob(x), p.log_prob(x).sum(-1))
        torch.testing.assert_close(q.entropy(), p.entropy().sum())
        torch.testing.assert_close(kl_divergence(q, q), torch.zeros((), dtype=DOUBLE))

    @families
    def test_mixture(self, family: type) -> None:
        weights = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)
        parts = family(directions(3, 4), torch.tensor([1.0, 20.0, 300.0], dtype=DOUBLE))
        mixture = MixtureSameFamily(Categorical(weights), parts)
        assert (mixture.batch_shape, mixture.event_shape) == ((), (4,))
        x = mixture.sample((20_000,))
        by_hand = torch.logsumexp(weights.log() + parts.log_prob(x.unsqueeze(1)), -1)
        torch.testing.assert_close(mixture.log_prob(x), by_hand)
        assert_mean(x, (weights.unsqueeze(-1) * parts.mean).sum(0))
        torch.testing.assert_close(mixture.mean, (weights.unsqueeze(-1) * parts.mean).sum(0))
        assert_mean((x - mixture.mean).square(), mixture.variance)

    @families
    def test_shared_draws(self, family: type) -> None:
        loc = directions(3).expand(2, 3)
        x = family(loc, 4.0).sample((2000,))
        assert_uncorrelated((x * loc).sum(-1)[:, 0], (x * loc).sum(-1)[:, 1])
        column = torch.ones(6, 1, dtype=DOUBLE)
        with pytest.raises(ValueError, match=r"squeeze\(-1\)"):
            family(directions(6, 3), column)
        assert family(directions(6, 3)[None], column).sample().shape == (6, 6, 3)

    @families
    @pytest.mark.parametrize("offset", [0.0, 1e-8, 3e-7, 1e-5, 1e-3])
    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_norm_near_the_first_axis(self, family: type, offset: float, sign: float) -> None:
        loc = torch.nn.functional.normalize(torch.tensor([sign, offset, 0.0]), dim=0)
        x = family(loc, 5.0).sample((1000,))
        assert (x.double().norm(dim=-1) - 1).abs().max() <= 4 * torch.finfo(FLOAT).eps * 3**0.5

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_gradient_at_the_first_axis(self, sign: float) -> None:
        """dE[x]/dμ = κ/(κ+d-1) = 0.714 along tangents."""
        loc = torch.tensor([sign, 0.0, 0.0], dtype=DOUBLE).repeat(20_000, 1).requires_grad_()
        x = PowerSpherical(loc, 5.0).rsample()
        (gradient,) = torch.autograd.grad(x[:, 1].sum(), loc)
        assert pytest.approx(0.714, abs=3e-4) == 5 / (5 + 2)
        assert_mean(gradient, torch.tensor([0.0, 5 / 7, 0.0], dtype=DOUBLE), 1e-12)

    @pytest.mark.parametrize(("dim", "kappa"), [(3, 1e3), (3, 1e6), (512, 1e6)])
    def test_float32_divergence_from_the_uniform(self, dim: int, kappa: float) -> None:
        p = PowerSpherical(directions(dim, dtype=FLOAT), kappa)
        expected = power_spherical_kl_to_uniform(dim, kappa)
        assert kl_divergence(p, HypersphericalUniform(dim)).item() == pytest.approx(expected, rel=5e-7)

    def test_antipode(self) -> None:
        loc = directions(5000, 64, dtype=FLOAT)
        assert not PowerSpherical(loc, 10.0).log_prob(-loc).isnan().any()
        x = torch.nn.functional.normalize(-loc + 1e-7 * directions(5000, 64, dtype=FLOAT, seed=2), dim=-1)
        assert not PowerSpherical(loc, 10.0).log_prob(x).isnan().any()

    @families
    def test_zero_and_plain_numbers(self, family: type) -> None:
        for kappa in (0, 0.0, 3, 3.0, torch.tensor(0.0)):
            assert family(directions(3, dtype=FLOAT), kappa).rsample((2,)).shape == (2, 3)

    @families
    def test_mode(self, family: type) -> None:
        loc = directions(4, 3)
        assert torch.equal(family(loc, 2.0).mode, loc)

    @families
    @pytest.mark.parametrize("dtype", [BRAIN, torch.float16], ids=str)
    def test_half_precision(self, family: type, dtype: torch.dtype) -> None:
        loc, kappa = directions(8, 16, dtype=dtype), torch.full((8,), 30.0, dtype=dtype)
        leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
        p = family(*leaves)
        x = p.rsample()
        rate = kl_divergence(p, HypersphericalUniform(16))
        assert (x.dtype, rate.dtype, p.log_prob(x).dtype) == (dtype, FLOAT, FLOAT)
        for gradient in torch.autograd.grad(x.float()[..., 0].sum() + rate.sum(), leaves):
            assert gradient.dtype == dtype
            assert gradient.isfinite().all()
        exact = family(torch.nn.functional.normalize(loc.double(), dim=-1), kappa.double())
        torch.testing.assert_close(
            rate.double(), kl_divergence(exact, HypersphericalUniform(16)), rtol=1e-6, atol=0
        )

    @families
    def test_second_derivatives(self, family: type) -> None:
        """Of the divergence, with which a Newton step in κ is possible: -H'' = Ψ'' + κΨ'''."""
        kappa = torch.tensor(5.0, dtype=DOUBLE, requires_grad=True)

        def slope(kappa: Tensor) -> Tensor:
            rate = kl_divergence(family(directions(4), kappa), HypersphericalUniform(4))
            return torch.autograd.grad(rate, kappa, create_graph=True)[0]

        (second,) = torch.autograd.grad(slope(kappa), kappa)
        ends = [slope(kappa + h).item() for h in (1e-4, -1e-4)]
        assert second.item() == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-7)
        x = directions(4, seed=2)
        assert torch.autograd.gradgradcheck(lambda k: family(directions(4), k).log_prob(x), kappa)

    @families
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.func itself
    def test_vmap_of_rsample(self, family: type) -> None:
        loc, kappa = directions(6, 4), torch.rand(6, dtype=DOUBLE)
        draw = torch.func.vmap(lambda m, k: family(m, k).rsample((3,)), randomness="different")
        x = draw(loc, kappa)
        assert x.shape == (6, 3, 4)
        assert len(x.reshape(-1, 4).unique(dim=0)) == 18
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(6, 3, dtype=DOUBLE))

    @pytest.mark.parametrize(("dim", "kappa"), [(3, 1.0), (4, 8.0), (16, 0.5)])
    def test_derivative_of_the_beta_variable(self, dim: int, kappa: float) -> None:
        """dz/dα of z = (1+t)/2 ~ Beta(α, β) at a fixed probability, in float64, to 1e-8 and not to 1e-3."""
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


class TestHypersphericalVAE:
    """s-vae-pytorch."""

    def test_law_in_many_dimensions(self) -> None:
        loc = directions(512)
        t = VonMisesFisher(loc, 100.0).sample((4000,)) @ loc
        assert float(mean_cosine(512, 100)) == pytest.approx(0.188, abs=5e-4)
        assert_mean(t, float(mean_cosine(512, 100)))

    def test_concentration_gradient(self) -> None:
        loc = directions(5)
        kappa = torch.full((40_000,), 2.0, dtype=DOUBLE, requires_grad=True)
        (slope,) = torch.autograd.grad((VonMisesFisher(loc, kappa).rsample() @ loc).sum(), kappa)
        assert mean_cosine_slope(5, 2.0) == pytest.approx(0.147389, abs=1e-6)
        assert_mean(slope, 0.147389, 1e-6)

    @pytest.mark.parametrize("dim", [100, 512, 10_000])
    @pytest.mark.parametrize("kappa", [1e-3, 50.0, 1e4])
    def test_normaliser(self, dim: int, kappa: float) -> None:
        loc = directions(dim)
        p = VonMisesFisher(loc, kappa)
        assert p.log_normalizer.isfinite()
        assert p.log_prob(loc).item() == pytest.approx(von_mises_fisher_log_density(dim, kappa, 1), rel=1e-12)

    @families
    def test_stddev_is_not_the_concentration(self, family: type) -> None:
        p = family(directions(3), 7.0)
        torch.testing.assert_close(p.stddev, p.covariance_matrix.diagonal().sqrt())
        assert p.stddev.max() < 1

    def test_dim_is_ambient(self) -> None:
        p = HypersphericalUniform(3)
        assert p.event_shape == (3,)
        assert p.entropy().item() == pytest.approx(math.log(4 * math.pi), rel=1e-6)


class TestTensorFlowProbability:
    @families
    def test_gradients_at_the_first_axis(self, family: type) -> None:
        loc = torch.tensor([1.0, 0.0, 0.0]).repeat(1000, 1)
        for gradient in row_gradients(family, loc, torch.full((1000,), 5.0)):
            assert gradient.isfinite().all()

    @families
    @pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=str)
    @pytest.mark.parametrize(("dim", "kappa"), [(3, 1e7), (2, 5.0)])
    def test_concentration_gradient(self, family: type, dtype: torch.dtype, dim: int, kappa: float) -> None:
        loc = directions(dim, dtype=dtype)
        _, gradient = row_gradients(family, loc.repeat(50_000, 1), torch.full((50_000,), kappa, dtype=dtype))
        assert gradient.isfinite().all()
        assert (gradient != 0).any()

    @pytest.mark.parametrize("family", [PowerSpherical, VonMisesFisher])
    def test_spread_at_large_concentration(self, family: type) -> None:
        """E‖x-μ‖² = 2(1 - E t): 4/(κ+2), and 2/κ to all digits of 1e-8, at d = 3."""
        loc = directions(3, dtype=FLOAT)
        squares = (family(loc, 1e8).sample((200_000,)) - loc).double().square().sum(-1)
        expected = 4 / (1e8 + 2) if family is PowerSpherical else 2 / 1e8
        assert squares.mean().item() == pytest.approx(expected, rel=0.02)
        assert_mean(squares, expected)

    @pytest.mark.parametrize("dim", [2, 4, 7, 100])
    def test_von_mises_fisher_is_reparameterised(self, dim: int) -> None:
        loc = directions(dim)
        kappa = torch.full((5000,), 3.0, dtype=DOUBLE, requires_grad=True)
        p = VonMisesFisher(loc, kappa)
        assert p.has_rsample
        (slope,) = torch.autograd.grad((p.rsample() @ loc).sum(), kappa)
        assert_mean(slope, mean_cosine_slope(dim, 3.0))


class TestSciPy:
    @pytest.mark.parametrize("dim", [256, 1000, 5000])
    @pytest.mark.parametrize("kappa", [1.0, 500.0])
    def test_log_density(self, dim: int, kappa: float) -> None:
        loc, x = directions(dim), directions(dim, seed=2)
        expected = von_mises_fisher_log_density(dim, kappa, (loc @ x).item())
        assert VonMisesFisher(loc, kappa).log_prob(x).item() == pytest.approx(expected, rel=1e-12)

    def test_zero_concentration(self) -> None:
        loc, x = directions(2, 5)
        assert VonMisesFisher(loc, 0.0).log_prob(x) == HypersphericalUniform(5).log_prob(x)

    @families
    def test_sampling_makes_no_matrix(self, family: type, monkeypatch) -> None:
        for name in ("qr", "svd", "householder_product"):
            monkeypatch.delattr(torch.linalg, name)
        x = family(directions(2048), 100.0).sample((100,))
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(100, dtype=DOUBLE))


class TestPyro:
    @pytest.mark.parametrize("kappa", [80.0, 89.0, 100.0, 1e4, 1e8])
    def test_von_mises_fisher_in_three_dimensions(self, kappa: float) -> None:
        """log κ/(4π sinh κ) + κt, where sinh κ overflows in float32 from 89 on."""
        loc = directions(3, dtype=FLOAT)
        value = VonMisesFisher(loc, kappa).log_prob(loc).item()
        assert value == pytest.approx(
            math.log(kappa / (2 * math.pi)) - math.log1p(-math.exp(-2 * kappa)), rel=1e-6
        )


class TestSphericalTokenisers:
    """Hand-copied classes, and their patches."""

    def test_divergence_between_power_sphericals(self) -> None:
        """On the sphere of R³, against quadrature with the axis of p."""
        p, q = PowerSpherical(directions(3), 12.0), PowerSpherical(directions(3, seed=2), 3.0)
        cosine = (p.loc @ q.loc).item()
        with mpmath.workdps(20):
            log_ratio = power_spherical_log_normalizer(3, 3) - power_spherical_log_normalizer(3, 12)
            norm = 1 / mpmath.exp(power_spherical_log_normalizer(3, 12))

            def ring(t):  # the mean of log(1 + νᵀx) over the circle μᵀx = t
                return mpmath.log((1 + t) * (1 + cosine) / 2 if t > -cosine else (1 - t) * (1 - cosine) / 2)

            def integrand(t):
                return norm * (1 + t) ** 12 * (12 * mpmath.log1p(t) - 3 * ring(t)) * 2 * mpmath.pi

            expected = float(mpmath.quad(integrand, [-1, -cosine, 1]) + log_ratio)
        assert kl_divergence(p, q).item() == pytest.approx(expected, rel=1e-12)

    def test_divergence_between_equals(self) -> None:
        p = PowerSpherical(directions(10, 16, dtype=FLOAT), torch.logspace(-2, 6, 10))
        assert torch.equal(kl_divergence(p, p), torch.zeros(10))

    def test_concentration_for_a_rate(self) -> None:
        p = PowerSpherical.from_kl(directions(4), 4.0)
        assert p.concentration.item() == pytest.approx(63.7873143, rel=1e-9)
        assert kl_divergence(p, HypersphericalUniform(4)).item() == pytest.approx(4.0, rel=1e-14)
        assert power_spherical_kl_to_uniform(4, 63.7873143) == pytest.approx(4.0, abs=1e-8)

    @families
    def test_autocast_changes_nothing(self, family: type) -> None:
        loc, kappa = directions(8, 16, dtype=FLOAT), 20 * torch.rand(8)

        def everything() -> list[Tensor]:
            torch.manual_seed(3)
            p = family(loc, kappa)
            x = p.rsample()
            other = family(loc.roll(1, 0), kappa)
            rates = [kl_divergence(p, q) for q in (HypersphericalUniform(16), other)]
            return [x, p.log_prob(x), p.entropy(), p.mean, p.covariance_matrix, *rates]

        plain = everything()
        with torch.autocast("cpu", dtype=BRAIN):
            for inside, outside in zip(everything(), plain, strict=True):
                assert torch.equal(inside, outside)

    @families
    @pytest.mark.parametrize("dim", [2, 4, 16])
    def test_collapsed_tokens(self, family: type, dim: int) -> None:
        """κ = 0, at which nothing needs a clamp, in one batch with the rest, all on e₁."""
        loc = torch.eye(dim)[0].repeat(3, 1).requires_grad_()
        kappa = torch.tensor([0.0, 1e-8, 50.0], requires_grad=True)
        p = family(loc, kappa)
        x = p.rsample((100,))
        loss = (
            x.square()[..., -1].sum()
            + kl_divergence(p, HypersphericalUniform(dim)).sum()
            + p.log_prob(x).sum()
        )
        for gradient in torch.autograd.grad(loss, (loc, kappa)):
            assert gradient.isfinite().all()

    @pytest.mark.slow
    @families
    @pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning"
    )  # of torch.compile itself
    def test_compiles_without_a_break(self, family: type) -> None:
        def loss(features: Tensor) -> Tensor:
            loc = torch.nn.functional.normalize(features[:, :4], dim=-1)
            p = family(loc, torch.nn.functional.softplus(features[:, 4]))
            x = p.rsample()
            return (
                x.square()[:, 0].sum()
                + kl_divergence(p, HypersphericalUniform(4)).sum()
                + p.log_prob(x).sum()
            )

        torch.compiler.reset()
        values, gradients = [], []
        for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            torch.manual_seed(3)
            features = torch.linspace(-2, 3, 40).sin().reshape(8, 5).requires_grad_()
            values.append(function(features))
            gradients.append(torch.autograd.grad(values[-1], features)[0])
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*gradients)

    def test_a_batch_of_tokens(self) -> None:
        loc = torch.nn.functional.normalize(torch.randn(65_536, 16), dim=-1).requires_grad_()
        kappa = torch.nn.functional.softplus(torch.randn(65_536) + 3).requires_grad_()
        p = PowerSpherical(loc, kappa)
        x = p.rsample()
        loss = x[..., 0].sum() + kl_divergence(p, HypersphericalUniform(16)).sum()
        for gradient in torch.autograd.grad(loss, (loc, kappa)):
            assert gradient.isfinite().all()
        assert (x.norm(dim=-1) - 1).abs().max() < 1e-6


class TestNowhereElse:
    """What no library had."""

    @families
    def test_marginal_quantiles(self, family: type) -> None:
        marginal = family(directions(6), torch.tensor([0.0, 3.0, 1e3], dtype=DOUBLE)).marginal
        u = torch.tensor([[1e-6], [0.1], [0.5], [0.9], [1 - 1e-6]], dtype=DOUBLE)
        torch.testing.assert_close(marginal.cdf(marginal.icdf(u)), u.expand(5, 3), rtol=1e-9, atol=1e-12)

    def test_closest_von_mises_fisher(self) -> None:
        """What the paper proposes after training with Power Spherical: no other vMF has a smaller KL(p‖q)."""
        p = PowerSpherical(directions(10), 25.0)
        best = p.closest_von_mises_fisher()
        torch.testing.assert_close(best.mean, p.mean)
        nearest = kl_divergence(p, best)
        for factor in (0.99, 1.01):
            assert kl_divergence(p, VonMisesFisher(p.loc, factor * best.concentration)) > nearest

    def test_divergence_between_von_mises_fishers(self) -> None:
        p, q = VonMisesFisher(directions(6), 9.0), VonMisesFisher(directions(6, seed=2), 4.0)
        gap = von_mises_fisher_log_density(6, 9, 0) - von_mises_fisher_log_density(6, 4, 0)
        expected = gap + float(mean_cosine(6, 9)) * (9 - 4 * (p.loc @ q.loc).item())
        assert kl_divergence(p, q).item() == pytest.approx(expected, rel=1e-12)
