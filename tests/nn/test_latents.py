"""Draws with their rates: one autograd function in plain eager mode, which must equal the composition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from powerspherical.families import Family, family_named, family_names
from powerspherical.nn import _latents
from powerspherical.nn._latents import drawn_latents
from powerspherical.sampling import draw

DIM, RADIUS = 5, 2.5
families = pytest.mark.parametrize(
    "family", [family_named(name) for name in family_names()], ids=lambda family: family.name
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def leaves(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    loc = torch.nn.functional.normalize(torch.randn(4, 3, DIM, dtype=dtype), dim=-1)
    return loc.requires_grad_(), (10 * torch.rand(4, 3, dtype=dtype)).requires_grad_()


def composition(family: Family, loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    return RADIUS * draw(family, loc, kappa), family.relative_entropy(kappa, DIM)


@families
@dtypes
@pytest.mark.parametrize("used", ["z", "rate", "both"])
def test_it_equals_the_composition(family: Family, dtype: torch.dtype, used: str) -> None:
    inputs = leaves(dtype)
    found, grads = [], []
    for function in (lambda *x: drawn_latents(*x, RADIUS, dtype), composition):
        torch.manual_seed(3)
        z, rate = function(family, *inputs)
        found.append((z, rate))
        loss = (z.cumsum(-1).square().sum() if used != "rate" else 0) + (
            rate.square().sum() if used != "z" else 0
        )
        grads.append(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@families
def test_half_precision_is_rounded_once(family: Family) -> None:
    loc, kappa = leaves(torch.float32)
    torch.manual_seed(3)
    z, rate = drawn_latents(family, loc, kappa, RADIUS, torch.bfloat16)
    torch.manual_seed(3)
    exact, _ = composition(family, loc, kappa)
    assert rate.dtype == torch.float32
    assert torch.equal(z, exact.to(torch.bfloat16))
    grad = torch.randn_like(z)
    found = torch.autograd.grad(z, (loc, kappa), grad)
    expected = torch.autograd.grad(exact, (loc, kappa), grad.float())
    torch.testing.assert_close(found, expected)


@families
def test_the_rate_is_differentiable_twice(family: Family) -> None:
    loc, kappa = leaves(torch.float64)
    second = []
    for rate in (
        drawn_latents(family, loc, kappa, RADIUS, torch.float64)[1],
        family.relative_entropy(kappa, DIM),
    ):
        (slope,) = torch.autograd.grad(rate.sum(), kappa, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), kappa)[0])
    torch.testing.assert_close(*second)


def test_the_draw_is_differentiable_once() -> None:
    family = family_named("power_spherical")
    loc, kappa = leaves(torch.float64)
    z, _ = drawn_latents(family, loc, kappa, RADIUS, torch.float64)
    (gradient,) = torch.autograd.grad(z.cumsum(-1).sum(), kappa, create_graph=True)
    with pytest.raises(NotImplementedError, match="a draw is differentiable once"):
        gradient.sum().backward()


@families
def test_a_batch_of_gradients(family: Family) -> None:
    inputs = leaves(torch.float32)
    outputs = drawn_latents(family, *inputs, RADIUS, torch.float32)
    grads = [torch.randn(2, *output.shape) for output in outputs]
    many = torch.autograd.grad(outputs, inputs, grads, is_grads_batched=True, retain_graph=True)
    for index in range(2):
        one = torch.autograd.grad(outputs, inputs, [grad[index] for grad in grads], retain_graph=True)
        for whole, part in zip(many, one, strict=True):
            torch.testing.assert_close(whole[index], part)


def test_without_gradients_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_latents, "_plain_latents", None)
    loc, kappa = leaves(torch.float32)
    with torch.no_grad():
        z, rate = drawn_latents(family_named("von_mises_fisher"), loc, kappa, RADIUS, torch.float16)
    assert (z.dtype, rate.dtype, z.requires_grad) == (torch.float16, torch.float32, False)
