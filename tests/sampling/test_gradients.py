"""First derivatives of the draws, pointwise and in the mean. Other derivatives are refused."""

from __future__ import annotations

import pytest
import scipy.special
import scipy.stats
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from helpers.gamma import log_slope
from powerspherical.families import (
    POWER_SPHERICAL,
    SPHERICAL_CAUCHY,
    VON_MISES_FISHER,
    Family,
)
from powerspherical.sampling import draw

pytestmark = pytest.mark.usefixtures("_devices")

COUNT = 20_000


def directions(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=-1).to(dtype)


def cosine_derivative(family: Family, dim: int, kappa: float, dtype: torch.dtype, count: int = COUNT):
    """Return t and dt/dκ of many draws, by autograd through x·μ."""
    loc = directions(dim, dtype=dtype)
    concentration = torch.full((count,), kappa, dtype=dtype, requires_grad=True)
    t = draw(family, loc.expand(count, dim), concentration) @ loc
    (slope,) = torch.autograd.grad(t.sum(), concentration)
    return t.detach(), slope


def mean_cosine_slope(family: Family, dim: int, kappa: float) -> float:
    """Return d E t/dκ.

    E t is κ/(κ+d-1) for Power Spherical, and for von Mises–Fisher the Bessel ratio A with A' = 1 - A² - (d-1)A/κ. For
    spherical Cauchy we integrate.
    """
    if family is POWER_SPHERICAL:
        return (dim - 1) / (kappa + dim - 1) ** 2
    if family is SPHERICAL_CAUCHY:
        # artanh t = artanh t₀ + log(1+κ) with t₀ of a uniform point, so dt/dκ = (1-t²)/(1+κ).
        beta = (dim - 1) / 2

        def slope(half: float) -> float:
            odds = (1 + kappa) ** 2 * half / (1 - half)
            return 4 * odds / (1 + odds) ** 2 / (1 + kappa)

        return scipy.stats.beta(beta, beta).expect(slope)
    ratio = scipy.special.ive(dim / 2, kappa) / scipy.special.ive(dim / 2 - 1, kappa)
    return 1 - ratio**2 - (dim - 1) * ratio / kappa


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 1.0), (5, 2.0), (20, 300.0)])
def test_mean_of_the_concentration_gradient(family, dtype: torch.dtype, dim: int, kappa: float) -> None:
    _, slope = cosine_derivative(family, dim, kappa, dtype)
    slope = slope.double()
    standard_error = slope.std() / COUNT**0.5
    assert abs(slope.mean() - mean_cosine_slope(family, dim, kappa)) < 5 * standard_error + 1e-6


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (5, 2.0), (20, 300.0)])
def test_power_spherical_implicit_derivative(dim: int, kappa: float) -> None:
    """dt/dκ at a fixed probability, against finite differences of SciPy's quantile function."""
    t, slope = cosine_derivative(POWER_SPHERICAL, dim, kappa, torch.float64, 200)
    beta, step = (dim - 1) / 2, 1e-4 * (1 + kappa)
    probability = scipy.stats.beta(beta + kappa, beta).cdf((1 + t.cpu().numpy()) / 2)
    ends = [2 * scipy.stats.beta(beta + kappa + h, beta).ppf(probability) - 1 for h in (-step, step)]
    torch.testing.assert_close(slope, torch.as_tensor((ends[1] - ends[0]) / (2 * step)), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dim", [2, 4, 8, 9, 40, 5000])
@pytest.mark.parametrize("count", [60, 18_000])
def test_power_spherical_single_precision_derivative(dim: int, count: int) -> None:
    """½ dlog G/dα at a fixed second Gamma variable, for few and many rows, α below and above 4, and strided κ."""
    loc = directions(dim, dtype=torch.float32)
    kappa = torch.logspace(-1, 6, count).view(3, -1).T.requires_grad_()
    x, (one_minus_t, one_plus_t, gamma) = torch.ops.powerspherical.draw(
        loc, kappa, kappa.shape, None, 0, dim, POWER_SPHERICAL.name
    )
    (slope,) = torch.autograd.grad((x @ loc).sum(), kappa)
    relative = slope.double() / (one_minus_t.double() * one_plus_t.double())
    expected = 0.5 * log_slope(kappa.double() + (dim - 1) / 2, gamma)
    torch.testing.assert_close(relative.cpu(), expected, rtol=2e-4, atol=0)


@pytest.mark.parametrize("family", [POWER_SPHERICAL, VON_MISES_FISHER], ids=lambda family: family.name)
@pytest.mark.parametrize("kappa", [0.0, 1.0, 1e3])
def test_single_precision_derivative_on_the_two_sphere(family: Family, kappa: float) -> None:
    """At d = 3 the float32 derivative is the implicit one, as in float64, and depends on t and κ only."""
    loc, concentration = directions(3, dtype=torch.float32), torch.full((200,), kappa, requires_grad=True)
    x, (one_minus_t, one_plus_t, _) = torch.ops.powerspherical.draw(
        loc, concentration, (200,), None, 0, 3, family.name
    )
    (slope,) = torch.autograd.grad((x @ loc).sum(), concentration)
    ends = one_minus_t.double(), one_plus_t.double()
    expected = family.implicit_slope(*ends, concentration.detach().double(), 3)
    torch.testing.assert_close(slope.double() / ends[0] / ends[1], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (5, 2.0), (20, 300.0)])
def test_spherical_cauchy_derivative(dim: int, kappa: float) -> None:
    """d artanh(t)/dκ = 1/(1+κ), because κ shifts the rapidity artanh t by log(1+κ)."""
    t, slope = cosine_derivative(SPHERICAL_CAUCHY, dim, kappa, torch.float64, 200)
    torch.testing.assert_close(slope, (1 - t.square()) / (1 + kappa), rtol=1e-10, atol=0)


