"""torch.func: batches by vmap, gradients by grad and jacrev, and their compositions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from helpers.examples import DOUBLE, directions, families
from helpers.members import CLOSEST, DRAWS, EVERY, EVERY_ID, MOMENTS, SMOOTH, TAILS
from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, ExponentialFamily, Family

DIM = 5

every = pytest.mark.parametrize(("family", "name", "member"), EVERY, ids=EVERY_ID)


def parameters() -> tuple[Tensor, Tensor]:
    return directions(4, DIM), torch.tensor([0.01, 0.7, 4.0, 60.0], dtype=DOUBLE)


def of(family: type, member: Callable) -> Callable[[Tensor, Tensor], Tensor]:
    """The member as a function of the parameters; the values are not looked at under a transform."""
    return lambda loc, kappa: member(family(loc, kappa, validate_args=True))


def weighted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Its sum, with weights that are not all equal."""
    return lambda *args: (lambda y: (y * torch.arange(1.0, y.numel() + 1).view_as(y)).sum())(function(*args))


@every
def test_vmap(family: type, name: str, member: Callable) -> None:
    function, (loc, kappa) = of(family, member), parameters()
    expected = function(loc, kappa)
    torch.testing.assert_close(vmap(function)(loc, kappa), expected)
    # One parameter batched, the other not; and the batch at another place than the first.
    one = function(loc, kappa[1].expand(4))
    torch.testing.assert_close(vmap(function, in_dims=(1, None))(loc.T, kappa[1]), one)
    torch.testing.assert_close(vmap(function, in_dims=(None, 0))(loc[2], kappa)[2], expected[2])


@every
def test_grad_and_its_vmap(family: type, name: str, member: Callable) -> None:
    function, (loc, kappa) = weighted(of(family, member)), parameters()
    rows = [loc.clone().requires_grad_(), kappa.clone().requires_grad_()]
    total = sum(function(*row) for row in zip(*rows, strict=True))
    expected = torch.autograd.grad(total, rows, materialize_grads=True)
    gradient = grad(function, argnums=(0, 1))
    torch.testing.assert_close(vmap(gradient)(loc, kappa), expected)
    torch.testing.assert_close(gradient(loc[1], kappa[1]), tuple(e[1] for e in expected))
    torch.testing.assert_close(vmap(jacrev(function, argnums=(0, 1)))(loc, kappa), expected)


@families
@pytest.mark.parametrize("name", [*SMOOTH, "mean"])
def test_second_derivatives(family: type, name: str) -> None:
    """jacrev of jacrev: in κ as finite differences of the first derivative give it, and as autograd gives them."""
    function = weighted(of(family, (SMOOTH | MOMENTS)[name]))
    loc, kappa = (p[1] for p in parameters())
    second = jacrev(jacrev(function, argnums=(0, 1)), argnums=(0, 1))(loc, kappa)
    step = 1e-4
    slope = [grad(function, argnums=1)(loc, kappa + shift) for shift in (step, -step)]
    torch.testing.assert_close(second[1][1], (slope[0] - slope[1]) / (2 * step), rtol=1e-5, atol=1e-8)
    leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
    expected = torch.autograd.functional.hessian(function, leaves)
    torch.testing.assert_close(second, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "inverse",
    [
        lambda x: Family.concentration_from_mean_cosine(SPHERICAL_CAUCHY, x, 1 - x, DIM),
        lambda x: Family.concentration_from_relative_entropy(SPHERICAL_CAUCHY, x, DIM),
        lambda x: ExponentialFamily.concentration_from_mean_statistic(POWER_SPHERICAL, -x, DIM),
    ],
    ids=["mean_cosine", "relative_entropy", "mean_statistic"],
)
def test_inverses_of_any_family(inverse: Callable[[Tensor], Tensor]) -> None:
    """Those that a family has by default."""
    x = torch.tensor([0.1, 0.5, 0.9], dtype=DOUBLE, requires_grad=True)
    (expected,) = torch.autograd.grad(inverse(x).sum(), x)
    torch.testing.assert_close(vmap(grad(inverse))(x.detach()), expected)
    torch.testing.assert_close(vmap(inverse)(x.detach()), inverse(x.detach()))


@families
@pytest.mark.parametrize("name", TAILS)
def test_no_wrong_second_derivatives(family: type, name: str) -> None:
    """What is differentiable once says so, where a second derivative of zero would be a wrong number."""
    function = of(family, TAILS[name])
    loc, kappa = (p[1] for p in parameters())
    with pytest.raises((RuntimeError, NotImplementedError), match=r"once|twice|second"):
        jacrev(jacrev(function, argnums=1), argnums=1)(loc, kappa)
    leaf = kappa.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(loc, leaf) + leaf.square(), leaf, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"once|twice|second"):
        torch.autograd.grad(slope, leaf)


@families
@pytest.mark.parametrize("name", DRAWS)
def test_draws_differ_along_the_batch(family: type, name: str) -> None:
    loc, kappa = directions(DIM), torch.tensor(4.0, dtype=DOUBLE)
    draw = of(family, DRAWS[name])
    shared = vmap(lambda _: draw(loc, kappa), randomness="different")(torch.zeros(6))
    own = vmap(draw, randomness="different")(loc.expand(6, -1), kappa.expand(6))
    for x in (shared, own):
        assert x.shape == (6, *draw(loc, kappa).shape)
        assert len(x.flatten(1).unique(dim=0)) == 6


@families
@pytest.mark.parametrize("name", ["rsample", "marginal.rsample"])
def test_gradients_of_draws(family: type, name: str) -> None:
    """The same draws give the same gradients, one by one and in a batch."""
    loc, kappa = parameters()
    loss = weighted(of(family, DRAWS[name]))

    def batched(loc: Tensor, kappa: Tensor) -> Tensor:
        return vmap(loss, randomness="different")(loc, kappa).sum()

    torch.manual_seed(5)
    first = vmap(grad(loss, argnums=(0, 1)), randomness="different")(loc, kappa)
    torch.manual_seed(5)
    torch.testing.assert_close(grad(batched, argnums=(0, 1))(loc, kappa), first)
    assert all(g.isfinite().all() for g in first)
    assert (first[1] != 0).all()


def test_uniform() -> None:
    prior = HypersphericalUniform(DIM, dtype=DOUBLE, validate_args=True)
    x = directions(4, DIM)
    torch.testing.assert_close(vmap(prior.log_prob)(x), prior.log_prob(x))
    torch.testing.assert_close(grad(prior.log_prob)(x[0]), torch.zeros(DIM, dtype=DOUBLE))
    draws = vmap(lambda _: prior.sample((2,)), randomness="different")(x)
    assert draws.shape == (4, 2, DIM)
    assert len(draws.flatten(1).unique(dim=0)) == 4


def test_expand_under_vmap() -> None:
    draws = vmap(lambda loc: PowerSpherical(loc, 3.0).expand((2,)).rsample(), randomness="different")(
        directions(4, DIM)
    )
    assert draws.shape == (4, 2, DIM)


def test_closest_von_mises_fisher_twice() -> None:
    function = of(PowerSpherical, CLOSEST["closest_von_mises_fisher"])
    loc, kappa = (p[1] for p in parameters())
    second = jacrev(jacrev(function, argnums=1), argnums=1)(loc, kappa)
    slope = [grad(function, argnums=1)(loc, kappa + shift) for shift in (1e-4, -1e-4)]
    torch.testing.assert_close(second, (slope[0] - slope[1]) / 2e-4, rtol=1e-5, atol=1e-8)
