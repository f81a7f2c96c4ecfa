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

NUTS, HMC and continuous autoguides such as ``AutoNormal`` need latent sites without constraints: see ``SphereReparam``.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from powerspherical import distributions
from powerspherical._extras import install_hint
from powerspherical._torch.vectors import directions_of
from powerspherical.distributions.constraints import UnitVector
from powerspherical.distributions.validation import dimension
from powerspherical.special import log_sphere_area

try:
    import pyro
    from pyro.distributions import Delta
    from pyro.distributions.torch_distribution import TorchDistribution, TorchDistributionMixin
    from pyro.infer.reparam.reparam import Reparam
except ImportError as error:
    raise ImportError(f"powerspherical.pyro needs Pyro: {install_hint('pyro')}") from error

__all__ = [
    "HypersphericalUniform",
    "PowerSpherical",
    "PowerSphericalMarginal",
    "SphereReparam",
    "SphericalCauchy",
    "SphericalCauchyMarginal",
    "VonMisesFisher",
    "VonMisesFisherMarginal",
]


class HypersphericalUniform(distributions.HypersphericalUniform, TorchDistributionMixin):
    """``powerspherical.HypersphericalUniform`` for Pyro.

    >>> import pyro
    >>> with pyro.plate("data", 5):
    ...     x = pyro.sample("x", HypersphericalUniform(3))
    >>> x.shape
    torch.Size([5, 3])
    """


class PowerSphericalMarginal(distributions.PowerSphericalMarginal, TorchDistributionMixin):
    """``powerspherical.PowerSphericalMarginal`` for Pyro: the law of t, with κ of shape (…).

    >>> import pyro
    >>> with pyro.plate("data", 5):
    ...     t = pyro.sample("t", PowerSphericalMarginal(3, 10.0))
    >>> t.shape
    torch.Size([5])
    """


class VonMisesFisherMarginal(distributions.VonMisesFisherMarginal, TorchDistributionMixin):
    """``powerspherical.VonMisesFisherMarginal`` for Pyro: the law of t, with κ of shape (…).

    >>> import pyro
    >>> with pyro.plate("data", 5):
    ...     t = pyro.sample("t", VonMisesFisherMarginal(3, 10.0))
    >>> t.shape
    torch.Size([5])
    """


class SphericalCauchyMarginal(distributions.SphericalCauchyMarginal, TorchDistributionMixin):
    """``powerspherical.SphericalCauchyMarginal`` for Pyro: the law of t, with κ of shape (…).

    >>> import pyro
    >>> with pyro.plate("data", 5):
    ...     t = pyro.sample("t", SphericalCauchyMarginal(3, 10.0))
    >>> t.shape
    torch.Size([5])
    """


class SphericalCauchy(distributions.SphericalCauchy, TorchDistributionMixin):
    """``powerspherical.SphericalCauchy`` for Pyro, with ``loc`` of shape (…, d) and ``concentration`` of shape (…).

    >>> import pyro
    >>> import torch
    >>> with pyro.plate("data", 5):
    ...     x = pyro.sample("x", SphericalCauchy(torch.eye(3)[0], 10.0))
    >>> x.shape
    torch.Size([5, 3])
    """

    _marginal_class = SphericalCauchyMarginal


class VonMisesFisher(distributions.VonMisesFisher, TorchDistributionMixin):
    """``powerspherical.VonMisesFisher`` for Pyro, with ``loc`` of shape (…, d) and ``concentration`` of shape (…).

    >>> import pyro
    >>> import torch
    >>> with pyro.plate("data", 5):
    ...     x = pyro.sample("x", VonMisesFisher(torch.eye(3)[0], 10.0))
    >>> x.shape
    torch.Size([5, 3])
    """

    _marginal_class = VonMisesFisherMarginal


class PowerSpherical(distributions.PowerSpherical, TorchDistributionMixin):
    """``powerspherical.PowerSpherical`` for Pyro, with ``loc`` of shape (…, d) and ``concentration`` of shape (…).

    >>> import pyro
    >>> import torch
    >>> with pyro.plate("data", 5):
    ...     x = pyro.sample("x", PowerSpherical(torch.eye(3)[0], 10.0))
    >>> x.shape
    torch.Size([5, 3])
    """

    _marginal_class = PowerSphericalMarginal

    def closest_von_mises_fisher(self) -> VonMisesFisher:
        closest = super().closest_von_mises_fisher()
        return VonMisesFisher(closest.loc, closest.concentration, validate_args=self._validate_args)


