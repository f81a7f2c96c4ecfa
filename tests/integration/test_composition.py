"""The distributions inside torch's own: products of spheres and mixtures."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, kl_divergence

from helpers.examples import DOUBLE, directions, families
from helpers.statistical import assert_mean
from powerspherical import HypersphericalUniform

DIM = 4


def batch(family: type, *shape: int, seed: int = 1) -> Distribution:
    kappa = torch.linspace(0.5, 20.0, shape[-1], dtype=DOUBLE).expand(shape)
    return family(directions(*shape, DIM, seed=seed), kappa, validate_args=True)


class TestIndependent:
    @families
    def test_product_of_spheres(self, family: type) -> None:
        base = batch(family, 3, 2)
        product = Independent(base, 1, validate_args=True)
        assert (product.batch_shape, product.event_shape) == ((3,), (2, DIM))
        x = product.rsample((5,))
        assert x.shape == (5, 3, 2, DIM)
        assert product.support.check(x).all()
        torch.testing.assert_close(product.log_prob(x), base.log_prob(x).sum(-1))
        torch.testing.assert_close(product.entropy(), base.entropy().sum(-1))
        torch.testing.assert_close(product.mean, base.mean)
        assert product.expand((4, 3)).sample().shape == (4, 3, 2, DIM)

    @families
    def test_divergence(self, family: type) -> None:
        base, other = batch(family, 3, 2), batch(family, 3, 2, seed=2)
        prior = HypersphericalUniform(DIM, dtype=DOUBLE).expand((3, 2))
        for q in (other, prior):
            actual = kl_divergence(Independent(base, 1), Independent(q, 1))
            torch.testing.assert_close(actual, kl_divergence(base, q).sum(-1))


class TestMixture:
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)

    def mixture(self, components: Distribution) -> MixtureSameFamily:
        return MixtureSameFamily(
            Categorical(self.weights, validate_args=True), components, validate_args=True
        )

    @families
    def test_log_prob(self, family: type) -> None:
        components = batch(family, 3)
        x = directions(6, DIM, seed=2)
        density = (self.weights * components.log_prob(x.unsqueeze(-2)).exp()).sum(-1)
        torch.testing.assert_close(self.mixture(components).log_prob(x), density.log())
        several = MixtureSameFamily(Categorical(self.weights.expand(2, 3)), batch(family, 2, 3))
        assert several.log_prob(several.sample((5,))).shape == (5, 2)

    @families
    def test_moments_of_draws(self, family: type) -> None:
        components = batch(family, 3)
        mixture = self.mixture(components)
        torch.testing.assert_close(mixture.mean, (self.weights[:, None] * components.mean).sum(0))
        x = mixture.sample((20_000,))
        assert x.shape == (20_000, DIM)
        assert mixture.support.check(x).all()
        assert_mean(x, mixture.mean)
        assert_mean((x - mixture.mean).square(), mixture.variance)

    @families
    def test_learns(self, family: type) -> None:
        """Gradients reach the parameters of the components and the weights."""
        loc = directions(3, DIM).requires_grad_()
        kappa = torch.full((3,), 5.0, dtype=DOUBLE, requires_grad=True)
        logits = torch.zeros(3, dtype=DOUBLE, requires_grad=True)
        mixture = MixtureSameFamily(Categorical(logits=logits), family(loc, kappa))
        loss = -mixture.log_prob(directions(50, DIM, seed=2)).mean()
        gradients: tuple[Tensor, ...] = torch.autograd.grad(loss, (loc, kappa, logits))
        assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)
