"""On a GPU: nothing on the wrong device, no waiting, CUDA graphs. ``test_members`` compares values with the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.utils.checkpoint import checkpoint

from helpers.examples import FAMILIES, FLOAT, directions, dtypes, families
from helpers.statistical import assert_mean
from helpers.waiting import waiting
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical.families import family_names
from powerspherical.nn import SphericalBottleneck

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    # Dynamo makes an instance of torch.autograd.Function to trace one.
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
]

DIM = 8


def parameters(dtype: torch.dtype, device: str = "cuda") -> tuple[Tensor, Tensor]:
    kappa = torch.tensor([0.0, 0.5, 4.0, 300.0], dtype=dtype)
    return directions(4, DIM, dtype=dtype).to(device), kappa.to(device)


def test_uniform_follows_the_other_operand() -> None:
    q, prior = PowerSpherical(*parameters(FLOAT)), HypersphericalUniform(DIM)
    for result in (prior.log_prob(q.sample()), kl_divergence(q, prior), kl_divergence(prior, q)):
        assert result.device.type == "cuda"


def test_number_and_scalar_concentration() -> None:
    loc, _ = parameters(FLOAT)
    for kappa in (4.0, torch.tensor(4.0), torch.tensor(4.0, device="cuda")):
        assert PowerSpherical(loc, kappa, validate_args=True).sample().device.type == "cuda"


@families
def test_mixed_devices(family: type) -> None:
    loc, kappa = parameters(FLOAT)
    with pytest.raises(ValueError, match=r"loc is on cuda.*concentration on cpu"):
        family(loc, kappa.cpu())
    with pytest.raises(ValueError, match=r"loc is on cpu.*concentration on cuda"):
        family(loc.cpu(), kappa)
    q = family(loc, kappa)
    with pytest.raises((ValueError, RuntimeError), match=r"device|cuda"):
        q.log_prob(loc.cpu())
    with pytest.raises((ValueError, RuntimeError), match=r"device|cuda"):
        kl_divergence(q, PowerSpherical(loc.cpu(), 1.0))


def training_step(loc: Tensor, kappa: Tensor | float, draw: bool, family: type = PowerSpherical) -> Tensor:
    q = family(loc, kappa, validate_args=False)
    prior = HypersphericalUniform(DIM, device="cuda", validate_args=False)
    three = torch.full((), 3.0, device="cuda")
    others = [other(loc.detach().roll(1, -1), three, validate_args=False) for other in FAMILIES]
    loss = q.log_prob(loc.detach().roll(2, -1)).sum() + q.entropy().sum() + prior.log_prob(loc).sum()
    loss = loss + sum(kl_divergence(q, p).sum() for p in (*others, prior))
    return loss + q.rsample((3,)).square().cumsum(-1).sum() if draw else loss


class TestNoWaiting:
    @dtypes
    @pytest.mark.parametrize("number", [False, True], ids=["tensor", "number"])
    @families
    def test_training_step(self, family: type, number: bool, dtype: torch.dtype) -> None:
        """Without validation the host runs ahead of the GPU. (The rejection loop of vMF in float64 must wait.)"""
        loc, kappa = (p.requires_grad_() for p in parameters(dtype))
        draw = family is not VonMisesFisher or dtype == torch.float32
        argument = 4.0 if number else kappa
        training_step(loc, argument, draw, family).backward()  # makes the constants
        with waiting("error"):
            training_step(loc, argument, draw, family).backward()

    def test_uniform(self) -> None:
        with waiting("error"):
            prior = HypersphericalUniform(DIM, device="cuda", validate_args=False)
            prior.log_prob(prior.sample((10,)))

    @families
    def test_one_look_at_the_values(self, family: type) -> None:
        loc, kappa = parameters(FLOAT)
        family(loc, kappa, validate_args=True)
        with waiting("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            family(loc, kappa, validate_args=True)
        assert len([w for w in caught if "synchroniz" in str(w.message)]) == 1


def warm_up(function: Callable[[], object]) -> None:
    """Call the function on a stream of its own, as torch asks for before a capture."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.synchronize()


