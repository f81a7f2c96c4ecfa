"""Distributions on the sphere as small pytrees, with the names and the order of arguments of the torch classes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from powerspherical.jax import curves
from powerspherical.jax.cosine import Cosine, cosine_between, direction
from powerspherical.jax.draws import draw, uniform
from powerspherical.jax.families import (
    POWER_SPHERICAL,
    SPHERICAL_CAUCHY,
    VON_MISES_FISHER,
    Family,
)
from powerspherical.jax.fit import maximum_likelihood
from powerspherical.jax.precision import computing, floats, in_float64
from powerspherical.jax.special import log_sphere_area
from powerspherical.jax.tails import log_tails, quantile

if TYPE_CHECKING:
    from typing_extensions import Self

#: Largest accepted deviation of a norm from one, as for the torch classes.
NORM_TOLERANCE = 1e-2


def _require(name: str, array: Array, good: Callable[[np.ndarray], np.ndarray], rule: str) -> None:
    """Raise ``ValueError`` if an entry of an array is not good. Inside a transform values cannot be seen."""
    if isinstance(array, jax.core.Tracer):
        return
    values = np.asarray(array, np.float64)
    if not (fine := good(values)).all():
        worst = values[~fine][0]
        raise ValueError(f"{name} of shape {array.shape} must hold {rule}, got values such as {worst}")


class _OnSphere:
    """What all distributions share: shapes."""

    dim: int

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of a batch of distributions."""
        raise NotImplementedError

    @property
    def event_shape(self) -> tuple[int]:
        """(d,)"""
        return (self.dim,)

    def _value(self, value: Array) -> Array:
        value = jnp.asarray(value)
        if value.ndim < 1 or value.shape[-1] != self.dim:
            raise ValueError(f"value must have the shape (…, {self.dim}), got {value.shape}")
        return value


