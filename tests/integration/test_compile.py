"""torch.compile(fullgraph=True) of the whole public API: the numbers and gradients of eager code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import kl, kl_divergence

from helpers.examples import FAMILIES, IDS, directions, families
from helpers.members import DRAWS, MEMBERS, Member, members, naming
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    ProductOfSpheres,
    SphericalCauchy,
    VonMisesFisher,
    special,
)
from powerspherical._torch import TORCH, operators
from powerspherical._torch.private import PUBLIC_ONLY

# Dynamo makes an instance of torch.autograd.Function to trace one.
pytestmark = pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")

#: Asymptotic series need no recurrence at this dimension: the traces are short and the tests quick.
DIM = 48

#: Members that are traced for one family only: what they run is the same for all families, or each family's part of it
#: is run by a member that all have. Where the choice is free, it is the family whose trace is shortest.
ONLY: dict[str, type] = {
    **dict.fromkeys(
        ("mean", "covariance_matrix", "log_prob_matrix", "pairwise_kl", "entropy", "from_mean_length"),
        PowerSpherical,
    ),
    **dict.fromkeys(("marginal.mean", "marginal.cdf", "KL to vMF"), PowerSpherical),
    **dict.fromkeys(("log_prob", "marginal.entropy", "marginal.variance", "KL to Cauchy"), VonMisesFisher),
    **dict.fromkeys(("marginal.icdf", "cap_angle"), VonMisesFisher),
    **dict.fromkeys(("variance", "log_normalizer", "marginal.log_prob", "from_kl"), SphericalCauchy),
    **dict.fromkeys(("KL to PS", "KL from uniform", "marginal.log_sf", "cap_probability"), SphericalCauchy),
}


#: What the compiler of torch 2.6 refuses in the backward pass of an autograd function. Later ones refuse less.
REFUSED = ["data", "layout", "requires_grad", *(name for name in dir(Tensor) if name.startswith("is_"))]


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    with (
        torch._dynamo.config.patch(_autograd_backward_strict_mode_banned_ops=REFUSED),
        # Otherwise torch 2.6 searches large graphs for hours.
        torch._functorch.config.patch(ban_recompute_used_far_apart=TORCH >= (2, 8)),
    ):
        yield
    torch.compiler.reset()


def compiled(function: Callable, **options) -> Callable:
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def leaves(*batch: int, dim: int = DIM, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    kappa = torch.linspace(0.5, 40.0, batch[0], dtype=dtype) if batch else torch.tensor(4.0, dtype=dtype)
    return directions(*batch, dim, dtype=dtype).requires_grad_(), kappa.requires_grad_()


def gradients_of_sum(values: Iterable[Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    total = sum(value.sum() for value in values)
    return torch.autograd.grad(total, inputs, materialize_grads=True, retain_graph=True)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    value = function(*inputs)
    return value, *torch.autograd.grad(value.sum(), inputs, materialize_grads=True)


def assert_compiles(function: Callable[..., Tensor], *inputs: Tensor, **options) -> None:
    actual = with_gradients(compiled(function, **options), *inputs)
    torch.testing.assert_close(actual, with_gradients(function, *inputs))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dim"), list(zip(FAMILIES, [DIM, 3, DIM], strict=True)), ids=IDS)
def test_members(family: type, dim: int) -> None:
    """All in one graph. If it fails, each is compiled by itself.

    At d = 3 quantiles have closed forms. The search for others is in ``test_draws_with_explicit_noise``.
    """
    chosen = {name: member for name, member in members(family).items() if ONLY.get(name, family) is family}
    inputs = leaves(3, dim=dim)

    def assert_graph(chosen: dict[str, Member]) -> None:
        def function(loc: Tensor, kappa: Tensor) -> dict[str, Tensor]:
            q = family(loc, kappa, validate_args=False)
            return {name: member(q) for name, member in chosen.items()}

        found, expected = compiled(function)(*inputs), function(*inputs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(gradients_of_sum(x.values(), inputs) for x in (found, expected)))

    try:
        assert_graph(chosen)
    except Exception:
        for name, member in chosen.items():
            with naming(name):
                torch.compiler.reset()
                assert_graph({name: member})
        raise


@families
def test_draws(family: type) -> None:
    """Equal calls differ, and the gradients are finite."""

    def draws(loc: Tensor, kappa: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        q = family(loc, kappa, validate_args=False)
        return {name: (draw(q), draw(q)) for name, draw in DRAWS.items()}

    inputs = leaves(3)
    for name, (first, second) in compiled(draws)(*inputs).items():
        expected = DRAWS[name](family(*inputs))
        assert (first.shape, first.dtype) == (expected.shape, expected.dtype)
        assert first.requires_grad == (name != "sample")
        assert not (first == second).flatten(1).all(1).any()
        if "marginal" in name:
            assert (first.abs() <= 1).all()
        else:
            torch.testing.assert_close(first.norm(dim=-1), torch.ones(2, 3))
        if first.requires_grad:
            for gradient in gradients_of_sum([first.square().cumsum(-1)], inputs):
                assert gradient.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dim"), [*((family, 3) for family in FAMILIES), (PowerSpherical, 4)])
def test_draws_with_explicit_noise(family: type, dim: int) -> None:
    noise = torch.randn(3, dim)

    def draw(loc: Tensor, kappa: Tensor) -> Tensor:
        return family(loc, kappa, validate_args=False).rsample(noise=noise)[..., 0]

    assert_compiles(draw, *leaves(3, dim=dim))


@pytest.mark.slow
def test_products() -> None:
    kl._KL_MEMOIZE.clear()  # so that the choice of the divergence is traced too
    p = ProductOfSpheres(PowerSpherical(directions(2, 3, 4), torch.tensor([0.0, 1.0, 20.0]).double()))
    uniform = ProductOfSpheres(HypersphericalUniform(4).expand((3,)))

    def step() -> tuple[Tensor, ...]:
        x = p.rsample()
        return x, p.log_prob(x), p.entropy(), kl_divergence(p, uniform)

    x, *closed_forms = compiled(step)()
    torch.testing.assert_close(closed_forms, [p.log_prob(x), p.entropy(), kl_divergence(p, uniform)])


@pytest.mark.parametrize("validate_args", [None, True])
def test_validation_is_left_out(validate_args: bool | None) -> None:
    """The graph has no place for a look at the values: neither an error nor a break."""

    def scores(loc: Tensor, kappa: Tensor, x: Tensor) -> Tensor:
        p = SphericalCauchy(loc, kappa, validate_args=validate_args)
        return p.log_prob(x) + HypersphericalUniform(DIM, validate_args=validate_args).log_prob(x)

    loc, kappa = leaves(3)
    x = directions(3, DIM, dtype=torch.float32, seed=2).requires_grad_()
    assert_compiles(scores, loc, kappa, x)
    assert compiled(scores)(2 * loc, kappa, x).shape == (3,)


def test_wrong_shapes_raise() -> None:
    with pytest.raises((ValueError, torch._dynamo.exc.TorchDynamoException), match="broadcast"):
        compiled(lambda loc, kappa: PowerSpherical(loc, kappa).entropy())(directions(4, 3), torch.ones(2))


def test_tails() -> None:
    """Their backward passes are written by hand."""
    loc, kappa = leaves(3)
    t = torch.tensor([-0.2, 0.3, 0.6], requires_grad=True)
    assert_compiles(
        lambda kappa, t: PowerSpherical(loc, kappa, validate_args=False).marginal.cdf(t), kappa, t
    )


def test_number_as_concentration() -> None:
    loc, _ = leaves(3)
    assert_compiles(lambda loc: PowerSpherical(loc, 4.0, validate_args=False).mean, loc)


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="this torch cannot trace the expand of its own distributions"
)
def test_uniform() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        prior = HypersphericalUniform(DIM, validate_args=False).expand((3,))
        moments = prior.log_prob(x) + prior.entropy() + (prior.mean + prior.variance).sum(-1)
        return moments, prior.rsample((2,)), prior.sample((2,)) * x

    x = directions(3, DIM, dtype=torch.float32)
    moments, draws, _ = compiled(function)(x)
    torch.testing.assert_close(moments, function(x)[0])
    torch.testing.assert_close(draws.norm(dim=-1), torch.ones(2, 3))


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


def step(loc: Tensor, kappa: Tensor) -> Tensor:
    """What a training step does with a latent, and a function of κ that is read from a table."""
    q = PowerSpherical(loc, kappa, validate_args=False)
    prior = HypersphericalUniform(loc.shape[-1], validate_args=False)
    return q.rsample().sum(-1).exp() + q.entropy() + kl_divergence(q, prior)


def seeded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Tensor) -> Tensor:
        torch.manual_seed(3)
        return function(*args)

    return run


@pytest.mark.slow
def test_batch_sizes_share_a_graph_and_dimensions_do_not() -> None:
    """The second size makes the graph dynamic, and the third needs no other. The formulas are built for one d."""
    function = seeded(compiled(step))
    for size in (3, 4):
        with_gradients(function, *leaves(size))
    with torch.compiler.set_stance("fail_on_recompile"):
        actual = with_gradients(function, *leaves(17))
    torch.testing.assert_close(actual, with_gradients(seeded(step), *leaves(17)))
    for dim in (DIM + 2, DIM):
        inputs = leaves(3, dim=dim)
        torch.testing.assert_close(with_gradients(function, *inputs), with_gradients(seeded(step), *inputs))


@pytest.mark.skipif(
    PUBLIC_ONLY, reason="without the private table of divergences, a second graph is compiled"
)
def test_divergences_compile_once() -> None:
    """In a new process torch's table of divergences is empty. A graph that fills it would be compiled again."""
    kl._KL_MEMOIZE.clear()
    prior = HypersphericalUniform(DIM)

    def rate(family: type) -> Callable:
        return compiled(lambda loc, kappa: kl_divergence(family(loc, kappa, validate_args=False), prior))

    functions = [rate(PowerSpherical), rate(VonMisesFisher)]
    first = [function(*leaves(3)) for function in functions]
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close([function(*leaves(3)) for function in functions], first)


