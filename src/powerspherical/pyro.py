"""The distributions as Pyro knows them: for ``pyro.sample``, plates, masks and ``pyro.infer`` (extra ``pyro``).

The classes are those of ``powerspherical`` with Pyro's mixin: same arguments, same numbers, and the same KL
divergences, which ``TraceMeanField_ELBO`` finds by itself. For a learnt direction, give ``pyro.param`` the
constraint ``powerspherical.distributions.unit_vector``.

>>> import pyro
>>> from torch.nn.functional import softplus
>>> from powerspherical.distributions import unit_vector
>>> def model(data):
...     direction = pyro.sample("direction", HypersphericalUniform(3))
...     with pyro.plate("data", len(data)):
...         pyro.sample("x", VonMisesFisher(direction, 10.0), obs=data)
>>> def guide(data):
...     loc = pyro.param("loc", torch.tensor([1.0, 0.0, 0.0]), constraint=unit_vector)
...     pyro.sample("direction", PowerSpherical(loc, softplus(pyro.param("raw", torch.tensor(1.0)))))
"""

from __future__ import annotations

from powerspherical import distributions

try:
    from pyro.distributions.torch_distribution import TorchDistributionMixin
except ImportError as error:
    raise ImportError("powerspherical.pyro needs Pyro: pip install 'powerspherical[pyro]'") from error

__all__ = ["HypersphericalUniform", "PowerSpherical", "VonMisesFisher"]


class HypersphericalUniform(distributions.HypersphericalUniform, TorchDistributionMixin):
    """``powerspherical.HypersphericalUniform`` for Pyro."""


class VonMisesFisher(distributions.VonMisesFisher, TorchDistributionMixin):
    """``powerspherical.VonMisesFisher`` for Pyro."""


class PowerSpherical(distributions.PowerSpherical, TorchDistributionMixin):
    """``powerspherical.PowerSpherical`` for Pyro."""

    def closest_von_mises_fisher(self) -> VonMisesFisher:
        closest = super().closest_von_mises_fisher()
        return VonMisesFisher(closest.loc, closest.concentration, validate_args=self._validate_args)
