"""The distributions as components of torch's mixtures. ``test_product.py`` has products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from helpers.examples import DOUBLE, directions, families
from helpers.statistical import assert_mean

DIM = 4


def batch(family: type, *shape: int) -> Distribution:
    kappa = torch.linspace(0.5, 20.0, shape[-1], dtype=DOUBLE).expand(shape)
    return family(directions(*shape, DIM), kappa, validate_args=True)


WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)


def of(components: Distribution) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(WEIGHTS, validate_args=True), components, validate_args=True)


@families
def test_log_prob(family: type) -> None:
    components = batch(family, 3)
    x = directions(6, DIM, seed=2)
    density = (WEIGHTS * components.log_prob(x.unsqueeze(-2)).exp()).sum(-1)
    torch.testing.assert_close(of(components).log_prob(x), density.log())
    several = MixtureSameFamily(Categorical(WEIGHTS.expand(2, 3)), batch(family, 2, 3))
    assert several.log_prob(several.sample((5,))).shape == (5, 2)


@families
def test_moments_of_draws(family: type) -> None:
    components = batch(family, 3)
    mixture = of(components)
    torch.testing.assert_close(mixture.mean, (WEIGHTS[:, None] * components.mean).sum(0))
    x = mixture.sample((20_000,))
    assert x.shape == (20_000, DIM)
    assert mixture.support.check(x).all()
    assert_mean(x, mixture.mean)
    assert_mean((x - mixture.mean).square(), mixture.variance)


@families
def test_learns(family: type) -> None:
    """Gradients reach the parameters of the components and the weights."""
    loc = directions(3, DIM).requires_grad_()
    kappa = torch.full((3,), 5.0, dtype=DOUBLE, requires_grad=True)
    logits = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
    mixture = MixtureSameFamily(Categorical(logits=logits), family(loc, kappa))
    loss = -mixture.log_prob(directions(50, DIM, seed=2)).mean()
    gradients: tuple[Tensor, ...] = torch.autograd.grad(loss, (loc, kappa, logits))
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)