@jax.tree_util.register_pytree_node_class
class HypersphericalUniform(_OnSphere):
    """The uniform distribution on the unit sphere of R^dim.

    Args:
        dim: the ambient dimension d ≥ 2.
        dtype: of draws and moments. Default: JAX's default.
        batch_shape: of a batch of such distributions.

    >>> prior = HypersphericalUniform(3)
    >>> prior.batch_shape, prior.event_shape, prior.sample(jax.random.key(0), (5,)).shape
    ((), (3,), (5, 3))
    >>> prior.entropy(), prior.log_prob(jnp.array([0.0, 0.6, 0.8]))  # ± log 4π
    (Array(2.5310242, dtype=float32), Array(-2.5310242, dtype=float32))
    >>> prior.mean, prior.mode
    (Array([0., 0., 0.], dtype=float32), Array([nan, nan, nan], dtype=float32))
    >>> prior.variance
    Array([0.33333334, 0.33333334, 0.33333334], dtype=float32)
    >>> prior.covariance_matrix.shape
    (3, 3)
    """

    def __init__(self, dim: int, *, dtype: Any = None, batch_shape: Sequence[int] = ()) -> None:
        if not isinstance(dim, int) or dim < 2:
            raise ValueError(f"dim must be an integer ≥ 2 (2 is the circle), got {dim!r}")
        self.dim, self.dtype, self._batch_shape = (
            dim,
            jnp.dtype(dtype or jnp.result_type(float)),
            tuple(batch_shape),
        )

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), (self.dim, self.dtype, self._batch_shape)

    @classmethod
    def tree_unflatten(cls, fields: Any, _: Any) -> Self:
        dim, dtype, batch_shape = fields
        return cls(dim, dtype=dtype, batch_shape=batch_shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dim}, dtype={self.dtype}, batch_shape={self.batch_shape})"

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self._batch_shape

    def sample(self, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """Draw unit vectors of shape ``sample_shape + batch_shape + (d,)``."""
        shape = (*sample_shape, *self.batch_shape, self.dim)
        return uniform(key, shape, computing(self.dtype)).astype(self.dtype)

    def log_prob(self, value: Array) -> Array:
        """Return -log(area) for each vector of ``value`` (…, d); NaN where that has NaN."""
        value = self._value(value)
        shape = jnp.broadcast_shapes(value.shape[:-1], self.batch_shape)
        density = jnp.where(jnp.isnan(value).any(-1), jnp.nan, -log_sphere_area(self.dim))
        return jnp.broadcast_to(density.astype(computing(value)), shape)

    def entropy(self) -> Array:
        """Return log(area), of the batch shape."""
        return jnp.full(self.batch_shape, log_sphere_area(self.dim), computing(self.dtype))

    @property
    def mean(self) -> Array:
        """The origin, of shape batch_shape + (d,)."""
        return jnp.zeros((*self.batch_shape, self.dim), self.dtype)

    @property
    def mode(self) -> Array:
        """NaN, of shape batch_shape + (d,): every point is a mode."""
        return jnp.full((*self.batch_shape, self.dim), jnp.nan, self.dtype)

    @property
    def variance(self) -> Array:
        """1/d for every coordinate, of shape batch_shape + (d,)."""
        return jnp.full((*self.batch_shape, self.dim), 1 / self.dim, self.dtype)

    @property
    def covariance_matrix(self) -> Array:
        """The identity divided by d, of shape batch_shape + (d, d)."""
        return self.variance[..., None] * jnp.eye(self.dim, dtype=self.dtype)


class RotationallySymmetric(_OnSphere):
    """A distribution on the unit sphere of R^d with a mean direction ``loc`` and a ``concentration``.

    A subclass names its ``family`` and is a pytree with the leaves ``loc`` and ``concentration``. Methods work under
    ``jit``, ``vmap``, ``grad``, ``jacfwd`` and ``checkpoint``, closed forms also under ``hessian``. Results have the
    dtype of the parameters; densities and functions of κ at least float32. What cancels is computed in float64.

    Args:
        loc: mean directions μ, unit vectors of shape (…, d), d ≥ 2.
        concentration: κ ≥ 0, a number or an array that broadcasts against ``loc.shape[:-1]``; 0 is the uniform.
        validate_args: whether to check values, where they are known. Shapes are always checked.

    >>> p = PowerSpherical(jnp.array([0.6, 0.8]), jnp.array([0.0, 10.0]))
    >>> p.batch_shape, p.sample(jax.random.key(0), (5,)).shape
    ((2,), (5, 2, 2))
    >>> p.mean  # κ/(κ+1) along loc
    Array([[0.        , 0.        ],
           [0.54545456, 0.72727275]], dtype=float32)
    >>> p.dim, p.event_shape, p.mode.shape, p.mean_direction is p.loc
    (2, (2,), (2, 2), True)
    >>> p.log_prob(jnp.array([0.6, 0.8])), p.entropy()
    (Array([-1.837877  , -0.10172462], dtype=float32), Array([1.837877 , 0.5892403], dtype=float32))
    >>> p.relative_entropy(), p.log_normalizer
    (Array([0.       , 1.2486367], dtype=float32), Array([1.837877 , 7.0331964], dtype=float32))
    >>> p.variance, p.covariance_matrix.shape
    (Array([[0.5       , 0.5       ],
           [0.10702479, 0.06652892]], dtype=float32), (2, 2, 2))
    >>> p.cap_probability(0.5), p.cap_angle(0.5)
    (Array([0.15915494, 0.74494   ], dtype=float32), Array([1.5707964 , 0.29733837], dtype=float32))
    >>> PowerSpherical.from_kl(p.loc, 1.0).relative_entropy()
    Array(1., dtype=float32)
    >>> PowerSpherical.from_mean_length(p.loc, 0.5).mean
    Array([0.3, 0.4], dtype=float32)
    >>> PowerSpherical.fit(jnp.array([[0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])).loc
    Array([0.49817038, 0.86707914], dtype=float32)
    """

    family: ClassVar[Family]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_node_class(cls)

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        loc, concentration = jnp.asarray(loc), jnp.asarray(concentration)
        dtype = jnp.promote_types(jnp.result_type(loc, concentration), jnp.float16)
        self.loc, self.concentration = loc.astype(dtype), concentration.astype(dtype)
        if loc.ndim < 1 or loc.shape[-1] < 2:
            raise ValueError(f"loc must have the shape (…, d) with d ≥ 2 (2 is the circle), got {loc.shape}")
        batch, shape = loc.shape[:-1], concentration.shape
        if batch and shape[: len(batch)] == batch and shape[len(batch) :] == (1,):
            raise ValueError(
                f"concentration of shape {shape} does not fit loc of shape {loc.shape}: use "
                "concentration.squeeze(-1), or loc[None] for all pairs"
            )
        try:
            jnp.broadcast_shapes(batch, shape)
        except ValueError as error:
            raise ValueError(
                f"loc.shape[:-1] {batch} and concentration.shape {shape} do not broadcast"
            ) from error
        if validate_args:
            _require(
                "concentration", concentration, lambda k: (k >= 0) & (k < math.inf), "finite numbers ≥ 0"
            )
            norms = jnp.linalg.norm(self.loc, axis=-1)
            _require("the norm of loc", norms, lambda n: abs(n - 1) <= NORM_TOLERANCE, "ones (normalise loc)")

    def tree_flatten(self) -> tuple[tuple[Array, Array], None]:
        return (self.loc, self.concentration), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> Self:
        new = object.__new__(cls)
        new.loc, new.concentration = leaves  # not checked: JAX also puts other objects into a pytree
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}(loc={self.loc!r}, concentration={self.concentration!r})"

    @property
    def dim(self) -> int:  # type: ignore[override]
        """The ambient dimension d."""
        return self.loc.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return jnp.broadcast_shapes(self.loc.shape[:-1], self.concentration.shape)

    @classmethod
    def from_kl(cls, loc: Any, nats: Any, validate_args: bool | None = None) -> Self:
        """Return the distribution whose KL divergence from the uniform is ``nats`` ≥ 0; differentiable for nats > 0."""
        loc, nats = floats(loc, nats)
        if validate_args:
            _require("nats", nats, lambda x: x >= 0, "numbers ≥ 0")
        return cls(loc, _from_relative_entropy(cls.family, loc.shape[-1], nats), validate_args)

    @classmethod
    def from_mean_length(cls, loc: Any, length: Any, validate_args: bool | None = None) -> Self:
        """Return the distribution whose mean resultant length ‖E x‖ is ``length`` in [0, 1); differentiable."""
        loc, length = floats(loc, length)
        if validate_args:
            _require("length", length, lambda x: (x >= 0) & (x < 1), "numbers in [0, 1)")
        known = jnp.where((length >= 0) & (length < 1), length, jnp.nan)
        return cls(loc, cls.family.from_mean_cosine(known, 1 - known, loc.shape[-1]), validate_args)

    @classmethod
    def fit(cls, x: Any, weights: Any = None, *, bias_correction: bool = False, max_iter: int = 200) -> Self:
        """Return the maximum-likelihood distribution for unit vectors x of shape (n, …, d).

        Args:
            x: unit vectors. No gradient flows back to them.
            weights: numbers ≥ 0 of shape (n, …). Default: equal weights.
            bias_correction: whether to remove the bias of κ, in an exponential family.
            max_iter: the maximum number of steps in the search for the direction.
        """
        return cls(*maximum_likelihood(cls.family, x, weights, max_iter, bias_correction))

    @property
    def mean_direction(self) -> Array:
        """Alias of ``loc``, of shape (…, d)."""
        return self.loc

    @property
    def _kappa(self) -> Array:
        """κ of the batch shape, in at least float32."""
        return jnp.broadcast_to(self.concentration, self.batch_shape).astype(computing(self.concentration))

    def sample(self, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """Draw unit vectors of shape ``sample_shape + batch_shape + (d,)``, differentiable once in both parameters.

        The derivative in ``loc`` is that of a rotation, the one in κ that of the draw at fixed random numbers. Neither
        has a pole. ``key`` is a JAX random key.
        """
        shape = (*sample_shape, *self.batch_shape)
        return draw(self.family, key, self.loc, self.concentration, shape)

    def log_prob(self, value: Array) -> Array:
        """Return the log density at the unit vectors ``value`` (…, d); differentiable to any order."""
        return _log_prob(self.family, self._value(value), self.loc, self.concentration)

    def relative_entropy(self) -> Array:
        """Return KL(self‖uniform), of the batch shape."""
        return _of_kappa(self.family, "relative_entropy", self.dim, self._kappa)

    def entropy(self) -> Array:
        """Return the differential entropy with respect to the area of the sphere, of the batch shape."""
        return log_sphere_area(self.dim) - self.relative_entropy()

    @property
    def log_normalizer(self) -> Array:
        """The log of the integral of the customary density, such as (1+t)^κ, over the sphere, of the batch shape."""
        return _of_kappa(self.family, "log_partition", self.dim, self._kappa) + log_sphere_area(self.dim)

    @property
    def mean(self) -> Array:
        """E x = E[t]·loc, of shape batch_shape + (d,)."""
        length = _of_kappa(self.family, "mean_cosine", self.dim, self._kappa)
        return (length[..., None] * self.loc).astype(self.loc.dtype)

    @property
    def mode(self) -> Array:
        """``loc``, of shape batch_shape + (d,)."""
        return jnp.broadcast_to(self.loc, (*self.batch_shape, self.dim))

    def _variances(self) -> tuple[Array, Array]:
        """Return Var t, and the variance (1 - E t²)/(d-1) along each tangent direction."""
        variance = _of_kappa(self.family, "variance_cosine", self.dim, self._kappa)
        loss = _of_kappa(self.family, "mean_loss", self.dim, self._kappa)
        return variance, (loss * (2 - loss) - variance) / (self.dim - 1)

    @property
    def variance(self) -> Array:
        """The variance of each coordinate, of shape batch_shape + (d,)."""
        along, across = (x[..., None] for x in self._variances())
        squares = jnp.square(self.loc.astype(along.dtype))
        return (along * squares + across * (1 - squares)).astype(self.loc.dtype)

    @property
    def covariance_matrix(self) -> Array:
        """Var[t] μμᵀ + (1 - E t²)/(d-1) (I - μμᵀ), of shape batch_shape + (d, d)."""
        along, across = (x[..., None, None] for x in self._variances())
        outer = (self.loc[..., None] * self.loc[..., None, :]).astype(along.dtype)
        return (along * outer + across * (jnp.eye(self.dim) - outer)).astype(self.loc.dtype)

    def cap_probability(self, angle: Any) -> Array:
        """Return the probability within ``angle`` (radians in [0, π]) of ``loc``; differentiable once.

        ``angle`` broadcasts against the batch shape. It is computed in float64.
        """
        return _cap_probability(self.family, self.dim, *floats(angle, self._kappa))

    def cap_angle(self, probability: Any) -> Array:
        """Return the angle of the cone around ``loc`` with this ``probability``: the inverse of ``cap_probability``.

        ``probability`` broadcasts against the batch shape.
        """
        return _cap_angle(self.family, self.dim, *floats(probability, self._kappa))


class PowerSpherical(RotationallySymmetric):
    """The Power Spherical distribution, with the density ∝ (1 + μᵀx)^κ (De Cao & Aziz 2020).

    >>> p = PowerSpherical(jnp.array([1.0, 0.0, 0.0]), 2.0)
    >>> p.entropy(), p.closest_von_mises_fisher().concentration
    (Array(2.0990787, dtype=float32), Array(1.796756, dtype=float32))
    """

    family = POWER_SPHERICAL

    def closest_von_mises_fisher(self) -> VonMisesFisher:
        """Return the von Mises–Fisher distribution q that minimises KL(self‖q): it has the same mean."""
        length, loss = (
            _of_kappa(self.family, name, self.dim, self._kappa) for name in ("mean_cosine", "mean_loss")
        )
        return VonMisesFisher(self.loc, VON_MISES_FISHER.from_mean_cosine(length, loss, self.dim))


class VonMisesFisher(RotationallySymmetric):
    """The von Mises–Fisher distribution, with the density ∝ exp(κ μᵀx).

    >>> VonMisesFisher(jnp.array([1.0, 0.0, 0.0]), 1.0).mean  # coth 1 - 1
    Array([0.31303528, 0.        , 0.        ], dtype=float32)
    """

    family = VON_MISES_FISHER


class SphericalCauchy(RotationallySymmetric):
    """The spherical Cauchy distribution (Kato & McCullagh 2020), with ρ = κ/(κ+2).

    >>> SphericalCauchy(jnp.array([1.0, 0.0]), 2.0).rho
    Array(0.5, dtype=float32)
    """

    family = SPHERICAL_CAUCHY

    @property
    def rho(self) -> Array:
        """ρ = κ/(κ+2) in [0, 1), of the batch shape: the length of the vector ψ = ρμ in the unit ball."""
        return self.concentration / (self.concentration + 2)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_kappa(family: Family, name: str, dim: int, kappa: Array) -> Array:
    """Return a function of κ of the family."""
    return getattr(family, name)(kappa, dim)


@functools.partial(jax.jit, static_argnums=(0,))
def _log_prob(family: Family, x: Array, loc: Array, concentration: Array) -> Array:
    dtype, dim = computing(x, loc, concentration), loc.shape[-1]
    t = cosine_between(_unit(x, dtype), _unit(loc, dtype))
    kappa = concentration.astype(dtype)
    return family.log_kernel(t, kappa, dim) + family.offset(kappa, dim) - log_sphere_area(dim)


def _unit(vectors: Array, dtype: Any) -> Array:
    """Convert unit vectors to a dtype. A conversion to higher precision normalises them again."""
    higher = jnp.finfo(dtype).eps < jnp.finfo(vectors.dtype).eps
    return direction(vectors.astype(dtype)) if higher else vectors.astype(dtype)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _from_relative_entropy(family: Family, dim: int, nats: Array) -> Array:
    # At 0 the derivative is +∞, because KL is ∝ κ² for small κ. A root has it in forward mode, too.
    zero = nats == 0
    root = jnp.sqrt(jnp.where(zero, nats, 1.0))
    target = jnp.where(nats > 0, nats, jnp.where(zero, 1.0, jnp.nan))
    found = in_float64(lambda x: curves.inverse(x, family.key, "relative_entropy", dim))(target)
    return jnp.where(zero, root, found)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _cap_probability(family: Family, dim: int, angle: Array, kappa: Array) -> Array:
    def probability(angle: Array, kappa: Array) -> Array:
        half = jnp.clip(angle, 0.0, math.pi) / 2
        t = Cosine(2 * jnp.square(jnp.sin(half)), 2 * jnp.square(jnp.cos(half)))
        return jnp.exp(log_tails(family, t, kappa, dim)[1])

    return in_float64(probability)(*jnp.broadcast_arrays(angle, kappa))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _cap_angle(family: Family, dim: int, probability: Array, kappa: Array) -> Array:
    def angle(probability: Array, kappa: Array) -> Array:
        t = quantile(family, 1 - probability, probability, kappa, dim)
        # At both ends a square root has an infinite slope, but the angle is constant.
        inside = (t.minus > 0) & (t.plus > 0)
        near, far = (jnp.sqrt(jnp.where(inside, x, 1.0)) for x in t)
        return jnp.where(inside, 2 * jnp.arctan2(near, far), lax.stop_gradient(t.minus) * (math.pi / 2))

    return in_float64(angle)(*jnp.broadcast_arrays(probability, kappa))


def kl_divergence(
    p: RotationallySymmetric | HypersphericalUniform, q: RotationallySymmetric | HypersphericalUniform
) -> Array:
    """Return KL(p‖q) ≥ 0 for any two distributions of this module on one sphere, with any directions.

    The result has the broadcast batch shape. It is computed in float64 and differentiable twice.

    >>> p = PowerSpherical(jnp.array([1.0, 0.0, 0.0]), 10.0)
    >>> kl_divergence(p, VonMisesFisher(jnp.array([0.0, 1.0, 0.0]), 10.0))
    Array(8.4930725, dtype=float32)
    """
    if p.dim != q.dim:
        raise ValueError(
            f"kl_divergence needs two distributions of one dimension, got dim {p.dim} and dim {q.dim}"
        )
    shape = jnp.broadcast_shapes(p.batch_shape, q.batch_shape)
    if isinstance(q, RotationallySymmetric):
        # The uniform is the member κ = 0 of q's family, with any direction.
        member = (
            p if isinstance(p, RotationallySymmetric) else type(q)(q.loc, jnp.zeros_like(q.concentration))
        )
        leaves = member.loc, member.concentration, q.loc, q.concentration
        found = _divergence(member.family, q.family, *leaves)
    elif isinstance(p, RotationallySymmetric):
        found = p.relative_entropy()
    else:
        found = jnp.zeros_like(p.entropy())
    return jnp.broadcast_to(found, shape)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _divergence(p: Family, q: Family, loc_p: Array, kappa_p: Array, loc_q: Array, kappa_q: Array) -> Array:
    dim = loc_p.shape[-1]

    def between(kappa_p: Array, kappa_q: Array, minus: Array, plus: Array) -> Array:
        return q.divergence(p, kappa_p, kappa_q, Cosine(minus, plus), dim)

    dtype = computing(loc_p, kappa_p, loc_q, kappa_q)
    angle = cosine_between(_unit(loc_p, dtype), _unit(loc_q, dtype)).map(lambda x: jnp.minimum(x, 2.0))
    arrays = jnp.broadcast_arrays(kappa_p.astype(dtype), kappa_q.astype(dtype), *angle)
    return jnp.maximum(in_float64(between)(*arrays), 0.0)
