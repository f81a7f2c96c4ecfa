"""Saved-tensor hooks: kernels read what a hook returns, whatever its memory layout is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributions import kl_divergence

from helpers.directions import unit
from helpers.engines import Engine, negative_view
from helpers.examples import families
from powerspherical import HypersphericalUniform
from powerspherical.nn import SphericalBottleneck, SphericalHead

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in Triton's interpreter

Step = Callable[[], list[Tensor]]


def strided(tensor: Tensor) -> Tensor:
    """Return a view with gaps between its numbers."""
    return torch.stack((tensor, torch.zeros_like(tensor)), -1)[..., 0]


def negated(tensor: Tensor) -> Tensor:
    return negative_view(tensor) if tensor.is_floating_point() else tensor


def transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def assert_hooks_change_nothing(step: Step) -> None:
    """``step`` computes gradients, the same on every call after the same seed."""

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        return step()

    expected = gradients()
    assert all(one.abs().max() > 0 for one in expected)
    for change in (strided, negated, transposed):
        with saved_tensors_hooks(lambda tensor: tensor, change):
            found = gradients()
        for one, other in zip(found, expected, strict=True):
            tolerance = {torch.float32: 1e-5, torch.float64: 1e-13}[one.dtype]
            atol = tolerance * other.abs().max().item()
            torch.testing.assert_close(one, other, rtol=tolerance, atol=atol, msg=change.__name__)


@families
@pytest.mark.parametrize("dim", [2, 3, 5, 20])
def test_distributions(engine: Engine, dtype: torch.dtype, family: type, dim: int) -> None:
    """A draw, its density, and the divergence from the uniform distribution."""
    if engine.is_interpreted and dim != 5:
        pytest.skip("reads its memory as at d = 5, and is slow in the interpreter")
    x, loc = unit(2, 4, 3, dim, dtype=dtype, device=engine.device)
    kappa = torch.linspace(0.5, 30.0, 12, dtype=dtype, device=engine.device).view(4, 3)
    for shared in (loc, loc[0]):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, shared, kappa)]

        def density(leaves: list[Tensor] = leaves) -> list[Tensor]:
            value = family(*leaves[1:]).log_prob(leaves[0])
            return list(torch.autograd.grad(value.square().sum(), leaves))

        def draw(leaves: list[Tensor] = leaves) -> list[Tensor]:
            return list(torch.autograd.grad(family(*leaves[1:]).rsample()[..., 1].sum(), leaves[1:]))

        def matrix(leaves: list[Tensor] = leaves) -> list[Tensor]:
            # With small κ and in one octant the density is well-conditioned. A product of matrices rounds cosines
            # differently for other strides.
            x, loc, kappa = leaves
            value = family(loc.abs(), kappa / 4).log_prob_matrix(x.abs())
            return list(torch.autograd.grad(value.square().sum(), leaves))

        def rate(leaves: list[Tensor] = leaves) -> list[Tensor]:
            uniform = HypersphericalUniform(dim, device=engine.device, dtype=dtype)
            return list(torch.autograd.grad(kl_divergence(family(*leaves[1:]), uniform).sum(), leaves[2:]))

        for step in (density, draw, matrix, rate):
            assert_hooks_change_nothing(step)


@pytest.mark.parametrize("dim", [3, 20])
def test_modules(engine: Engine, dtype: torch.dtype, dim: int) -> None:
    """A head, and a step of a bottleneck with one sphere and with two."""
    if engine.is_interpreted and dim != 3:
        pytest.skip("reads its memory as at d = 3, and is slow in the interpreter")
    features = torch.randn(6, 2 * (dim + 1), dtype=dtype).to(engine.device).requires_grad_()

    def head() -> list[Tensor]:
        q = SphericalHead(None, dim)(features[:, : dim + 1])
        return list(torch.autograd.grad((q.loc[:, 0] * q.concentration).sum(), features))

    def bottleneck(product: int) -> list[Tensor]:
        z, rate = SphericalBottleneck(None, dim, product=product)(features[:, : product * (dim + 1)])
        return list(torch.autograd.grad(z[:, 0].sum() + rate.square().sum(), features))

    for step in (head, lambda: bottleneck(1), lambda: bottleneck(2)):
        assert_hooks_change_nothing(step)
