"""Vectors of nearly unit length are taken for their directions; those that were never normalised are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn.functional import normalize

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from powerspherical import HypersphericalUniform, PowerSpherical

DIM = 8


def _divided(epsilon: float) -> Tensor:
    """v/(‖v‖ + ε), as many programs write it, for norms from 1e-3 to 10."""
    vectors = directions(50, DIM, dtype=FLOAT) * torch.logspace(-3, 1, 50).unsqueeze(-1)
    return vectors / (vectors.norm(dim=-1, keepdim=True) + epsilon)


NEARLY_UNIT = {
    "an epsilon in the denominator": _divided(1e-6),
    "rounded to bfloat16": directions(50, DIM, dtype=BRAIN).float(),
    "rounded to float16": directions(50, DIM, dtype=torch.float16).float(),
    "normalised in bfloat16": normalize(7 * directions(50, DIM, dtype=BRAIN), dim=-1).float(),
    "float32 in float64": directions(50, DIM, dtype=FLOAT).double(),
    "half-precision digits in float64": directions(50, DIM, dtype=BRAIN).double(),
    "three decimals": directions(50, DIM).mul(1000).round().div(1000),
    "nearly 1 % long": directions(50, DIM) * 1.0099,
    "nearly 1 % short": directions(50, DIM) * 0.9901,
}


def assert_close(value: Tensor, expected: Tensor) -> None:
    """To a few roundings, of large terms."""
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(value, expected, rtol=50 * eps, atol=1000 * eps)


@families
@pytest.mark.parametrize("vectors", NEARLY_UNIT.values(), ids=NEARLY_UNIT)
def test_nearly_unit_vectors(family: type, vectors: Tensor) -> None:
    """As mean directions, as points and as data."""
    exact = normalize(vectors.double(), dim=-1).to(vectors.dtype)
    x = directions(50, DIM, dtype=vectors.dtype, seed=2)
    p, q = (family(loc, 40.0, validate_args=True) for loc in (vectors, exact))
    other, uniform = PowerSpherical(x, 3.0), HypersphericalUniform(DIM, validate_args=True)
    for value in (
        lambda p: p.loc,
        lambda p: p.mean,
        lambda p: p.log_prob(x),
        lambda p: kl_divergence(p, other),
    ):
        assert_close(value(p), value(q))
    draws = p.sample((100,))
    assert_close(draws.norm(dim=-1), torch.ones_like(draws[..., 0]))
    for scored in (family(x[0], 40.0, validate_args=True), uniform):
        assert_close(scored.log_prob(vectors), scored.log_prob(exact))
    for weights in ((), (torch.linspace(1, 2, 50),)):
        found, expected = (family.fit(v, *weights) for v in (vectors, exact))
        torch.testing.assert_close(found.concentration, expected.concentration, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.loc, expected.loc, rtol=0, atol=1e-3)


@families
def test_gradients_are_those_of_the_direction(family: type) -> None:
    """Tangential, as with a normalisation of the caller's own."""
    loc, x = directions(5, DIM), directions(5, DIM, seed=2)
    found = []
    for onto in (lambda v: v, lambda v: normalize(v, dim=-1)):
        leaves = [(1.005 * v).requires_grad_() for v in (loc, x)]
        q = family(onto(leaves[0]), 40.0, validate_args=True)
        torch.manual_seed(0)
        rate = kl_divergence(q, PowerSpherical(loc.roll(1, 0), 3.0))
        loss = q.log_prob(onto(leaves[1])).sum() + rate.sum() + q.rsample()[:, 0].sum()
        found.append(torch.autograd.grad(loss, leaves))
    for gradient, expected, leaf in zip(*found, (loc, x), strict=True):
        assert_close(gradient, expected)
        assert (gradient * leaf).sum(-1).abs().max() < 1e-11


@families
def test_gradients_of_moments(family: type) -> None:
    """They are those at the direction, divided by the norm: nothing changes with a rounding error more or less."""
    found = []
    for scale in (1.0, 1.005):
        leaf = (scale * directions(DIM)).requires_grad_()
        q = family(leaf, 40.0, validate_args=True)
        found.append(scale * torch.autograd.grad(q.mean[0] + q.variance[1] + q.mode[2], leaf)[0])
    assert_close(*found)


@families
def test_where_values_cannot_be_inspected(family: type) -> None:
    """Under vmap there is no way to see which vectors need it: all are normalised."""
    loc, x = directions(5, DIM), directions(5, DIM, seed=2)

    def density(m: Tensor, y: Tensor) -> Tensor:
        return family(m, 40.0, validate_args=True).log_prob(y)

    assert_close(torch.func.vmap(density)(1.005 * loc, 0.995 * x), density(loc, x))


@families
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, BRAIN, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [2, 64, 4096])
def test_rounded_unit_vectors_pass(family: type, dtype: torch.dtype, dim: int) -> None:
    """The same bound in every dtype and dimension, and vectors within it stay as they are."""
    x = directions(200, dim, dtype=dtype)
    p = family(x, 1.0, validate_args=True)
    assert p.loc is x
    assert p.log_prob(x).isfinite().all()
    for right in (x, p.sample()):
        assert p.support.check(right).all()
    for wrong in (0 * x, 0.98 * x, 1.02 * x, x * torch.nan):
        assert not p.support.check(wrong).any()


@families
@pytest.mark.parametrize("scale", [0.98, 1.02])
def test_one_bad_row_is_enough(family: type, scale: float) -> None:
    vectors = directions(50, DIM)
    vectors[17] *= scale
    for refuse in (
        lambda: family(vectors, 1.0, validate_args=True),
        lambda: family(vectors[0], 1.0, validate_args=True).log_prob(vectors),
        lambda: HypersphericalUniform(DIM, validate_args=True).log_prob(vectors),
        lambda: family.fit(vectors),
    ):
        with pytest.raises(ValueError, match=rf"worst norm is {scale}.*more than 1% from 1; use torch.nn"):
            refuse()
