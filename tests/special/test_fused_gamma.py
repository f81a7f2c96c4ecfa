"""The fused KL to the uniform: in the C library, and in Triton, which runs in its interpreter if there is no GPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import fused
from powerspherical.special import _elementary, gamma

DIMS = [2, 3, 5, 6, 8, 13, 14, 29, 30, 1000, 10**6]


@pytest.fixture(params=fused.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kernels(engine: str) -> fused.Kernels:
    return fused.kernels(engine, "gamma")


@pytest.fixture
def _dispatched(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fused.use(monkeypatch, engine)


def concentrations(device: str) -> Tensor:
    return torch.cat([torch.zeros(1), torch.logspace(-6, 9, 400)]).to(device)


def evaluate(
    kernels: fused.Kernels, kappa: Tensor, dim: int, *, needs_slope: bool = False, mean: bool = False
) -> tuple[Tensor, Tensor]:
    beta = (dim - 1) / 2
    shift = gamma.shift(beta, torch.float32)
    return kernels.module.relative_entropy(kappa, beta, *shift, needs_slope=needs_slope, mean=mean)


@pytest.mark.parametrize("dim", DIMS)
def test_value_and_slope(dim: int, kernels: fused.Kernels) -> None:
    kappa = concentrations(kernels.device)
    value, slope = evaluate(kernels, kappa, dim, needs_slope=True)
    exact = kappa.double().cpu().requires_grad_()
    expected = gamma.power_relative_entropy(exact, dim)
    (derivative,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(value.cpu().double(), expected.detach(), rtol=7e-7, atol=1e-37)
    torch.testing.assert_close(slope.cpu().double(), derivative, rtol=7e-7, atol=1e-37)


@pytest.mark.parametrize("dim", DIMS)
def test_entropy_and_mean(dim: int, kernels: fused.Kernels) -> None:
    kappa = concentrations(kernels.device)
    entropy, mean = evaluate(kernels, kappa, dim, mean=True)
    exact = kappa.double().cpu()
    torch.testing.assert_close(
        entropy.cpu().double(), gamma.power_relative_entropy(exact, dim), rtol=7e-7, atol=1e-37
    )
    torch.testing.assert_close(mean.cpu().double(), -gamma.digamma_difference(exact, dim), rtol=5e-7, atol=0)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow)")  # inf - inf and κ², in Triton's interpreter
@pytest.mark.parametrize("dim", [2, 3, 16, 64])
def test_extremes(dim: int, kernels: fused.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """As finite as the same formulas in torch; NaN stays in its row."""
    kappa = torch.tensor([0.0, 1e-30, math.nan, 1.0, 1e15, 1e25, 3e38, math.inf])
    value, slope = evaluate(kernels, kappa.to(kernels.device), dim, needs_slope=True)
    _, mean = evaluate(kernels, kappa.to(kernels.device), dim, mean=True)
    fused.switch_off(monkeypatch)
    leaf = kappa.clone().requires_grad_()
    expected = gamma.power_relative_entropy(leaf, dim)
    (derivative,) = torch.autograd.grad(expected.sum(), leaf)
    exact_mean = -gamma.digamma_difference(kappa, dim)
    for found, exact in ((value, expected.detach()), (slope, derivative), (mean, exact_mean)):
        torch.testing.assert_close(found.cpu(), exact, rtol=5e-6, atol=1e-30, equal_nan=True)


def test_empty(kernels: fused.Kernels) -> None:
    empty = torch.empty(0, device=kernels.device)
    value, slope = evaluate(kernels, empty, 3)
    assert value.shape == slope.shape == (0,)


@pytest.mark.usefixtures("_dispatched")
class TestDispatch:
    def test_and_slope(self, kernels: fused.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without gradients one call computes both. With them the slope is differentiable."""
        kappa = concentrations(kernels.device)[1:]
        exact = gamma.power_relative_entropy(kappa.double(), 8)
        calls = []

        def runs_fused(tensor: Tensor) -> bool:
            calls.append(tensor)
            return True

        monkeypatch.setattr(_elementary, "runs_fused", runs_fused)
        with torch.no_grad():
            value, slope = gamma.power_relative_entropy.and_slope(kappa, 8)
        assert len(calls) == 1
        _, visible = gamma.power_relative_entropy.and_slope(kappa.requires_grad_(), 8)
        assert len(calls) == 1
        assert visible.requires_grad
        torch.testing.assert_close(slope, visible.detach(), rtol=2e-6, atol=1e-37)
        torch.testing.assert_close(value.double(), exact, rtol=7e-7, atol=1e-37)

    @pytest.mark.parametrize("dim", [3, 64])
    def test_derivatives(self, dim: int, kernels: fused.Kernels) -> None:
        kappa = concentrations(kernels.device)[1:].requires_grad_()
        value = gamma.power_relative_entropy(kappa, dim)
        assert "Fused" in value.grad_fn.name()
        (once,) = torch.autograd.grad(value.sum(), kappa, retain_graph=True)
        (first,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), kappa)
        exact = kappa.detach().double().cpu().requires_grad_()
        (expected,) = torch.autograd.grad(
            gamma.power_relative_entropy(exact, dim).sum(), exact, create_graph=True
        )
        (curvature,) = torch.autograd.grad(expected.sum(), exact)
        torch.testing.assert_close(once.cpu().double(), expected.detach(), rtol=1e-6, atol=0)
        torch.testing.assert_close(first.detach().cpu().double(), expected.detach(), rtol=1e-6, atol=0)
        torch.testing.assert_close(second.cpu().double(), curvature, rtol=1e-4, atol=1e-7)

    def test_transforms(self, kernels: fused.Kernels) -> None:
        kappa = concentrations(kernels.device)
        mapped = torch.func.vmap(lambda k: torch.func.grad(lambda x: gamma.power_relative_entropy(x, 5))(k))
        expected = kappa * gamma.trigamma_difference(kappa, 5)
        torch.testing.assert_close(mapped(kappa), expected)

    def test_shapes(self, kernels: fused.Kernels) -> None:
        kappa = torch.rand(3, 4, device=kernels.device)
        expected = gamma.power_relative_entropy(kappa.double(), 6).float()
        torch.testing.assert_close(gamma.power_relative_entropy(kappa.T, 6), expected.T)
        torch.testing.assert_close(gamma.power_relative_entropy(kappa[:, ::2], 6), expected[:, ::2])
        torch.testing.assert_close(gamma.power_relative_entropy(kappa[1, 2], 6), expected[1, 2])
        expanded = kappa[:, :1].expand(3, 4)
        torch.testing.assert_close(gamma.power_relative_entropy(expanded, 6), expected[:, :1].expand(3, 4))
