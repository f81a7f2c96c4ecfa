"""The distributions for NumPyro, in models and guides, with NUTS, SVI and autoguides (extra ``numpyro``).

Each class is the class of the same name in ``powerspherical.jax`` and a NumPyro distribution. ``RotationallySymmetric``
does the same for a family of your own. Importing this module registers two things with NumPyro:

- the KL divergences of all pairs with ``numpyro.distributions.kl_divergence``, which ``TraceMeanField_ELBO`` uses,
- ``NormalizeTransform`` with ``biject_to(constraints.sphere)``, so that NUTS, HMC, autoguides and ``numpyro.param``
  accept directions without a reparameterisation.

>>> import jax
>>> import jax.numpy as jnp
>>> import numpyro
>>> from numpyro.infer import MCMC, NUTS
>>> def model(data):
...     pole = numpyro.sample("pole", HypersphericalUniform(3))
...     with numpyro.plate("data", len(data)):
...         numpyro.sample("x", VonMisesFisher(pole, 10.0), obs=data)
>>> data = VonMisesFisher(jnp.array([0.6, 0.0, 0.8]), 10.0).sample(jax.random.key(0), (100,))
>>> mcmc = MCMC(NUTS(model), num_warmup=100, num_samples=100, progress_bar=False)
>>> mcmc.run(jax.random.key(1), data)
>>> found = VonMisesFisher.fit(mcmc.get_samples()["pole"])
>>> bool(found.loc @ jnp.array([0.6, 0.0, 0.8]) > 0.99)
True

NumPyro validates by default. A ``loc`` or a value counts as a unit vector if its norm is within 10√d roundings of
one. The log-density of other values is -∞. So normalise data in the dtype in which you pass them.

Set ``dense_mass=True`` in NUTS if the data determine a direction to better than about a degree, or if directions and
other parameters are strongly correlated. The default mass matrix is diagonal, and then takes many small steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from powerspherical._extras import install_hint

try:
    import jax
    import jax.numpy as jnp
    from numpyro.distributions import constraints
    from numpyro.distributions.distribution import Distribution
    from numpyro.distributions.kl import kl_divergence
    from numpyro.distributions.transforms import ParameterFreeTransform, biject_to
    from numpyro.distributions.util import promote_shapes, validate_sample
except ModuleNotFoundError as error:
    raise ImportError(f"powerspherical.numpyro needs NumPyro and JAX: {install_hint('numpyro')}") from error

from jax import Array

from powerspherical.jax import distributions
from powerspherical.jax.cosine import direction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "HypersphericalUniform",
    "NormalizeTransform",
    "PowerSpherical",
    "RotationallySymmetric",
    "SphericalCauchy",
    "VonMisesFisher",
]


class HypersphericalUniform(distributions.HypersphericalUniform, Distribution):
    """``powerspherical.jax.HypersphericalUniform`` for NumPyro.

    >>> HypersphericalUniform(3).expand((4,)).to_event(1).sample(jax.random.key(0)).shape
    (4, 3)
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    support = constraints.sphere

    def __init__(
        self,
        dim: int,
        *,
        dtype: Any = None,
        batch_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(dim, dtype=dtype, batch_shape=batch_shape)
        Distribution.__init__(self, tuple(batch_shape), (dim,), validate_args=validate_args)

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), (*super().tree_flatten()[1], vars(self).get("_validate_args"))

    @classmethod
    def tree_unflatten(cls, fields: Any, _: Any) -> Self:
        dim, dtype, batch_shape, validate_args = fields
        return cls(dim, dtype=dtype, batch_shape=batch_shape, validate_args=validate_args)

    @validate_sample
    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        return super().log_prob(value)


class _RegisteredOnce:
    """A base that makes classes pytrees. Both others would, and JAX refuses the second time."""

    def __init_subclass__(cls, **options: Any) -> None:
        jax.tree_util.register_pytree_node_class(cls)


