"""How functions of κ are passed to the C library: which tensors it takes, in which modes, and on how many threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import kl_divergence

from helpers import fused
from helpers.library import watched_calls
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical._native import library
from powerspherical.special import bessel, gamma, mobius
from powerspherical.special._elementary import runs_fused

needs_library = pytest.mark.skipif(isinstance(library.loaded(), str), reason="no native library")

FUNCTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "power_entropy": gamma.power_relative_entropy,
    "relative_entropy": bessel.exponential_relative_entropy,
    "ratio": bessel.bessel_ratio,
    "cauchy_entropy": mobius.cauchy_relative_entropy,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the library that the test has made so far."""
    return watched_calls(monkeypatch)


@needs_library
def test_what_it_takes() -> None:
    kappa = torch.ones(3)
    assert runs_fused(kappa)
    assert runs_fused(torch.nn.Parameter(kappa))
    assert not runs_fused(kappa.double())
    assert not runs_fused(kappa.to("meta"))
    assert not runs_fused(kappa.as_subclass(type("Other", (Tensor,), {})))


@needs_library
@pytest.mark.parametrize("family", [PowerSpherical, VonMisesFisher, SphericalCauchy])
def test_distributions_use_it_once(family: type, calls: list[bytes]) -> None:
    """The forward pass computes the derivative, too."""
    loc, kappa = torch.eye(4), torch.ones(4, requires_grad=True)
    kl_divergence(family(loc, kappa), HypersphericalUniform(4)).sum().backward()
    assert len(calls) == 1


@needs_library
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms(name: str) -> None:
    """They see torch operations, or values that the library computed inside of an autograd function."""
    kappa = torch.tensor([0.0, 0.3, 20.0, 4000.0])

    def function(kappa: Tensor) -> Tensor:
        return FUNCTIONS[name](kappa, 5)

    expected = function(kappa.double()).float()
    slope = torch.func.vmap(torch.func.grad(function))(kappa.double()).float()
    ones = torch.ones_like(kappa)
    torch.testing.assert_close(function(kappa), expected)
    torch.testing.assert_close(torch.func.vmap(function)(kappa), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(function))(kappa), slope)
    torch.testing.assert_close(torch.func.jvp(function, (kappa,), (ones,)), (expected, slope))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(forward_ad.make_dual(kappa, ones)))
    torch.testing.assert_close((dual.primal, dual.tangent), (expected, slope))


@needs_library
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compiled(calls: list[bytes]) -> None:
    kappa = torch.tensor([0.0, 0.3, 20.0, 4000.0], requires_grad=True)
    for function in FUNCTIONS.values():
        compiled = torch.compile(
            lambda k, function=function: function(k, 5), fullgraph=True, backend="aot_eager"
        )
        (slope,) = torch.autograd.grad(compiled(kappa).sum(), kappa)
        assert not calls
        (expected,) = torch.autograd.grad(function(kappa, 5).sum(), kappa)
        torch.testing.assert_close(slope, expected)
        calls.clear()


@needs_library
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_of_gradients(name: str) -> None:
    kappa = torch.tensor([0.5, 3.0], requires_grad=True)
    value = FUNCTIONS[name](kappa, 5)
    (jacobian,) = torch.autograd.grad(value, kappa, torch.eye(2), is_grads_batched=True, retain_graph=True)
    (slope,) = torch.autograd.grad(value.sum(), kappa)
    torch.testing.assert_close(jacobian, slope.diag())


@needs_library
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (17,), (3, 0, 2), (5, 7)])
def test_shapes(name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    kappa = torch.rand(shape).requires_grad_()
    value = FUNCTIONS[name](kappa, 6)
    (slope,) = torch.autograd.grad(value.sum(), kappa)
    fused.switch_off(monkeypatch)
    expected = FUNCTIONS[name](kappa, 6)
    (expected_slope,) = torch.autograd.grad(expected.sum(), kappa)
    torch.testing.assert_close(value, expected, rtol=2e-6, atol=0)
    torch.testing.assert_close(slope, expected_slope, rtol=2e-6, atol=0)


@needs_library
def test_negative_views() -> None:
    negative = torch.conj(torch.complex(torch.zeros(3), -torch.rand(3))).imag
    assert negative.is_neg()
    torch.testing.assert_close(bessel.bessel_ratio(negative, 3), bessel.bessel_ratio(negative.clone(), 3))


@needs_library
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_do_not_depend_on_the_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kappa = torch.rand(30_001) * 60
    results = []
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr(library, "threads", lambda count, per_thread, threads=threads: threads)
        results.append(FUNCTIONS[name](kappa, 5))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_threads_have_enough_to_do() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert [library.threads(count << 15, 1 << 15) for count in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 4]
        torch.set_num_threads(1)
        assert library.threads(1 << 30, 1 << 15) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_switched_off() -> None:
    code = """
        import torch
        from powerspherical.special import bessel, gamma
        from powerspherical.special._elementary import runs_fused
        kappa = torch.tensor([0.0, 1.0], requires_grad=True)
        assert not runs_fused(kappa)
        for function in (bessel.exponential_relative_entropy, gamma.power_relative_entropy):
            function(kappa, 3).sum().backward()
        print([round(x, 5) for x in kappa.grad.tolist()])  # 1 - 1/sinh² 1 + 1/4
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, env={**os.environ, library.SWITCH: "0"},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == "[0.0, 0.52594]\n"
