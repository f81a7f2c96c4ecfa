"""The distributions for Pyro: they work with ``pyro.sample``, plates, masks and ``pyro.infer`` (extra ``pyro``).

Each class adds Pyro's mixin to the class of the same name in ``powerspherical``. Your own distribution works with Pyro
in the same way: ``class Mine(MyDistribution, TorchDistributionMixin)``. To learn a direction, pass the constraint
``powerspherical.distributions.unit_vector`` to ``pyro.param``.

>>> import pyro, torch
>>> from powerspherical.distributions import unit_vector
>>> def model(data):
...     pole = pyro.sample("pole", HypersphericalUniform(3))
...     with pyro.plate("data", len(data)):
...         pyro.sample("x", VonMisesFisher(pole, 10.0), obs=data)
>>> def guide(data):
...     loc = pyro.param("loc", torch.eye(3)[0], constraint=unit_vector)
...     pyro.sample("pole", PowerSpherical(loc, 20.0))
>>> pyro.set_rng_seed(0)
>>> svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), pyro.infer.TraceMeanField_ELBO())
>>> losses = [svi.step(torch.eye(3)[:2]) for _ in range(100)]
>>> bool(pyro.param("loc") @ torch.tensor([0.5, 0.5, 0.0]).sqrt() > 0.98)
True
>>> laws = PowerSphericalMarginal(3, 10.0), VonMisesFisherMarginal(3, 10.0), SphericalCauchyMarginal(3, 10.0)
>>> [pyro.sample("t", law).shape for law in (*laws, SphericalCauchy(torch.eye(3)[0], 10.0))]
[torch.Size([]), torch.Size([]), torch.Size([]), torch.Size([3])]

NUTS, HMC and continuous autoguides such as ``AutoNormal`` need latent sites without constraints: see ``SphereReparam``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints
from typing_extensions import Self

from powerspherical import distributions
from powerspherical._extras import install_hint
from powerspherical._torch.vectors import directions_of
from powerspherical.distributions.constraints import UnitVector
from powerspherical.special import log_sphere_area

try:
    import pyro
    from pyro.distributions import Delta
    from pyro.distributions.torch_distribution import TorchDistribution, TorchDistributionMixin
    from pyro.distributions.util import sum_rightmost
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
    """``powerspherical.HypersphericalUniform`` for Pyro."""

    @staticmethod
    def infer_shapes(**arg_shapes: Any) -> Any:
        """Raise: the event shape is the value of ``dim``, which the shapes of arguments do not tell.

        >>> HypersphericalUniform.infer_shapes(dim=())
        Traceback (most recent call last):
        NotImplementedError: the event shape of HypersphericalUniform is (dim,), and ...
        """
        raise NotImplementedError(
            "the event shape of HypersphericalUniform is (dim,), and shapes of arguments do not tell the value of dim: "
            "use HypersphericalUniform(dim).event_shape"
        )


class PowerSphericalMarginal(distributions.PowerSphericalMarginal, TorchDistributionMixin):
    """``powerspherical.PowerSphericalMarginal`` for Pyro: the law of t, with κ of shape (…)."""


class VonMisesFisherMarginal(distributions.VonMisesFisherMarginal, TorchDistributionMixin):
    """``powerspherical.VonMisesFisherMarginal`` for Pyro: the law of t, with κ of shape (…)."""


class SphericalCauchyMarginal(distributions.SphericalCauchyMarginal, TorchDistributionMixin):
    """``powerspherical.SphericalCauchyMarginal`` for Pyro: the law of t, with κ of shape (…)."""


class _VectorMixin(TorchDistributionMixin):
    """Pyro's methods for a distribution with ``loc`` and ``concentration``.

    >>> PowerSpherical.infer_shapes(loc=(5, 3), concentration=(4, 1))
    (torch.Size([4, 5]), torch.Size([3]))
    """

    @staticmethod
    def infer_shapes(loc: Any, concentration: Any = ()) -> Any:  # type: ignore[override]
        """Return the batch shape and the event shape for arguments of these shapes."""
        return torch.broadcast_shapes(loc[:-1], concentration), torch.Size(loc[-1:])


class SphericalCauchy(distributions.SphericalCauchy, _VectorMixin):
    """``powerspherical.SphericalCauchy`` for Pyro, with ``loc`` of shape (…, d) and ``concentration`` of shape (…)."""

    _marginal_class = SphericalCauchyMarginal


class VonMisesFisher(distributions.VonMisesFisher, _VectorMixin):
    """``powerspherical.VonMisesFisher`` for Pyro, with ``loc`` of shape (…, d) and ``concentration`` of shape (…)."""

    _marginal_class = VonMisesFisherMarginal


class PowerSpherical(distributions.PowerSpherical, _VectorMixin):
    """``powerspherical.PowerSpherical`` for Pyro, with ``loc`` of shape (…, d) and ``concentration`` of shape (…)."""

    _marginal_class = PowerSphericalMarginal
    _closest_class = VonMisesFisher


class SphereReparam(Reparam):
    """Replace a latent site x on the sphere by a vector z in R^d and the deterministic site x = z/‖z‖.

    The length of z is independent of its direction and distributed as that of a standard normal vector. So the
    prior and the posterior of x stay exactly the same. The new site is called ``NAME_vector``; it has the shape of x
    and no constraint, so that NUTS, HMC and continuous autoguides can be used. It applies to any latent site whose
    support is ``unit_vector``: of any family, in plates, and with ``to_event``.

    >>> def model():
    ...     return pyro.sample("x", VonMisesFisher(torch.eye(3)[0], 100.0))
    >>> free = pyro.poutine.reparam(model, {"x": SphereReparam()})
    >>> mcmc = pyro.infer.MCMC(pyro.infer.NUTS(free), num_samples=5, warmup_steps=5, disable_progbar=True)
    >>> mcmc.run()
    >>> mcmc.get_samples()["x_vector"].shape
    torch.Size([5, 3])
    """

    def apply(self, msg: Any) -> Any:
        """Return the message of the deterministic site x, after sampling z of the same shape. Pyro calls it."""
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

    Its density relative to the standard normal distribution is that of x relative to the uniform distribution. For an
    event shape (…, d), as ``to_event`` makes it, each vector has its own length.
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
        *vectors, dim = self.event_shape
        relative = self.direction.log_prob(directions_of(value)) + math.prod(vectors) * log_sphere_area(dim)
        return relative + sum_rightmost(Normal(0.0, 1.0).log_prob(value), self.event_dim)
