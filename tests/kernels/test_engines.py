"""The choice of an engine and of the size of blocks."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import kl_divergence
from torch.overrides import TorchFunctionMode

from helpers.directions import unit
from helpers.engines import ENGINES, Engine, is_missing
from helpers.examples import FAMILIES, families
from helpers.own_family import entries, use
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    RotationallySymmetric,
    VonMisesFisher,
    engines,
)
from powerspherical.engines import block_limit
from powerspherical.families import POWER_SPHERICAL
from powerspherical.nn import SphericalBottleneck, SphericalHead
from powerspherical.special import bessel_ratio


@pytest.mark.filterwarnings("ignore")  # of torch.jit.trace
@pytest.mark.skipif(is_missing("c"), reason="torch operations can be traced")
def test_traces_are_refused() -> None:
    """A trace would hold the memory that a kernel writes to, and not the kernel."""
    loc, kappa = unit(3, 5), torch.ones(3, dtype=torch.float64)
    q = VonMisesFisher(loc, kappa, validate_args=False)
    for function in (lambda loc, kappa: VonMisesFisher(loc, kappa).rsample(), lambda x, _: q.log_prob(x)):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace cannot record.*torch\.export"):
            torch.jit.trace(function, (loc, kappa))


def test_names() -> None:
    with pytest.raises(ValueError, match="unknown engine 'cuda': choose one of auto, torch, c, triton"):
        engines.engine("cuda").__enter__()
    with pytest.raises(ValueError, match="entries=0 must be at least 1"):
        block_limit(0).__enter__()


def test_settings_end_with_their_context() -> None:
    def settings() -> tuple[str | None, str | None, int]:
        return *reversed(engines.kernels), engines.block_size(7)

    def leave_early() -> None:
        with engines.engine("torch"), block_limit(3):
            assert settings() == (None, None, 3)
            with engines.engine("c"), block_limit(5):
                assert settings() == ("c", None, 5)
            with engines.engine("triton"):
                assert settings() == ("triton", "triton", 3)
            assert settings() == (None, None, 3)
            raise RuntimeError("early")

    with pytest.raises(RuntimeError, match="early"):
        leave_early()
    assert settings() == ("c", "triton", 7)


@families
@pytest.mark.parametrize("other", ["torch", "c", "triton"])
def test_a_backward_pass_with_another_engine(engine: Engine, other: str, family: type) -> None:
    """The backward pass may run after the context of the forward pass has ended."""
    dim = 3 if family is VonMisesFisher else 5
    kappa = torch.linspace(0.5, 20.0, 12, device=engine.device).requires_grad_()
    loc = unit(12, dim, dtype=torch.float32, device=engine.device).requires_grad_()
    head = SphericalHead(4, dim).to(engine.device)
    features = torch.randn(12, 4, device=engine.device)
    x = family(loc, kappa).rsample()
    matrix = family(loc, kappa).log_prob_matrix(x.detach())
    loss = x[:, 0].sum() + family(loc, kappa).log_prob(x.detach()).sum() + matrix.sin().sum()
    loss = loss + family(loc, kappa).entropy().sum() + (head(features).concentration * kappa).sum()
    z, rate = SphericalBottleneck(4, dim, maximum=60.0).to(engine.device)(features.requires_grad_())
    loss = loss + z[:, 0].sum() + rate.sum()
    leaves = loc, kappa, features, *head.parameters()
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    with engines.engine(other):
        found = torch.autograd.grad(loss, leaves)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("scale", [0.9901, 1.0099])
def test_bounds_of_norms(engine: Engine, dtype: torch.dtype, scale: float) -> None:
    """One percent in either direction is the most that a constructor takes for rounding."""
    loc = unit(40, 5, dtype=dtype, device=engine.device)
    assert PowerSpherical(scale * loc, 1.0, validate_args=True).batch_shape == (40,)
    loc[17] *= 1.02 if scale > 1 else 0.98
    for wrong in (loc, loc[17]):
        with pytest.raises(ValueError, match="worst norm is"):
            PowerSpherical(wrong, 1.0, validate_args=True)


def results(device: str) -> dict[str, torch.Tensor]:
    """Return float32 results of everything that has kernels, the same on every call but for the engine."""
    torch.manual_seed(5)
    loc, kappa = unit(300, 5, dtype=torch.float32).to(device), (20 * torch.rand(300)).to(device)
    found = {}
    for family in FAMILIES:
        q, name = family(loc, kappa), family.__name__
        found |= {f"{name} draw": q.sample(), f"{name} density": q.log_prob(loc.roll(1, 0))}
    head = SphericalHead(None, 4, maximum=40.0)(torch.cat((loc[:, :4], kappa[:, None]), -1))
    return found | {"head": head.concentration}


@pytest.mark.parametrize("name", ["c", "triton"])
def test_kernels_compute(name: str) -> None:
    """Everything that has kernels is computed by them: the last digits are others than those of torch operations."""
    if is_missing(name):
        pytest.skip(f"the engine {name!r} cannot run here")
    device = ENGINES[name].device
    with engines.engine(name):
        found = results(device)
    with engines.engine("torch"):
        expected = results(device)
    for what, one in found.items():
        assert not torch.equal(one, expected[what]), what


class Calls(TorchFunctionMode):
    """Names the torch operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.add(function.__name__)
        return function(*args, **(kwargs or {}))


def test_kernels_read_curves(engine: Engine) -> None:
    """A function of κ is read from its table by a kernel. (C and torch operations may give the same digits.)"""
    kappa = torch.tensor([1.0, 20.0], device=engine.device)
    bessel_ratio(kappa, 5)
    with Calls() as calls:
        bessel_ratio(kappa, 5)
    assert ("embedding" in calls.names) == (engine.name == "torch")


def test_calls_can_be_repeated(engine: Engine) -> None:
    """Triton launches a kernel for the first time in another way than later, and for pointers that are not aligned."""
    whole = torch.cat((torch.zeros(1), unit(40, 5, dtype=torch.float32).flatten())).to(engine.device)
    odd = whole[1:].view(40, 5)
    draws, densities = [], []
    for loc in (odd, odd.clone(), odd.clone(), odd, odd.clone()):
        torch.manual_seed(1)
        q = VonMisesFisher(loc, 4.0)
        draws.append(q.sample())
        densities.append(q.log_prob(draws[0]))
    for other in (*zip(draws, densities, strict=True),):
        torch.testing.assert_close(other, (draws[0], densities[0]), rtol=1e-6, atol=1e-6)
    assert torch.equal(draws[1], draws[2])


@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compiled_code_follows_a_changed_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of our families is one operator. That of a subclass is traced, because its code may be another one."""

    use(monkeypatch, entries())

    class Doubled(type(POWER_SPHERICAL)):
        name = "doubled"

        def relative_entropy(self, kappa: torch.Tensor, dim: int) -> torch.Tensor:
            return 2 * super().relative_entropy(kappa, dim)

    class DoubledPower(RotationallySymmetric):
        family = Doubled()

    def rate(kappa: torch.Tensor, family: type) -> torch.Tensor:
        loc = torch.eye(3)[0]
        return kl_divergence(
            family(loc, kappa, validate_args=False), HypersphericalUniform(3, validate_args=False)
        )

    torch.compiler.reset()
    compiled, kappa = torch.compile(rate, backend="aot_eager", fullgraph=True), torch.tensor([1.0, 10.0])
    torch.testing.assert_close(compiled(kappa, DoubledPower), 2 * rate(kappa, PowerSpherical))
    torch.testing.assert_close(compiled(kappa, PowerSpherical), rate(kappa, PowerSpherical))
