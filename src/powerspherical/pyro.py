"""The distributions for Pyro: they work with ``pyro.sample``, plates, masks and ``pyro.infer`` (extra ``pyro``).

Each class adds Pyro's mixin to the class of the same name in ``powerspherical``: same arguments, same results, and the
same KL divergences, which ``TraceMeanField_ELBO`` uses. Your own distribution works with Pyro in the same way:
``class Mine(MyDistribution, TorchDistributionMixin)``. To learn a direction, pass the constraint
``powerspherical.distributions.unit_vector`` to ``pyro.param``.

>>> import pyro
>>> import torch
>>> from pyro.infer import SVI, TraceMeanField_ELBO
>>> from torch.distributions import constraints
>>> from powerspherical.distributions import unit_vector
>>> def model(data):
...     pole = pyro.sample("pole", HypersphericalUniform(3))
...     with pyro.plate("data", len(data)):
...         pyro.sample("x", VonMisesFisher(pole, 10.0), obs=data)
>>> def guide(data):
...     loc = pyro.param("loc", torch.tensor([1.0, 0.0, 0.0]), constraint=unit_vector)
...     kappa = pyro.param("kappa", torch.tensor(10.0), constraint=constraints.positive)
...     pyro.sample("pole", PowerSpherical(loc, kappa))
>>> pyro.set_rng_seed(0)
>>> truth = torch.tensor([0.6, 0.0, 0.8])
>>> data = VonMisesFisher(truth, 10.0).sample((30,))
>>> svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), TraceMeanField_ELBO())
>>> losses = [svi.step(data) for _ in range(100)]
>>> bool(pyro.param("loc") @ truth > 0.98)
True
"""

from __future__ import annotations

from powerspherical import distributions
from powerspherical._extras import install_hint

try:
    from pyro.distributions.torch_distribution import TorchDistributionMixin
except ImportError as error:
    raise ImportError(f"powerspherical.pyro needs Pyro: {install_hint('pyro')}") from error

__all__ = [
    "HypersphericalUniform",
    "PowerSpherical",
    "PowerSphericalMarginal",
    "SphericalCauchy",
    "SphericalCauchyMarginal",
    "VonMisesFisher",
    "VonMisesFisherMarginal",
]


class HypersphericalUniform(distributions.HypersphericalUniform, TorchDistributionMixin):
    """``powerspherical.HypersphericalUniform`` for Pyro."""


class PowerSphericalMarginal(distributions.PowerSphericalMarginal, TorchDistributionMixin):
    """``powerspherical.PowerSphericalMarginal`` for Pyro."""


class VonMisesFisherMarginal(distributions.VonMisesFisherMarginal, TorchDistributionMixin):
    """``powerspherical.VonMisesFisherMarginal`` for Pyro."""


class SphericalCauchyMarginal(distributions.SphericalCauchyMarginal, TorchDistributionMixin):
    """``powerspherical.SphericalCauchyMarginal`` for Pyro."""


class SphericalCauchy(distributions.SphericalCauchy, TorchDistributionMixin):
    """``powerspherical.SphericalCauchy`` for Pyro."""

    _marginal_class = SphericalCauchyMarginal


class VonMisesFisher(distributions.VonMisesFisher, TorchDistributionMixin):
    """``powerspherical.VonMisesFisher`` for Pyro."""

    _marginal_class = VonMisesFisherMarginal


class PowerSpherical(distributions.PowerSpherical, TorchDistributionMixin):
    """``powerspherical.PowerSpherical`` for Pyro."""

    _marginal_class = PowerSphericalMarginal

    def closest_von_mises_fisher(self) -> VonMisesFisher:
        closest = super().closest_von_mises_fisher()
        return VonMisesFisher(closest.loc, closest.concentration, validate_args=self._validate_args)
