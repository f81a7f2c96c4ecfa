"""The fused kernel for KL to the uniform: compiled on a GPU, otherwise in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from powerspherical.special import _elementary, gamma

pytest.importorskip("triton", reason="Triton is not installed")

from powerspherical.special import _triton_gamma

CUDA = torch.cuda.is_available()
DIMS = [2, 3, 5, 6, 8, 13, 14, 29, 30, 1000, 10**6]


def concentrations(device: str) -> Tensor:
    return torch.cat([torch.zeros(1), torch.logspace(-6, 9, 400)]).to(device)


@pytest.mark.parametrize("dim", DIMS)
def test_value_and_slope(dim: int) -> None:
    kappa = concentrations("cuda" if CUDA else "cpu")
    beta = (dim - 1) / 2
    value, slope = _triton_gamma.relative_entropy(
        kappa, beta, *gamma._shift(beta, torch.float32), needs_slope=True
    )
    exact = kappa.double().cpu().requires_grad_()
    expected = gamma.power_relative_entropy(exact, dim)
    (derivative,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(value.cpu().double(), expected.detach(), rtol=7e-7, atol=1e-37)
    torch.testing.assert_close(slope.cpu().double(), derivative, rtol=7e-7, atol=1e-37)


@pytest.mark.parametrize("dim", DIMS)
def test_entropy_and_mean(dim: int) -> None:
    kappa = concentrations("cuda" if CUDA else "cpu")
    beta = (dim - 1) / 2
    entropy, mean = _triton_gamma.relative_entropy(
        kappa, beta, *gamma._shift(beta, torch.float32), needs_slope=False, mean=True
    )
    exact = kappa.double().cpu()
    torch.testing.assert_close(
        entropy.cpu().double(), gamma.power_relative_entropy(exact, dim), rtol=7e-7, atol=1e-37
    )
    torch.testing.assert_close(mean.cpu().double(), -gamma.digamma_difference(exact, dim), rtol=5e-7, atol=0)


def test_and_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients one launch computes both. With them the slope is differentiable."""
    kappa = concentrations("cuda" if CUDA else "cpu")[1:]
    launches = []

    def runs_fused(tensor: Tensor) -> bool:
        launches.append(tensor)
        return True

    monkeypatch.setattr(_elementary, "runs_fused", runs_fused)
    with torch.no_grad():
        value, slope = gamma.power_relative_entropy.and_slope(kappa, 8)
    assert len(launches) == 1
    _, visible = gamma.power_relative_entropy.and_slope(kappa.requires_grad_(), 8)
    assert len(launches) == 1
    assert visible.requires_grad
    torch.testing.assert_close(slope, visible.detach(), rtol=2e-6, atol=1e-37)
    exact = gamma.power_relative_entropy(kappa.detach().double(), 8)
    torch.testing.assert_close(value.double(), exact, rtol=7e-7, atol=1e-37)


def test_empty() -> None:
    empty = torch.empty(0, device="cuda" if CUDA else "cpu")
    value, slope = _triton_gamma.relative_entropy(empty, 1.0, 3, 4.0, 4, needs_slope=False)
    assert value.shape == slope.shape == (0,)


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
class TestOnAGpu:
    @pytest.mark.parametrize("dim", [3, 64])
    def test_derivatives(self, dim: int) -> None:
        kappa = concentrations("cuda")[1:].requires_grad_()
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

    def test_transforms(self) -> None:
        kappa = concentrations("cuda")
        mapped = torch.func.vmap(lambda k: torch.func.grad(lambda x: gamma.power_relative_entropy(x, 5))(k))
        expected = kappa * gamma.trigamma_difference(kappa, 5)
        torch.testing.assert_close(mapped(kappa), expected)

    def test_shapes(self) -> None:
        kappa = torch.rand(3, 4, device="cuda")
        expected = gamma.power_relative_entropy(kappa.cpu(), 6)
        torch.testing.assert_close(gamma.power_relative_entropy(kappa.T, 6).cpu(), expected.T)
        expanded = kappa[:, :1].expand(3, 4)
        torch.testing.assert_close(
            gamma.power_relative_entropy(expanded, 6).cpu(), expected[:, :1].expand(3, 4)
        )
