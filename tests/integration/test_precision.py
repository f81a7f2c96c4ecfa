"""Half precision, autocast and the default dtype: what is computed in which digits, and comes back in which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from helpers.members import DIVERGENCES, DRAWS, EVERY, EVERY_ID, MEMBERS, MOMENTS
from helpers.statistical import assert_mean
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    SphericalCauchyMarginal,
    VonMisesFisherMarginal,
)

HALF = torch.float16
DIM = 8

halves = pytest.mark.parametrize("dtype", [BRAIN, HALF], ids=["bfloat16", "float16"])
every = pytest.mark.parametrize(("family", "name", "member"), EVERY, ids=EVERY_ID)


def parameters(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return directions(3, DIM).to(dtype), torch.tensor([0.5, 4.0, 30.0], dtype=dtype)


def exactly(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x.double(), dim=-1)


class TestHalf:
    @halves
    @every
    def test_values(self, family: type, name: str, member: Callable, dtype: torch.dtype) -> None:
        """Computed in float32 from directions of length one, and rounded only where samples are."""
        loc, kappa = parameters(dtype)
        q = family(loc, kappa, validate_args=True)
        actual, expected = member(q), member(family(exactly(loc), kappa.double()))
        if name in MOMENTS:
            assert actual.dtype == dtype
            torch.testing.assert_close(actual.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-3)
        elif name == "closest_von_mises_fisher":
            torch.testing.assert_close(actual.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
        else:
            assert actual.dtype == FLOAT
            torch.testing.assert_close(actual.double(), expected, rtol=3e-5, atol=3e-5)

    @halves
    @families
    def test_log_prob_of_half_precision_values(self, family: type, dtype: torch.dtype) -> None:
        loc, kappa = parameters(dtype)
        x = directions(3, DIM, seed=2).to(dtype)
        actual = family(loc, kappa, validate_args=True).log_prob(x)
        assert actual.dtype == FLOAT
        expected = family(exactly(loc), kappa.double()).log_prob(exactly(x))
        torch.testing.assert_close(actual.double(), expected, rtol=3e-5, atol=3e-5)

    @halves
    @families
    def test_draws(self, family: type, dtype: torch.dtype) -> None:
        loc, kappa = parameters(dtype)
        q = family(loc, kappa, validate_args=True)
        x = q.sample((20_000,))
        assert x.dtype == dtype
        q.log_prob(x)  # they pass the check of their own family
        eps = torch.finfo(dtype).eps
        assert_mean(x, family(exactly(loc), kappa.double()).mean, rounding=eps)
        assert type(q.marginal)(DIM, kappa).sample().dtype == dtype

    @halves
    @families
    def test_gradients(self, family: type, dtype: torch.dtype) -> None:
        loc, kappa = (p.requires_grad_() for p in parameters(dtype))
        q = family(loc, kappa)
        loss = q.rsample((5,)).float().sum() + q.entropy().sum() + DIVERGENCES["KL to PS"](q).sum()
        for gradient, parameter in zip(torch.autograd.grad(loss, (loc, kappa)), (loc, kappa), strict=True):
            assert gradient.dtype == parameter.dtype
            assert gradient.isfinite().all()

    @families
    @pytest.mark.parametrize(
        ("loc_dtype", "kappa"),
        [
            (BRAIN, 4.0),
            (BRAIN, 4),
            (BRAIN, torch.tensor(4.0)),
            (BRAIN, torch.tensor(4.0, dtype=DOUBLE)),
            (BRAIN, torch.tensor([4.0])),
            (BRAIN, torch.tensor([4.0], dtype=HALF)),
            (FLOAT, torch.tensor([4.0], dtype=BRAIN)),
            (HALF, torch.tensor([4.0], dtype=DOUBLE)),
        ],
        ids=str,
    )
    def test_result_type(self, family: type, loc_dtype: torch.dtype, kappa: Tensor | float) -> None:
        loc = directions(3, DIM).to(loc_dtype)
        q = family(loc, kappa, validate_args=True)
        dtype = torch.result_type(loc, kappa)
        results = [q.sample(), q.rsample(), *(moment(q) for moment in MOMENTS.values())]
        assert {result.dtype for result in results} == {dtype}
        assert q.entropy().dtype == torch.promote_types(dtype, FLOAT)
        # Nothing is lost of a concentration with more digits than the directions have.
        expected = family(exactly(loc), torch.as_tensor(kappa).double()).entropy()
        torch.testing.assert_close(q.entropy().double(), expected.expand(3), rtol=1e-5, atol=1e-5)

    @halves
    def test_uniform(self, dtype: torch.dtype) -> None:
        prior = HypersphericalUniform(DIM, dtype=dtype, validate_args=True)
        x = prior.sample((10,))
        assert {x.dtype, prior.mean.dtype, prior.variance.dtype, prior.covariance_matrix.dtype} == {dtype}
        assert {prior.entropy().dtype, prior.log_prob(x).dtype} == {FLOAT}
        q = PowerSpherical(*parameters(dtype))
        assert torch.distributions.kl_divergence(prior, q).dtype == FLOAT
        assert torch.distributions.kl_divergence(q, prior).dtype == FLOAT


def results(family: type, dtype: torch.dtype) -> dict[str, Tensor]:
    """Everything there is, with the gradients of a loss made of all of it."""
    torch.manual_seed(4)
    loc, kappa = (p.requires_grad_() for p in parameters(dtype))
    q = family(loc, kappa, validate_args=True)
    found = {name: member(q) for name, member in (MEMBERS | DRAWS).items()}
    loss = sum(x.double().sum() for x in found.values())
    return {**found, **dict(zip(("loc", "kappa"), torch.autograd.grad(loss, (loc, kappa)), strict=True))}


@families
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, BRAIN], ids=str)
def test_autocast_changes_nothing(family: type, dtype: torch.dtype) -> None:
    plain = results(family, dtype)
    with torch.autocast("cpu", dtype=BRAIN):
        cast = results(family, dtype)
    for name, expected in plain.items():
        assert cast[name].dtype == expected.dtype, name
        assert torch.equal(cast[name], expected), name


def test_autocast_changes_nothing_for_the_uniform() -> None:
    def results() -> list[Tensor]:
        torch.manual_seed(4)
        prior = HypersphericalUniform(DIM)
        x = prior.sample((5,))
        return [x, prior.log_prob(x), prior.entropy(), prior.mean, prior.variance, prior.covariance_matrix]

    plain = results()
    with torch.autocast("cpu", dtype=BRAIN):
        cast = results()
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


@pytest.fixture
def _double_by_default():
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(FLOAT)


@pytest.mark.usefixtures("_double_by_default")
class TestDefaultDtype:
    @families
    def test_parameters_rule(self, family: type) -> None:
        """A number takes the dtype of ``loc``; the default dtype is for what has no other."""
        assert family(directions(3, dtype=FLOAT), 4.0).sample().dtype == FLOAT
        q = family(directions(3), 4.0)
        assert {q.sample().dtype, q.entropy().dtype, q.concentration.dtype} == {DOUBLE}
        torch.testing.assert_close(q.concentration, torch.tensor(4.0))

    @families
    def test_same_numbers(self, family: type) -> None:
        inside = results(family, FLOAT)
        torch.set_default_dtype(FLOAT)
        for name, expected in results(family, FLOAT).items():
            torch.testing.assert_close(inside[name], expected, msg=name)

    def test_uniform_and_marginals(self) -> None:
        prior = HypersphericalUniform(3)
        assert {prior.sample().dtype, prior.entropy().dtype, prior.mean.dtype} == {DOUBLE}
        assert HypersphericalUniform(3, dtype=FLOAT).sample().dtype == FLOAT
        for family in (PowerSphericalMarginal, VonMisesFisherMarginal, SphericalCauchyMarginal):
            marginal = family(3, 4.0)
            assert {marginal.sample().dtype, marginal.entropy().dtype, marginal.mean.dtype} == {DOUBLE}
