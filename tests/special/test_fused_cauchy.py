"""The fused KL of spherical Cauchy to the uniform, in the C library and in Triton."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import fused
from powerspherical.special import cauchy_relative_entropy

DIMS = [2, 3, 4, 5, 8, 64, 1000, 10**6]


@pytest.fixture(params=fused.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kernels(engine: str) -> fused.Kernels:
    return fused.kernels(engine, "cauchy")


def with_slope(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    leaf = kappa.cpu().requires_grad_()
    value = cauchy_relative_entropy(leaf, dim)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


@pytest.mark.parametrize("dim", DIMS)
def test_value_and_slope(dim: int, kernels: fused.Kernels) -> None:
    kappa = torch.cat([torch.zeros(1), torch.logspace(-6, 9, 400)])
    found = kernels.module.relative_entropy(kappa.to(kernels.device), dim, needs_slope=True)
    for single, exact in zip(found, with_slope(kappa.double(), dim), strict=True):
        torch.testing.assert_close(single.cpu().double(), exact, rtol=5e-7, atol=1e-37)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow)")  # inf - inf and sinh², in Triton's interpreter
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_extremes(dim: int, kernels: fused.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """As finite as the same formulas in torch; NaN stays in its row."""
    kappa = torch.tensor([0.0, 1e-15, math.nan, 1.0, 1e15, 1e25, 1e37, math.inf])
    found = kernels.module.relative_entropy(kappa.to(kernels.device), dim, needs_slope=True)
    fused.switch_off(monkeypatch)
    for fast, composed in zip(found, with_slope(kappa, dim), strict=True):
        torch.testing.assert_close(fast.cpu(), composed, rtol=5e-6, atol=1e-37, equal_nan=True)


def test_the_value_alone(kernels: fused.Kernels) -> None:
    kappa = torch.rand(3, 4, device=kernels.device).T
    value, slope = kernels.module.relative_entropy(kappa, 5, needs_slope=False)
    assert slope.shape == (0,)
    torch.testing.assert_close(value, cauchy_relative_entropy(kappa.double(), 5).float())


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_derivatives(dim: int, engine: str, kernels: fused.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    fused.use(monkeypatch, engine)
    kappa = torch.logspace(-3, 5, 100, device=kernels.device).requires_grad_()
    value = cauchy_relative_entropy(kappa, dim)
    assert "Fused" in value.grad_fn.name()
    (once,) = torch.autograd.grad(value.sum(), kappa, retain_graph=True)
    (first,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), kappa)
    slope = torch.func.grad(lambda k: cauchy_relative_entropy(k, dim).sum())
    exact = kappa.detach().double().cpu()
    curvature = torch.func.grad(lambda k: slope(k).sum())(exact)
    torch.testing.assert_close(once.cpu().double(), slope(exact), rtol=1e-6, atol=0)
    torch.testing.assert_close(first.detach().cpu().double(), slope(exact), rtol=1e-6, atol=0)
    torch.testing.assert_close(second.cpu().double(), curvature, rtol=1e-4, atol=1e-7)