class SphereReparam(Reparam):
    """Replace a latent site x on the sphere by a vector z in R^d and the deterministic site x = z/‖z‖.

    The length of z is independent of its direction and distributed as that of a standard normal vector. So the
    prior and the posterior of x stay exactly the same. If x is uniform, z is standard normal. The new site is called
    ``NAME_vector``; it has the shape of x and no constraint, so that NUTS, HMC and continuous autoguides can be used.

    It applies to any latent site whose support is ``unit_vector``: of any family, in plates, and with ``to_event``.

    >>> import pyro
    >>> import torch
    >>> from pyro.infer import MCMC, NUTS
    >>> def model(data):
    ...     pole = pyro.sample("pole", VonMisesFisher(torch.tensor([1.0, 0.0, 0.0]), 2.0))
    ...     with pyro.plate("data", len(data)):
    ...         pyro.sample("x", VonMisesFisher(pole, 10.0), obs=data)
    >>> pyro.set_rng_seed(0)
    >>> data = VonMisesFisher(torch.tensor([0.0, 0.0, 1.0]), 10.0).sample((30,))
    >>> free = pyro.poutine.reparam(model, {"pole": SphereReparam()})
    >>> mcmc = MCMC(NUTS(free), num_samples=50, warmup_steps=50, disable_progbar=True)
    >>> mcmc.run(data)
    >>> vectors = mcmc.get_samples()["pole_vector"]
    >>> poles = torch.nn.functional.normalize(vectors, dim=-1)
    >>> bool(poles.mean(0)[2] > 0.95)
    True
    """

    def apply(self, msg: Any) -> Any:
        """Return the message of the deterministic site x, after sampling z of the same shape. Pyro calls this method.

        >>> import pyro
        >>> from pyro import poutine
        >>> def model():
        ...     return pyro.sample("x", HypersphericalUniform(3))
        >>> free = poutine.reparam(model, {"x": SphereReparam()})
        >>> sites = poutine.trace(free).get_trace().nodes
        >>> sites["x_vector"]["value"].shape, sites["x"]["is_observed"]
        (torch.Size([3]), True)
        """
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if msg["is_observed"]:
            raise NotImplementedError(
                f"SphereReparam works for latent sites, but {name!r} is observed: leave it out of the configuration"
            )
        support = fn.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        if not isinstance(support, UnitVector):
            raise ValueError(
                f"SphereReparam needs a distribution on the unit sphere at the site {name!r}, got {fn} with the "
                f"support {fn.support}"
            )
        # A value given by an initialisation is a vector of length one. Typical lengths are about √d.
        start = None if value is None else value * math.sqrt(value.shape[-1])
        vector = pyro.sample(f"{name}_vector", _WithLength(fn), obs=start, infer={"is_observed": False})
        if value is None:
            value = directions_of(vector)
        return {"fn": Delta(value, event_dim=fn.event_dim).mask(False), "value": value, "is_observed": True}


class _WithLength(TorchDistribution):
    """The law of z = rx in R^d, where x has the law ``direction`` and r is the length of a standard normal vector.

    Its density relative to the standard normal distribution is that of x relative to the uniform distribution. The
    event shape may be (…, d), as ``to_event`` makes it; then each vector has its own length.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_rsample = True

    def __init__(self, direction: Distribution) -> None:
        self.direction = direction
        super().__init__(direction.batch_shape, direction.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Any, _instance: None = None) -> Self:
        return type(self)(self.direction.expand(batch_shape))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        x = self.direction.rsample(sample_shape)
        return x * torch.linalg.vector_norm(torch.randn_like(x), dim=-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        dim = dimension(self.event_shape[-1])
        normal = -0.5 * (value.square().sum(-1) + dim * math.log(2 * math.pi)) + log_sphere_area(dim)
        inner = len(self.event_shape) - 1
        if inner:
            normal = normal.flatten(-inner).sum(-1)
        return self.direction.log_prob(directions_of(value)) + normal
