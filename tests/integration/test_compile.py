"""torch.compile(fullgraph=True) of the whole public API: the numbers and gradients of eager code."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import kl, kl_divergence

from helpers.examples import directions, families
from helpers.members import DRAWS, EVERY, EVERY_ID, MEMBERS
from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher, special
from powerspherical.families import _precise, _tail_quadrature

# Dynamo makes an instance of torch.autograd.Function to trace one.
pytestmark = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")

#: Asymptotic series need no recurrence at this dimension: the traces are short and the tests quick.
DIM = 48

#: What takes long to trace, and is made of what other cases trace.
SLOW = {
    "PowerSpherical KL from PS",
    "PowerSpherical marginal.cdf",
    "PowerSpherical marginal.icdf",
    "PowerSpherical marginal.log_sf",
    "VonMisesFisher KL from PS",
    "VonMisesFisher KL from uniform",
    "VonMisesFisher KL from vMF",
    "VonMisesFisher KL to PS",
    "VonMisesFisher cap_angle",
    "VonMisesFisher cap_probability",
    "VonMisesFisher covariance_matrix",
    "VonMisesFisher from_kl",
    "VonMisesFisher marginal.cdf",
    "VonMisesFisher marginal.entropy",
    "VonMisesFisher marginal.log_sf",
}


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def _one_step(monkeypatch) -> None:
    """A trace repeats each step of an iteration; one is enough to see that it can be traced."""
    monkeypatch.setattr(_precise, "_SEARCH_STEPS", 1)
    monkeypatch.setattr(_precise, "_REFINEMENTS", 1)
    monkeypatch.setattr(_precise, "_ENTROPY_STEPS", 1)
    monkeypatch.setattr(_tail_quadrature, "_NEWTON_STEPS", 1)


def compiled(function: Callable, **options) -> Callable:
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def leaves(*batch: int, dim: int = DIM, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    kappa = torch.linspace(0.5, 40.0, batch[0], dtype=dtype) if batch else torch.tensor(4.0, dtype=dtype)
    return directions(*batch, dim, dtype=dtype).requires_grad_(), kappa.requires_grad_()


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    value = function(*inputs)
    return value, *torch.autograd.grad(value.sum(), inputs, materialize_grads=True)


def assert_compiles(function: Callable[..., Tensor], *inputs: Tensor, **options) -> None:
    actual = with_gradients(compiled(function, **options), *inputs)
    torch.testing.assert_close(actual, with_gradients(function, *inputs))


@pytest.mark.slow
@pytest.mark.usefixtures("_one_step")
@pytest.mark.parametrize(
    ("family", "member"),
    [
        pytest.param(family, member, id=name)
        for (family, _, member), name in zip(EVERY, EVERY_ID, strict=True)
        if name not in SLOW
    ],
)
def test_member(family: type, member: Callable) -> None:
    assert_compiles(lambda loc, kappa: member(family(loc, kappa, validate_args=False)), *leaves(3))


@families
@pytest.mark.parametrize("name", DRAWS)
def test_draws(family: type, name: str) -> None:
    """The seed that gives a draw in eager code gives it here; equal calls differ, and the gradients are finite."""

    def draws(loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        q = family(loc, kappa, validate_args=False)
        return DRAWS[name](q), DRAWS[name](q)

    loc, kappa = leaves(3)
    first, second = compiled(draws)(loc, kappa)
    expected = DRAWS[name](family(loc, kappa))
    assert (first.shape, first.dtype, first.requires_grad) == (
        expected.shape,
        expected.dtype,
        name != "sample",
    )
    assert not (first == second).flatten(1).all(1).any()
    if "marginal" in name:
        assert (first.abs() <= 1).all()
    else:
        torch.testing.assert_close(first.norm(dim=-1), torch.ones(2, 3))
    if first.requires_grad:
        for gradient in torch.autograd.grad(
            first.square().cumsum(-1).sum(), (loc, kappa), materialize_grads=True
        ):
            assert gradient.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("validate_args", [None, True])
def test_validation_is_left_out(validate_args: bool | None) -> None:
    """The graph has no place for a look at the values: neither an error nor a break."""

    def scores(loc: Tensor, kappa: Tensor, x: Tensor) -> Tensor:
        p = PowerSpherical(loc, kappa, validate_args=validate_args)
        return p.log_prob(x) + HypersphericalUniform(DIM, validate_args=validate_args).log_prob(x)

    loc, kappa = leaves(3)
    x = directions(3, DIM, dtype=torch.float32, seed=2).requires_grad_()
    assert_compiles(scores, loc, kappa, x)
    assert compiled(scores)(2 * loc, kappa, x).shape == (3,)


def test_wrong_shapes_raise() -> None:
    with pytest.raises((ValueError, torch._dynamo.exc.TorchDynamoException), match="broadcast"):
        compiled(lambda loc, kappa: PowerSpherical(loc, kappa).entropy())(directions(4, 3), torch.ones(2))


def test_number_as_concentration() -> None:
    loc, _ = leaves(3)
    assert_compiles(lambda loc: PowerSpherical(loc, 4.0, validate_args=False).mean, loc)


@pytest.mark.skipif(
    torch.__version__ < "2.13",
    reason="this torch cannot trace the expand of its own distributions",
)
def test_uniform() -> None:
    def moments(x: Tensor) -> Tensor:
        prior = HypersphericalUniform(DIM, validate_args=False).expand((3,))
        return prior.log_prob(x) + prior.entropy() + (prior.mean + prior.variance).sum(-1)

    def draws(x: Tensor) -> tuple[Tensor, Tensor]:
        prior = HypersphericalUniform(DIM, validate_args=False).expand((3,))
        return prior.rsample((2,)), prior.sample((2,)) * x

    x = directions(3, DIM, dtype=torch.float32)
    torch.testing.assert_close(compiled(moments)(x), moments(x))
    first, _ = compiled(draws)(x)
    torch.testing.assert_close(first.norm(dim=-1), torch.ones(2, 3))


@pytest.mark.slow
def test_numbers_of_draws_that_are_dynamic() -> None:
    """A size of another tensor as the sample shape, an integer or in a sequence."""
    posterior, prior = PowerSpherical(directions(3, DIM), 4.0), HypersphericalUniform(DIM)

    def draws(x: Tensor) -> tuple[Tensor, ...]:
        count = x.shape[0]
        return posterior.rsample(count), posterior.marginal.sample([count, 2]), prior.sample(count)

    function = compiled(draws, dynamic=True)
    for count in (3, 7):
        shapes = [draw.shape for draw in function(torch.zeros(count))]
        assert shapes == [(count, 3, DIM), (count, 2, 3), (count, DIM)]


@pytest.mark.slow
def test_circle() -> None:
    """Here the Bessel functions have their own expansion for large κ."""

    def loss(loc: Tensor, kappa: Tensor) -> Tensor:
        q = VonMisesFisher(loc, kappa, validate_args=False)
        return MEMBERS["log_prob"](q) + MEMBERS["KL to uniform"](q)

    assert_compiles(loss, *leaves(3, dim=2))


def step(loc: Tensor, kappa: Tensor) -> Tensor:
    """What a training step does with a latent."""
    q = PowerSpherical(loc, kappa, validate_args=False)
    prior = HypersphericalUniform(loc.shape[-1], validate_args=False)
    return q.rsample().sum(-1).exp() + q.log_prob(loc.detach().roll(1, -1)) + kl_divergence(q, prior)


def seeded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Tensor) -> Tensor:
        torch.manual_seed(3)
        return function(*args)

    return run


@pytest.mark.slow
def test_another_dimension() -> None:
    """The formulas are built for one d: another one is another graph, with its own numbers."""
    function = seeded(compiled(step))
    for dim in (DIM, DIM + 2, DIM):
        torch.testing.assert_close(
            with_gradients(function, *leaves(3, dim=dim)), with_gradients(seeded(step), *leaves(3, dim=dim))
        )


@pytest.mark.slow
def test_batch_sizes_share_a_graph() -> None:
    """The second size makes the graph dynamic, and the third needs no other."""
    function = seeded(compiled(step))
    for size in (3, 4):
        with_gradients(function, *leaves(size))
    with torch.compiler.set_stance("fail_on_recompile"):
        actual = with_gradients(function, *leaves(17))
    torch.testing.assert_close(actual, with_gradients(seeded(step), *leaves(17)))


def test_divergences_compile_once(monkeypatch) -> None:
    """In a new process torch's table of divergences is empty. A graph that fills it would be compiled again."""
    monkeypatch.setattr(kl, "_KL_MEMOIZE", {})
    prior = HypersphericalUniform(DIM)

    def rate(family: type) -> Callable:
        return compiled(lambda loc, kappa: kl_divergence(family(loc, kappa, validate_args=False), prior))

    functions = [rate(PowerSpherical), rate(VonMisesFisher)]
    first = [function(*leaves(3)) for function in functions]
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close([function(*leaves(3)) for function in functions], first)