def test_concentration_moves_x_along_the_meridian(draws) -> None:
    """dx/dκ = dt/dκ · dx/dt, at fixed μ and tangent direction."""
    loc = directions(50, 4)
    kappa = torch.full((50,), 3.0, dtype=torch.float64, requires_grad=True)
    x = draws(loc, kappa)
    grad = torch.randn_like(x)
    slope, actual = (torch.autograd.grad(x, kappa, g, retain_graph=True)[0] for g in (loc, grad))
    t = (x * loc).sum(-1, keepdim=True).detach().requires_grad_()
    direction = torch.nn.functional.normalize(x.detach() - t.detach() * loc, dim=-1)
    (along,) = torch.autograd.grad(t * loc + (1 - t * t).sqrt() * direction, t, grad)
    torch.testing.assert_close(actual, slope * along.squeeze(-1), rtol=1e-10, atol=1e-12)


def test_loc_gradient_is_that_of_a_rotation(draws) -> None:
    """Compare with autograd through the rotation that takes μ to m, at m = μ.

    It takes x to x - (x·(μ+m))/(1+μ·m) (μ+m) + 2(x·μ)m.
    """
    loc = directions(50, 4).requires_grad_()
    x = draws(loc, torch.full((50,), 3.0, dtype=torch.float64))
    grad = torch.randn_like(x)
    (actual,) = torch.autograd.grad(x, loc, grad)
    mu, point = loc.detach(), x.detach()
    total = mu + loc
    shrink = (point * total).sum(-1, keepdim=True) / (1 + (mu * loc).sum(-1, keepdim=True))
    rotated = point - shrink * total + 2 * (point * mu).sum(-1, keepdim=True) * loc
    (expected,) = torch.autograd.grad(rotated, loc, grad)
    tangential = expected - (expected * mu).sum(-1, keepdim=True) * mu
    torch.testing.assert_close(actual, tangential, rtol=1e-10, atol=1e-12)
    assert (actual * mu).sum(-1).abs().max() < 1e-14


def test_expanded_parameters_receive_the_sum(draws, dtype: torch.dtype) -> None:
    loc, kappa = directions(3, dtype=dtype), torch.tensor(4.0, dtype=dtype)
    single = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
    rows = loc.repeat(7, 5, 1).requires_grad_(), kappa.repeat(7, 5).requires_grad_()
    grads = []
    for parameters, shapes in ((single, ((7, 5, 3), (7, 5))), (rows, ((7, 5, 3), (7, 5)))):
        torch.manual_seed(3)
        x = draws(*(p.expand(s) for p, s in zip(parameters, shapes, strict=True)))
        grads.append(torch.autograd.grad((x**2)[..., 0].sum(), parameters))
    for one, many in zip(*grads, strict=True):
        torch.testing.assert_close(one, many.sum((0, 1)))


def test_only_one_parameter_requires_grad(draws, dtype: torch.dtype) -> None:
    loc = directions(6, 4, dtype=dtype).requires_grad_()
    kappa = torch.ones(6, dtype=dtype, requires_grad=True)
    grads = []
    for parameters in ((loc, kappa), (loc, kappa.detach()), (loc.detach(), kappa)):
        torch.manual_seed(3)
        wanted = [p for p in parameters if p.requires_grad]
        grads.append(torch.autograd.grad(draws(*parameters)[..., 0].sum(), wanted))
    torch.testing.assert_close(grads[0][0], grads[1][0], rtol=0, atol=0)
    torch.testing.assert_close(grads[0][1], grads[2][0], rtol=0, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 100])
def test_finite_at_the_extremes(draws, dtype: torch.dtype, dim: int) -> None:
    loc = directions(2000, dim, dtype=dtype).requires_grad_()
    for value in (0.0, 1e-6, 1e9):
        kappa = torch.full((2000,), value, dtype=dtype, requires_grad=True)
        for grad in torch.autograd.grad((draws(loc, kappa) * loc.detach().roll(1, 0)).sum(), (loc, kappa)):
            assert grad.isfinite().all()


def test_nothing_to_differentiate(draws) -> None:
    loc, kappa = directions(5, 3), torch.ones(5, dtype=torch.float64, requires_grad=True)
    assert draws(loc, kappa).requires_grad
    assert not draws(loc, kappa.detach()).requires_grad
    with torch.no_grad():
        assert not draws(loc, kappa).requires_grad
    with torch.inference_mode():
        assert draws(loc, kappa).shape == (5, 3)


def test_second_derivative_is_refused(draws) -> None:
    loc, kappa = directions(5, 3).requires_grad_(), torch.ones(5, dtype=torch.float64, requires_grad=True)
    loss = draws(loc, kappa).pow(3).sum()
    for wanted in (loc, kappa):
        (grad,) = torch.autograd.grad(loss, wanted, create_graph=True)
        for other in (loc, kappa):
            with pytest.raises(NotImplementedError, match=r"differentiable once.*detached sample"):
                torch.autograd.grad(grad.sum(), other, retain_graph=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch
def test_forward_mode_is_refused(draws) -> None:
    loc, kappa = directions(5, 3), torch.ones(5, dtype=torch.float64)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="Use reverse mode"):
        draws(loc, forward_ad.make_dual(kappa, torch.ones_like(kappa)))


def test_von_mises_fisher_gradient_is_unbiased_where_the_rejection_matters() -> None:
    """Differentiating through accepted proposals would give 0.1277 instead of 0.1474."""
    _, slope = cosine_derivative(VON_MISES_FISHER, 5, 2.0, torch.float64, 100_000)
    assert abs(slope.mean() - 0.147389) < 0.002
