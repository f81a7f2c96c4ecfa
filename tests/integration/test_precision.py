"""Half precision and the default dtype: what is computed in which digits, and comes back in which."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from helpers.members import DIVERGENCES, MOMENTS
from helpers.modes import double_by_default
from powerspherical import HypersphericalUniform, PowerSpherical

HALF = torch.float16
DIM = 8

halves = pytest.mark.parametrize("dtype", [BRAIN, HALF], ids=["bfloat16", "float16"])


def parameters(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return directions(3, DIM).to(dtype), torch.tensor([0.5, 4.0, 30.0], dtype=dtype)


def exactly(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x.double(), dim=-1)


@halves
@families
def test_gradients(family: type, dtype: torch.dtype) -> None:
    leaves = [p.requires_grad_() for p in parameters(dtype)]
    q = family(*leaves)
    loss = q.rsample((5,)).float().sum() + q.entropy().sum() + DIVERGENCES["KL to PS"](q).sum()
    for gradient, parameter in zip(torch.autograd.grad(loss, leaves), leaves, strict=True):
        assert gradient.dtype == parameter.dtype
        assert gradient.isfinite().all()
    assert type(q.marginal)(DIM, q.concentration).sample().dtype == dtype


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
def test_result_type(family: type, loc_dtype: torch.dtype, kappa: Tensor | float) -> None:
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
def test_uniform(dtype: torch.dtype) -> None:
    prior = HypersphericalUniform(DIM, dtype=dtype, validate_args=True)
    x = prior.sample((10,))
    assert {x.dtype, prior.mean.dtype, prior.variance.dtype, prior.covariance_matrix.dtype} == {dtype}
    assert {prior.entropy().dtype, prior.log_prob(x).dtype} == {FLOAT}
    q = PowerSpherical(*parameters(dtype))
    assert torch.distributions.kl_divergence(prior, q).dtype == FLOAT
    assert torch.distributions.kl_divergence(q, prior).dtype == FLOAT


def test_autocast_changes_nothing_for_the_uniform() -> None:
    def results() -> list[Tensor]:
        torch.manual_seed(4)
        prior = HypersphericalUniform(DIM)
        x = prior.sample((5,))
        return [x, prior.log_prob(x), prior.entropy(), prior.mean, prior.variance, prior.covariance_matrix]

    plain = results()
    with torch.autocast("cpu", dtype=BRAIN):
        assert all(map(torch.equal, results(), plain))


@families
def test_the_default_dtype_is_for_what_has_no_other(family: type) -> None:
    """A number takes the dtype of ``loc``."""
    with double_by_default():
        assert family(directions(3, dtype=FLOAT), 4.0).sample().dtype == FLOAT
        q = family(directions(3), 4.0)
        assert {q.sample().dtype, q.entropy().dtype, q.concentration.dtype} == {DOUBLE}
        prior, marginal = HypersphericalUniform(3), type(q.marginal)(3, 4.0)
        for p in (prior, marginal):
            assert {p.sample().dtype, p.entropy().dtype, p.mean.dtype} == {DOUBLE}
        assert HypersphericalUniform(3, dtype=FLOAT).sample().dtype == FLOAT
    assert HypersphericalUniform(3).sample().dtype == FLOAT