@pytest.mark.slow
@families
def test_shapes_declared_dynamic(family: type) -> None:
    """dynamic=True makes symbols of all numbers that are not in the code itself, math.pi among them."""

    def score(loc: Tensor, kappa: Tensor) -> Tensor:
        return family(loc, kappa, validate_args=False).log_prob(loc.detach().roll(1, -1))

    assert_compiles(score, *leaves(3, dim=5), dynamic=True)


#: Those that no member above is made of.
SPECIAL = {
    "log_bessel_i": lambda k: special.log_bessel_i(23.5, k),
    "mean_log1p": lambda k: special.mean_log1p(k, DIM),
    "trigamma_difference": lambda k: special.trigamma_difference(k, DIM),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str) -> None:
    assert_compiles(SPECIAL[name], leaves(3)[1])


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # its own use
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
def test_inductor() -> None:
    loc, kappa = leaves(64)
    function = torch.compile(step, fullgraph=True)  # of a draw, a density and a divergence
    actual, *gradients = with_gradients(function, loc, kappa)
    assert not torch.equal(actual, function(loc, kappa))
    assert all(gradient.isfinite().all() for gradient in gradients)

    closed_form = torch.compile(
        lambda q_loc, q_kappa: MEMBERS["log_prob"](VonMisesFisher(q_loc, q_kappa)), fullgraph=True
    )
    torch.testing.assert_close(closed_form(loc, kappa), MEMBERS["log_prob"](VonMisesFisher(loc, kappa)))
