"""Calls that fail in other libraries. None of these libraries is imported."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import kl_divergence

from helpers.examples import DOUBLE, FLOAT, directions, families
from powerspherical import HypersphericalUniform

signs = pytest.mark.parametrize("sign", [1.0, -1.0], ids=["e1", "-e1"])


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


@families
def test_draws_need_no_matrix(family: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """SciPy rotates by a d × d matrix."""
    for name in ("qr", "svd", "householder_product"):
        monkeypatch.delattr(torch.linalg, name)
    x = family(directions(2048), 100.0).sample((100,))
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(100, dtype=DOUBLE))