@families
def test_densities(family: type) -> None:
    """dynamic=True makes symbols of all numbers that are not in the code itself, math.pi among them."""

    def score(loc: Tensor, kappa: Tensor) -> Tensor:
        return family(loc, kappa, validate_args=False).log_prob(loc.detach().roll(1, -1))

    assert_compiles(score, *leaves(3, dim=5), dynamic=True)


def test_special_functions() -> None:
    """Those that no member above is made of. ``special/test_curves.py`` compiles others."""

    def function(k: Tensor) -> Tensor:
        return special.log_bessel_i(23.5, k) + special.mean_log1p(k, DIM)

    assert_compiles(function, leaves(3)[1])


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)  # torch's own
@pytest.mark.filterwarnings("ignore:FX graph cache copying:UserWarning")  # on a busy machine
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
def test_inductor() -> None:
    """Draws, densities, a divergence and their gradients. All other tests stop before code is generated."""
    inputs = leaves(64)

    def function(loc: Tensor, kappa: Tensor) -> tuple[Tensor, ...]:
        draws = [family(loc, kappa).rsample() for family in (*FAMILIES, PowerSpherical)]
        q = VonMisesFisher(loc, kappa)
        return MEMBERS["log_prob"](q) + MEMBERS["KL to uniform"](q), *draws

    score, *draws = torch.compile(function, fullgraph=True)(*inputs)
    torch.testing.assert_close(score, function(*inputs)[0])
    together = torch.cat(draws)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(len(together)))
    assert len(together.unique(dim=0)) == len(together)
    for value in (score, *(x[..., 0].exp() for x in draws)):
        for gradient in torch.autograd.grad(value.sum(), inputs, retain_graph=True):
            assert gradient.isfinite().all()
            assert (gradient != 0).any()


def test_graphs_on_disk_are_not_used_with_other_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They hold our functions as operators, under the digest of the package."""
    monkeypatch.setattr(operators, "_PACKAGE", tmp_path)
    digests = set()
    for code in ("x = 1", "x = 2"):
        (tmp_path / "module.py").write_text(code)
        digests.add(operators._digest.__wrapped__())
    assert len(digests) == 2
