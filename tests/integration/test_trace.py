"""``torch.jit.trace``, and draws on the meta device: neither may read values, and the first has tensors as sizes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from helpers.examples import DOUBLE, FLOAT, directions, dtypes, families
from helpers.members import MOMENTS, SMOOTH
from powerspherical import HypersphericalUniform, VonMisesFisher

#: pytest puts its own filter of warnings before that of the package.
pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning:powerspherical")

dims = pytest.mark.parametrize("dim", [2, 3, 5, 20])


def traced(function, *inputs: Tensor):
    return torch.jit.trace(function, inputs, check_trace=False)


def parameters(rows: int, dim: int, dtype: torch.dtype = DOUBLE, seed: int = 1) -> tuple[Tensor, Tensor]:
    kappa = torch.linspace(0.5, 6.0, rows, dtype=dtype)
    return directions(rows, dim, dtype=dtype, seed=seed).requires_grad_(), kappa.requires_grad_()


def results(function, inputs: tuple[Tensor, Tensor]) -> list[Tensor | None]:
    """The value and the gradients of its weighted sum."""
    value = function(*inputs)
    weights = torch.arange(value.numel(), dtype=value.dtype).cos().reshape(value.shape)
    return [value, *torch.autograd.grad((weights * value).sum(), inputs, allow_unused=True)]


def assert_equal(first: list[Tensor | None], second: list[Tensor | None]) -> None:
    for a, b in zip(first, second, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.slow
@families
@pytest.mark.parametrize("name", sorted((SMOOTH | MOMENTS).keys() - {"from_kl", "from_mean_length"}))
def test_closed_forms(family: type, name: str) -> None:
    """A trace has the values and gradients of eager mode, for other parameters and another number of rows too."""

    def function(loc: Tensor, kappa: Tensor) -> Tensor:
        return (SMOOTH | MOMENTS)[name](family(loc, kappa))

    trace = traced(function, *parameters(6, 5))
    for inputs in (parameters(6, 5), parameters(6, 5, seed=2), parameters(4, 5, seed=3)):
        for _ in range(2):  # from the second call on, the interpreter runs an optimised graph
            assert_equal(results(trace, inputs), results(function, inputs))
        with torch.no_grad():
            torch.testing.assert_close(trace(*inputs), function(*inputs))


@families
@dtypes
@dims
def test_draws(family: type, dtype: torch.dtype, dim: int) -> None:
    """They use the random numbers of eager mode, so that draws and gradients agree."""

    def function(loc: Tensor, kappa: Tensor) -> Tensor:
        return family(loc, kappa).rsample((3,))

    trace = traced(function, *parameters(6, dim, dtype))
    for inputs in (parameters(6, dim, dtype), parameters(4, dim, dtype, seed=2)):
        for seed in range(3):
            torch.manual_seed(seed)
            first = results(trace, inputs)
            torch.manual_seed(seed)
            assert_equal(first, results(function, inputs))
        assert (trace(*inputs) != trace(*inputs)).any()
        with torch.no_grad():
            assert trace(*inputs).shape == (3, len(inputs[0]), dim)


@families
def test_trace_without_gradients(family: type) -> None:
    loc, kappa = (x.detach() for x in parameters(6, 5))

    def function(loc: Tensor, kappa: Tensor) -> Tensor:
        q = family(loc, kappa)
        return q.log_prob(q.sample()) + q.entropy() + q.marginal.sample()

    for trace in (traced(function, loc, kappa), torch.no_grad()(traced)(function, loc, kappa)):
        torch.manual_seed(0)
        first = trace(loc[:4], kappa[:4])
        torch.manual_seed(0)
        torch.testing.assert_close(first, function(loc[:4], kappa[:4]))


@families
def test_one_parameter_for_all_rows(family: type) -> None:
    def function(loc: Tensor) -> Tensor:
        q = family(loc, 3.0)
        return q.log_prob(q.rsample((2,))) + kl_divergence(q, HypersphericalUniform(5))

    loc = directions(6, 5)
    trace = traced(function, loc)
    assert trace(loc).shape == (2, 6)
    assert trace(loc[:4]).shape == (2, 4)


@families
def test_draws_of_constant_parameters(family: type) -> None:
    """They are neither folded into a constant nor merged."""
    loc = directions(6, 5)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        q = family(loc, 3.0)
        return q.sample() + 0 * x, q.sample() + 0 * x

    trace = traced(function, torch.zeros(()))
    seen = [draw for _ in range(4) for draw in trace(torch.zeros(()))]
    assert len(torch.stack(seen).unique(dim=0)) == 8


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # torch.autograd.grad compares sizes too
def test_gradient_inside_the_trace() -> None:
    """torch cannot record most gradients, and raises."""

    def function(loc: Tensor, kappa: Tensor) -> Tensor:
        return torch.autograd.grad(VonMisesFisher(loc, kappa).rsample().sum(), kappa)[0]

    with pytest.raises(NotImplementedError, match="cannot be differentiated inside"):
        traced(function, *parameters(6, 5))


def test_uniform() -> None:
    def function(x: Tensor) -> Tensor:
        prior = HypersphericalUniform(5, dtype=DOUBLE).expand(x.shape[:-1])
        return prior.log_prob(x) + prior.entropy() + 0 * prior.rsample().sum(-1)

    trace = traced(function, directions(6, 5))
    torch.testing.assert_close(trace(directions(4, 5)), torch.zeros(4, dtype=DOUBLE))

    draw = traced(lambda x: HypersphericalUniform(5).sample(x.shape[:1]), directions(6, 5))
    assert draw(directions(4, 5)).shape == (4, 5)
    assert (draw(directions(4, 5)) != draw(directions(4, 5))).any()


@pytest.mark.parametrize("dim", [torch.tensor(3), torch.tensor([3])])
def test_tensors_are_no_dimensions(dim: Tensor) -> None:
    with pytest.raises(ValueError, match="dim must be an integer ≥ 2"):
        HypersphericalUniform(dim)


@pytest.mark.slow
def test_no_warnings() -> None:
    """The package silences the tracer about its own comparisons of sizes."""
    code = """if True:
        import warnings
        import torch
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch.jit.trace itself
        from torch.distributions import kl_divergence
        from powerspherical import HypersphericalUniform, VonMisesFisher

        def function(loc, kappa):
            q = VonMisesFisher(loc, kappa)
            p = HypersphericalUniform(4)
            return q.log_prob(q.rsample((2,))) + kl_divergence(q, p) + p.log_prob(p.sample())

        torch.jit.trace(function, (torch.eye(4), torch.ones(4)), check_trace=False)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@families
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, torch.bfloat16])
@dims
def test_draws_on_the_meta_device(family: type, dtype: torch.dtype, dim: int) -> None:
    loc = torch.empty(6, dim, dtype=dtype, device="meta", requires_grad=True)
    kappa = torch.empty(6, dtype=dtype, device="meta", requires_grad=True)
    q = family(loc, kappa)
    for x in (q.rsample((2, 3)), q.sample((2, 3)), torch.no_grad()(q.rsample)((2, 3))):
        assert (x.device.type, x.dtype, x.shape) == ("meta", dtype, (2, 3, 6, dim))
    q.rsample((2, 3)).sum().backward()
    for parameter in (loc, kappa):
        assert (parameter.grad.device.type, parameter.grad.dtype) == ("meta", dtype)
        assert parameter.grad.shape == parameter.shape
    assert q.marginal.rsample((2,)).shape == (2, 6)


def test_uniform_on_the_meta_device() -> None:
    x = HypersphericalUniform(5, device="meta").sample((3,))
    assert (x.device.type, x.shape) == ("meta", (3, 5))
