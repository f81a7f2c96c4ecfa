"""The choice of an engine and of the size of blocks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from helpers.directions import unit
from helpers.engines import Engine, is_missing
from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher, engines
from powerspherical.engines import block_limit
from powerspherical.nn import PowerSphericalHead


def test_names() -> None:
    with pytest.raises(ValueError, match="unknown engine 'cuda': choose one of auto, torch, c, triton"):
        engines.engine("cuda").__enter__()
    with pytest.raises(ValueError, match="entries=0 must be at least 1"):
        block_limit(0).__enter__()


def test_settings_end_with_their_context() -> None:
    def leave_early() -> None:
        with engines.engine("torch"), block_limit(3):
            assert (engines.allowed("c"), engines.requested("torch"), engines.block_size(7)) == (
                False,
                True,
                3,
            )
            with engines.engine("c"), block_limit(5):
                assert (engines.allowed("c"), engines.allowed("triton"), engines.block_size(4)) == (
                    True,
                    False,
                    4,
                )
            assert engines.block_size(7) == 3
            raise RuntimeError("early")

    with pytest.raises(RuntimeError, match="early"):
        leave_early()
    assert (engines.allowed("c"), engines.allowed("triton"), engines.block_size(7)) == (True, True, 7)


@pytest.mark.parametrize("family", [PowerSpherical, VonMisesFisher, SphericalCauchy])
@pytest.mark.parametrize("other", ["torch", "c", "triton"])
@pytest.mark.parametrize("dim", [3, 5])
def test_a_backward_pass_with_another_engine(engine: Engine, other: str, family: type, dim: int) -> None:
    """The backward pass may run after the context of the forward pass has ended."""
    kappa = torch.linspace(0.5, 20.0, 12, device=engine.device).requires_grad_()
    loc = unit(12, dim, dtype=torch.float32, device=engine.device).requires_grad_()
    head = PowerSphericalHead(4, dim).to(engine.device)
    features = torch.randn(12, 4, device=engine.device)
    x = family(loc, kappa).rsample()
    matrix = family(loc, kappa).log_prob_matrix(x.detach())
    loss = x[:, 0].sum() + family(loc, kappa).log_prob(x.detach()).sum() + matrix.sin().sum()
    loss = loss + family(loc, kappa).entropy().sum() + (head(features).concentration * kappa).sum()
    leaves = loc, kappa, *head.parameters()
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    with engines.engine(other):
        found = torch.autograd.grad(loss, leaves)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.skipif(is_missing("c"), reason="there is no C library")
@pytest.mark.slow
def test_the_library_can_be_switched_off() -> None:
    code = (
        "import torch; from powerspherical import PowerSpherical; torch.manual_seed(1); "
        "print(PowerSpherical(torch.eye(3), 2.0).sample().tolist())"
    )
    environment = {**os.environ, "POWERSPHERICAL_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    torch.manual_seed(1)
    with engines.engine("torch"):
        assert done.stdout == f"{PowerSpherical(torch.eye(3), 2.0).sample().tolist()}\n"
