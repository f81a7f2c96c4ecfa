"""The draws follow their laws and stay on the sphere. Randomised tests use the level 1e-6 and fixed seeds."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, Family
from powerspherical.families import von_mises_fisher as rejection
from powerspherical.sampling import draw, uniform

pytestmark = pytest.mark.usefixtures("_devices")

LEVEL = 1e-6
COUNT = 20_000


def directions(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=-1).to(dtype)


def draw_rows(family: Family, loc: Tensor, kappa: float, count: int = COUNT) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, 1-t and 1+t. The operator's 1-t and 1+t are more accurate than those of x."""
    concentration = torch.full((), kappa, dtype=loc.dtype).expand(count)
    x, (one_minus_t, one_plus_t, _) = torch.ops.powerspherical.draw(
        loc.expand(count, -1), concentration, (count,), None, 0, loc.shape[-1], family.name
    )
    return x, one_minus_t, one_plus_t


def von_mises_fisher_cdf(half_versine: np.ndarray, kappa: float, dim: int) -> np.ndarray:
    """P((1-T)/2 ≤ w), by the trapezium rule in the angle φ, whose density is ∝ e^{κ cos φ} sin^{d-2} φ."""
    scale = min(np.pi, 12 * np.sqrt((dim + 20) / (kappa + 1e-300)))  # nearly all mass is below
    angle = np.linspace(0, scale, 40_001)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_sine = (dim - 2) * np.log(np.sin(angle)) if dim > 2 else 0.0
    log_density = -2 * kappa * np.sin(angle / 2) ** 2 + log_sine
    density = np.exp(log_density - np.max(log_density))
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(2 * np.arcsin(np.sqrt(half_versine)), angle, mass / mass[-1])


@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 0.0), (2, 0.1), (3, 1.0), (3, 1e9), (9, 1e3), (64, 20.0), (1000, 50.0)]
)
def test_power_spherical_cosine(dtype: torch.dtype, dim: int, kappa: float) -> None:
    _, one_minus_t, one_plus_t = draw_rows(
        POWER_SPHERICAL, directions(dim, dtype=dtype), kappa, 2**22 // (dim + 200)
    )
    beta = (dim - 1) / 2
    test = scipy.stats.kstest(
        one_minus_t.double().cpu().numpy() / 2, scipy.stats.beta(beta, beta + kappa).cdf
    )
    assert test.pvalue > LEVEL
    assert torch.allclose(one_minus_t + one_plus_t, torch.tensor(2.0, dtype=dtype))


@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 0.0), (2, 0.1), (2, 1e9), (3, 1.0), (3, 1e9), (4, 2.5), (9, 30.0), (1000, 1e9)]
)
def test_von_mises_fisher_cosine(dtype: torch.dtype, dim: int, kappa: float) -> None:
    _, one_minus_t, one_plus_t = draw_rows(
        VON_MISES_FISHER, directions(dim, dtype=dtype), kappa, 2**22 // (dim + 200)
    )
    cdf = functools.partial(von_mises_fisher_cdf, kappa=kappa, dim=dim)
    test = scipy.stats.kstest(one_minus_t.double().cpu().numpy() / 2, cdf)
    assert test.pvalue > LEVEL
    assert torch.allclose(one_minus_t + one_plus_t, torch.tensor(2.0, dtype=dtype))


@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 0.0), (2, 0.1), (2, 1e9), (3, 1.0), (3, 1e9), (9, 30.0), (64, 5.0), (1000, 1e9)]
)
def test_spherical_cauchy_cosine(dtype: torch.dtype, dim: int, kappa: float) -> None:
    """The odds of (1-T)/2 are those of a Beta(β, β) variable, as for a uniform point, divided by (1+κ)²."""
    _, one_minus_t, one_plus_t = draw_rows(
        SPHERICAL_CAUCHY, directions(dim, dtype=dtype), kappa, 2**22 // (dim + 200)
    )
    minus, plus = one_minus_t.double(), one_plus_t.double()
    odds = (1 + kappa) ** 2 * minus / plus
    beta = (dim - 1) / 2
    law = scipy.stats.beta(beta, beta).cdf
    assert scipy.stats.kstest((odds / (1 + odds)).cpu().numpy(), law).pvalue > LEVEL
    probability = SPHERICAL_CAUCHY.log_tails(minus, plus, torch.full_like(minus, kappa), dim)[0].exp()
    assert scipy.stats.kstest(probability.cpu().numpy(), "uniform").pvalue > LEVEL
    assert torch.allclose(one_minus_t + one_plus_t, torch.tensor(2.0, dtype=dtype))


