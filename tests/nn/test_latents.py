"""Draws with their rates: one autograd function in plain eager mode, which must equal the composition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from powerspherical.families import Family, family_named, family_names
from powerspherical.nn import _latents, _parameters
from powerspherical.nn._latents import drawn_latents
from powerspherical.nn._parameters import Bounds
from powerspherical.sampling import draw

DIM, RADIUS = 5, 2.5
families = pytest.mark.parametrize(
    "family", [family_named(name) for name in family_names()], ids=lambda family: family.name
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


BOUNDS = Bounds(0.5, 60.0)


def made_outputs(dtype: torch.dtype) -> Tensor:
    """Outputs (v, r) of a head."""
    return (3 * torch.randn(4, 3, DIM + 1, dtype=dtype)).requires_grad_()


def latents(outputs: Tensor, family: Family, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return drawn_latents(outputs, DIM, *BOUNDS, family, RADIUS, dtype)


def composition(outputs: Tensor, family: Family, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    loc, kappa = _parameters.composition(outputs, DIM, BOUNDS)
    return (RADIUS * draw(family, loc, kappa)).to(dtype), family.relative_entropy(kappa, DIM)


@families
@dtypes
@pytest.mark.parametrize("used", ["z", "rate", "both"])
def test_it_equals_the_composition(family: Family, dtype: torch.dtype, used: str) -> None:
    outputs = made_outputs(dtype)
    found, grads = [], []
    for function in (latents, composition):
        torch.manual_seed(3)
        z, rate = function(outputs, family, dtype)
        found.append((z, rate))
        loss = (z.cumsum(-1).square().sum() if used != "rate" else 0) + (
            rate.square().sum() if used != "z" else 0
        )
        grads.append(torch.autograd.grad(loss, outputs))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@families
def test_half_precision_is_rounded_once(family: Family) -> None:
    outputs = made_outputs(torch.float32)
    torch.manual_seed(3)
    z, rate = latents(outputs, family, torch.bfloat16)
    torch.manual_seed(3)
    exact, _ = composition(outputs, family, torch.float32)
    assert rate.dtype == torch.float32
    assert torch.equal(z, exact.to(torch.bfloat16))
    grad = torch.randn_like(z)
    found = torch.autograd.grad(z, outputs, grad)
    expected = torch.autograd.grad(exact, outputs, grad.float())
    torch.testing.assert_close(found, expected)


@families
def test_the_rate_is_differentiable_twice(family: Family) -> None:
    outputs = made_outputs(torch.float64)
    second = []
    for function in (latents, composition):
        _, rate = function(outputs, family, torch.float64)
        (slope,) = torch.autograd.grad(rate.sum(), outputs, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), outputs)[0])
    torch.testing.assert_close(*second)


def test_the_draw_is_differentiable_once() -> None:
    outputs = made_outputs(torch.float64)
    z, _ = latents(outputs, family_named("power_spherical"), torch.float64)
    (gradient,) = torch.autograd.grad(z.cumsum(-1).sum(), outputs, create_graph=True)
    with pytest.raises(NotImplementedError, match="a draw is differentiable once"):
        gradient.sum().backward()


@families
def test_a_batch_of_gradients(family: Family) -> None:
    outputs = made_outputs(torch.float32)
    found = latents(outputs, family, torch.float32)
    grads = [torch.randn(2, *value.shape) for value in found]
    many = torch.autograd.grad(found, outputs, grads, is_grads_batched=True, retain_graph=True)
    for index in range(2):
        one = torch.autograd.grad(found, outputs, [grad[index] for grad in grads], retain_graph=True)
        for whole, part in zip(many, one, strict=True):
            torch.testing.assert_close(whole[index], part)


def test_without_gradients_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_latents, "_plain_latents", None)
    with torch.no_grad():
        z, rate = latents(made_outputs(torch.float32), family_named("von_mises_fisher"), torch.float16)
    assert (z.dtype, rate.dtype, z.requires_grad) == (torch.float16, torch.float32, False)