class TestGraph:
    @families
    @dtypes
    def test_replays_are_fresh(self, family: type, dtype: torch.dtype) -> None:
        loc, kappa = parameters(dtype)
        prior = HypersphericalUniform(DIM, device="cuda", validate_args=False)

        def draw_and_rate() -> tuple[Tensor, Tensor]:
            q = family(loc, kappa, validate_args=False)
            return q.rsample((500,)), kl_divergence(q, prior)

        warm_up(draw_and_rate)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x, rate = draw_and_rate()
        kappa.fill_(9.0)
        draws = []
        for _ in range(20):
            graph.replay()
            draws.append(x.clone())
        together = torch.cat(draws)
        assert len(together.flatten(1).unique(dim=0)) == len(together)
        expected = family(loc.cpu(), kappa.cpu())
        assert_mean(together.cpu(), expected.mean, rounding=1e-6)
        torch.testing.assert_close(rate.cpu(), kl_divergence(expected, HypersphericalUniform(DIM)))

    @families
    @dtypes
    def test_generator_that_is_registered(self, family: type, dtype: torch.dtype) -> None:
        q = family(*parameters(dtype), validate_args=False)
        generator = torch.Generator("cuda").manual_seed(3)
        warm_up(lambda: q.sample(generator=generator))
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            x = q.sample((500,), generator=generator)

        def replays() -> list[Tensor]:
            generator.manual_seed(3)
            draws = []
            for _ in range(2):
                graph.replay()
                draws.append(x.clone())
            return draws

        before = torch.cuda.get_rng_state()
        first, second = replays()
        assert not torch.equal(first, second)
        assert all(torch.equal(a, b) for a, b in zip(replays(), (first, second), strict=True))
        assert torch.equal(torch.cuda.get_rng_state(), before)

    def test_whole_training_step(self) -> None:
        loc, kappa = (p.requires_grad_() for p in parameters(FLOAT))

        def step() -> tuple[Tensor, ...]:
            return torch.autograd.grad(training_step(loc, kappa, draw=True), (loc, kappa))

        warm_up(step)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gradients = step()
        graph.replay()
        first = [g.clone() for g in gradients]
        graph.replay()
        for before, after in zip(first, gradients, strict=True):
            assert after.isfinite().all()
            assert not torch.equal(before, after)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # its own use
def test_compiled_by_inductor() -> None:
    loc, kappa = (p.requires_grad_() for p in parameters(FLOAT))
    compiled = torch.compile(training_step, fullgraph=True)
    torch.testing.assert_close(
        compiled(loc, kappa, False), training_step(loc, kappa, False), rtol=1e-4, atol=1e-4
    )
    gradients = torch.autograd.grad(compiled(loc, kappa, True), (loc, kappa))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("family", family_names())
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_bottleneck(family: str, dynamic: bool) -> None:
    """Compiled code calls the kernels as operators: the rate is that of eager mode, two draws of one graph differ."""
    torch.compiler.reset()
    bottleneck = SphericalBottleneck(None, 5, family).to("cuda")
    features = torch.randn(2000, 6, device="cuda", requires_grad=True)

    def two(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, rate = bottleneck(features)
        return z, checkpoint(bottleneck, features, use_reentrant=False)[0], rate

    compiled = torch.compile(two, fullgraph=True, dynamic=dynamic)
    z, other, rate = compiled(features)
    torch.testing.assert_close(rate, bottleneck(features)[1])
    torch.testing.assert_close(z.norm(dim=-1), torch.ones_like(rate))
    assert not (z == other).all(-1).any()
    (gradient,) = torch.autograd.grad((z + other).cumsum(-1).sum() + rate.sum(), features)
    assert gradient.isfinite().all()
    # The checkpoint draws again in the backward pass. Its gradient in v is that of the point of the forward pass.
    _, other, _ = compiled(features)
    grad = torch.randn_like(other)
    (gradient,) = torch.autograd.grad(other, features, grad)
    v = features.detach()[..., :5]
    length = v.norm(dim=-1, keepdim=True)
    cosine, along = ((x * v).sum(-1, keepdim=True) / length for x in (other.detach(), grad))
    expected = (cosine * grad - along * other.detach()) / length
    torch.testing.assert_close(gradient[..., :5], expected, rtol=1e-3, atol=1e-4)