def test_nothing_overflows(family, dtype: torch.dtype) -> None:
    """At the largest finite concentration of the dtype, a draw equals the mean direction."""
    loc = directions(5, dtype=dtype)
    x, _, _ = draw_rows(family, loc, torch.finfo(dtype).max)
    torch.testing.assert_close(x, loc.expand_as(x))


def test_rejection_without_looking(monkeypatch) -> None:
    """The variant for CUDA graphs, here forced on the CPU, has the same law."""
    monkeypatch.setattr(rejection, "_redraw", rejection._redraw_blindly)
    _, one_minus_t, _ = draw_rows(VON_MISES_FISHER, directions(4), 2.5)
    cdf = functools.partial(von_mises_fisher_cdf, kappa=2.5, dim=4)
    assert scipy.stats.kstest(one_minus_t.cpu().numpy() / 2, cdf).pvalue > LEVEL


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_point_and_cosine_agree(family, dim: int) -> None:
    loc = directions(dim)
    x, one_minus_t, _ = draw_rows(family, loc, 5.0)
    torch.testing.assert_close((x - loc).square().sum(-1) / 2, one_minus_t, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dim", [2, 3, 4, 12])
def test_direction_is_uniform_and_independent_of_the_cosine(family, dim: int) -> None:
    loc = directions(dim)
    x, one_minus_t, one_plus_t = draw_rows(family, loc, 3.0)
    tangent = torch.linalg.svd(loc.unsqueeze(0)).Vh[1]  # a unit vector orthogonal to loc
    coordinate = (x @ tangent) / (one_minus_t * one_plus_t).sqrt()
    if dim == 2:
        spread = torch.sign(coordinate)
        assert abs(spread.mean()) < 5 / COUNT**0.5
    else:
        spread = coordinate.abs()
        # A coordinate c of a uniform point on the tangent sphere: (1+c)/2 ~ Beta((d-2)/2, (d-2)/2).
        law = scipy.stats.beta((dim - 2) / 2, (dim - 2) / 2)
        assert scipy.stats.kstest((1 + coordinate.cpu().numpy()) / 2, law.cdf).pvalue > LEVEL
    assert scipy.stats.spearmanr(spread.cpu().numpy(), one_minus_t.cpu().numpy()).pvalue > LEVEL


@pytest.mark.parametrize("dim", [2, 3, 5, 9, 64])
@pytest.mark.parametrize("kappa", [0.0, 1.0, 1e3, 1e9])
def test_unit_norm(draws, dtype: torch.dtype, dim: int, kappa: float) -> None:
    loc = directions(50_000 // dim, dim, dtype=dtype)
    x = draws(loc, torch.full(loc.shape[:-1], kappa, dtype=dtype))
    assert x.dtype == dtype
    assert (x.double().norm(dim=-1) - 1).abs().max() < 5 * torch.finfo(dtype).eps


def test_unit_norm_where_the_noise_is_nearly_parallel(draws, monkeypatch) -> None:
    """If the noise is almost parallel to μ, its tangential part is as small as its rounding errors."""
    loc = directions(1000, 3, dtype=torch.float32)
    nearly = loc + 1e-6 * torch.randn(1000, 3)
    randn_like = torch.randn_like

    def nearly_like(tensor: Tensor, **options: object) -> Tensor:
        return nearly.clone() if tensor.shape == nearly.shape else randn_like(tensor, **options)

    monkeypatch.setattr(torch, "randn_like", nearly_like)
    x = draws(loc, torch.ones(1000))
    assert (x.double().norm(dim=-1) - 1).abs().max() < 5 * torch.finfo(torch.float32).eps


def test_no_noise_on_the_circle(draws, dtype: torch.dtype, monkeypatch) -> None:
    """One in 2²⁴ float32 normals is exactly zero and has no direction. The draw must handle it."""
    loc = directions(100, 2, dtype=dtype)
    monkeypatch.setattr(torch, "randn", lambda *args, **kwargs: torch.zeros(100, dtype=dtype))
    loc.requires_grad_()
    kappa = torch.ones(100, dtype=dtype, requires_grad=True)
    x = draws(loc, kappa)
    assert (x.double().norm(dim=-1) - 1).abs().max() < 5 * torch.finfo(dtype).eps
    x.sum().backward()
    assert loc.grad.isfinite().all()
    assert kappa.grad.isfinite().all()


def test_zero_concentration_is_uniform(draws) -> None:
    x = draws(directions(5).expand(COUNT, 5), torch.zeros(COUNT, dtype=torch.float64))
    for coordinate in x.unbind(-1):
        assert (
            scipy.stats.kstest((1 + coordinate.cpu().numpy()) / 2, scipy.stats.beta(2, 2).cdf).pvalue > LEVEL
        )


@pytest.mark.parametrize("position", [0, 1, 2])
def test_nan_stays_in_its_row_and_ends(draws, dtype: torch.dtype, position: int) -> None:
    kappa = torch.ones(3, dtype=dtype)
    kappa[position] = float("nan")
    x = draws(directions(3, 4, dtype=dtype), kappa)
    assert x.isnan().all(-1).tolist() == kappa.isnan().tolist()


def test_every_row_has_its_own_parameters() -> None:
    loc = directions(3, 1, 4)
    kappa = torch.tensor([[1.0, 1e4]], dtype=torch.float64)
    x = draw(POWER_SPHERICAL, loc.expand(3, 2, 4).expand(4000, 3, 2, 4), kappa.expand(4000, 3, 2))
    mean = x.mean(0)
    torch.testing.assert_close(mean, kappa.unsqueeze(-1) / (kappa.unsqueeze(-1) + 3) * loc, rtol=0, atol=0.04)
    assert draw(VON_MISES_FISHER, loc[0, 0], kappa[0, 0]).shape == (4,)


def test_empty_batch(draws) -> None:
    loc, kappa = torch.empty(0, 4, requires_grad=True), torch.empty(0, requires_grad=True)
    x = draws(loc, kappa)
    x.sum().backward()
    assert (x.shape, loc.grad.shape, kappa.grad.shape) == ((0, 4), (0, 4), (0,))


def test_uniform(dtype: torch.dtype, monkeypatch) -> None:
    x = uniform((COUNT, 4), dtype=dtype)
    assert x.dtype == dtype
    assert (x.double().norm(dim=-1) - 1).abs().max() < 5 * torch.finfo(dtype).eps
    for coordinate in x.double().unbind(-1):
        assert (
            scipy.stats.kstest((1 + coordinate.cpu().numpy()) / 2, scipy.stats.beta(1.5, 1.5).cdf).pvalue
            > LEVEL
        )
    assert uniform((0, 3)).shape == (0, 3)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.zeros(shape))
    assert uniform((2, 3)).norm(dim=-1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (3, 5.0), (64, 20.0), (10**6, 1e6)])
def test_cosine_of_another_dimension(family, dtype: torch.dtype, dim: int, kappa: float) -> None:
    """On the circle we can draw t with the law of R^dim. Compared with our tail probabilities."""
    loc = torch.tensor([1.0, 0.0], dtype=dtype).expand(COUNT, 2)
    t, sine = draw(family, loc, torch.full((COUNT,), kappa, dtype=dtype), dim=dim).double().unbind(-1)
    # If t is near 1, 1 - t is not accurate.
    one_minus_t = torch.where(t > 0, sine.square() / (1 + t), 1 - t)
    probability = family.log_tails(one_minus_t, 1 + t, torch.full_like(t, kappa), dim)[0].exp()
    assert scipy.stats.kstest(probability.cpu().numpy(), "uniform").pvalue > LEVEL