class RotationallySymmetric(_RegisteredOnce, distributions.RotationallySymmetric, Distribution):
    """``powerspherical.jax.RotationallySymmetric`` for NumPyro: the base of a distribution of your own.

    A subclass names its ``family``. Draws are differentiable in both parameters (``reparametrized_params``).

    Args:
        loc: mean directions, unit vectors of shape (…, d), d ≥ 2.
        concentration: κ ≥ 0, a number or an array that broadcasts against ``loc.shape[:-1]``.
        validate_args: whether to check values. Default: NumPyro's.

    >>> from powerspherical.jax import Family
    >>> class Exponential(Family):
    ...     name = title = "exponential"
    ...
    ...     def log_kernel(self, t, kappa, dim):
    ...         return -kappa * t.minus
    >>> class Mine(RotationallySymmetric):
    ...     family = Exponential()
    >>> p, q = Mine(jnp.array([0.0, 1.0]), 2.0), HypersphericalUniform(2)
    >>> round(float(kl_divergence(p, q)), 4)  # that of numpyro.distributions
    0.5716
    """

    arg_constraints = {"loc": constraints.sphere, "concentration": constraints.nonnegative}  # noqa: RUF012
    support = constraints.sphere
    reparametrized_params = ["loc", "concentration"]  # noqa: RUF012

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        checked = self._validate_args if validate_args is None else validate_args
        super().__init__(loc, concentration, checked)
        shape = self.batch_shape
        # With equally many batch axes, both may get a leading one, from a ``vmap`` or ``scan`` that returns ``self``.
        (self.loc,) = promote_shapes(self.loc, shape=(*shape, self.dim))
        (self.concentration,) = promote_shapes(self.concentration, shape=shape)
        Distribution.__init__(self, shape, (self.dim,), validate_args=validate_args)

    def tree_flatten(self) -> tuple[tuple[Array, Array], Any]:
        return super().tree_flatten()[0], vars(self).get("_validate_args")

    @classmethod
    def tree_unflatten(cls, validate_args: Any, leaves: Any) -> Self:
        new = super().tree_unflatten(None, leaves)
        if validate_args is not None:
            new._validate_args = validate_args
        return new

    @staticmethod
    def infer_shapes(loc: Any, concentration: Any = ()) -> Any:
        """Return the batch shape and the event shape for arguments of these shapes.

        >>> VonMisesFisher.infer_shapes(loc=(5, 3), concentration=(4, 1))
        ((4, 5), (3,))
        """
        return jnp.broadcast_shapes(loc[:-1], concentration), tuple(loc[-1:])

    @validate_sample
    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        return super().log_prob(value)


class VonMisesFisher(RotationallySymmetric, distributions.VonMisesFisher):
    """``powerspherical.jax.VonMisesFisher`` for NumPyro, with ``loc`` (…, d) and ``concentration`` (…)."""


class SphericalCauchy(RotationallySymmetric, distributions.SphericalCauchy):
    """``powerspherical.jax.SphericalCauchy`` for NumPyro, with ``loc`` (…, d) and ``concentration`` (…).

    >>> SphericalCauchy(jnp.array([0.6, 0.8]), jnp.ones(4)).shape()
    (4, 2)
    """


class PowerSpherical(RotationallySymmetric, distributions.PowerSpherical):
    """``powerspherical.jax.PowerSpherical`` for NumPyro, with ``loc`` (…, d) and ``concentration`` (…).

    >>> PowerSpherical.infer_shapes(loc=(5, 3), concentration=(4, 1))
    ((4, 5), (3,))
    >>> PowerSpherical(jnp.array([0.0, 0.6, 0.8]), 2.0).closest_von_mises_fisher().concentration
    Array(1.796756, dtype=float32)
    """

    def closest_von_mises_fisher(self) -> VonMisesFisher:
        """Return the von Mises–Fisher distribution q that minimises KL(self‖q): it has the same mean."""
        found = super().closest_von_mises_fisher()
        return VonMisesFisher(found.loc, found.concentration, vars(self).get("_validate_args"))


for _p in (HypersphericalUniform, RotationallySymmetric):
    for _q in (HypersphericalUniform, RotationallySymmetric):
        kl_divergence.register(_p, _q)(distributions.kl_divergence)


class NormalizeTransform(ParameterFreeTransform):
    """The map z ↦ x = z/‖z‖ from R^d to the unit sphere, for continuous inference.

    It is not a bijection, because the length of z is free. ``log_abs_det_jacobian`` gives the length a distribution,
    χ with d + 8 degrees of freedom, that is independent of x. So the posterior of x stays exact. With d degrees, as in
    Stan, z comes close to the origin, where x turns fast and NUTS diverges.

    ``inv`` returns a vector of a typical length.

    >>> to_sphere = biject_to(constraints.sphere)
    >>> to_sphere(jnp.array([0.0, 5.0]))
    Array([0., 1.], dtype=float32)
    >>> to_sphere(to_sphere.inv(jnp.array([0.6, 0.8])))
    Array([0.6, 0.8], dtype=float32)
    >>> to_sphere.log_abs_det_jacobian(jnp.ones((4, 2)), None).shape
    (4,)
    """

    domain = constraints.real_vector
    codomain = constraints.sphere

    #: By how much the degrees of freedom of the length exceed d.
    extra = 8

    def __call__(self, x: Array) -> Array:
        return direction(x)

    def _inverse(self, y: Array) -> Array:
        return y * math.sqrt(y.shape[-1] + self.extra - 1)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Return log f(r) - (d-1) log r at the length r of x, for the density f of the χ distribution.

        x has the shape (…, d), and the result (…).
        """
        half = 0.5 * (x.shape[-1] + self.extra)
        square = jnp.square(x).sum(-1)
        normalizer = (half - 1) * math.log(2) + math.lgamma(half)
        return 0.5 * self.extra * jnp.log(square) - 0.5 * square - normalizer


@biject_to.register(constraints.sphere)
def _to_sphere(constraint: Any) -> NormalizeTransform:
    return NormalizeTransform()
