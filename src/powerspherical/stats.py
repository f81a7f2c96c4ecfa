"""The distributions in SciPy's style: frozen objects, NumPy arrays in and out, float64. SciPy is not needed.

``power_spherical``, ``von_mises_fisher``, ``spherical_cauchy`` and ``uniform_sphere`` have the interface of
``scipy.stats.vonmises_fisher`` and ``uniform_direction``. ``RotationalFamily`` wraps any other rotationally symmetric
distribution.

>>> from powerspherical.stats import power_spherical
>>> p = power_spherical(mu=[0, 0, 1], kappa=20)
>>> p
power_spherical(mu=[0.0, 0.0, 1.0], kappa=20.0)
>>> round(float(p.cdf(0.5)), 4)  # the mass within half a radian of mu
0.7346
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerspherical._torch.random import KeyedGenerator
from powerspherical._torch.rows import row_lengths
from powerspherical.distributions import (
    PowerSpherical,
    RotationallySymmetric,
    SphericalCauchy,
    VonMisesFisher,
    validation,
)
from powerspherical.distributions.sampling import sizes

__all__ = ["RotationalFamily", "power_spherical", "spherical_cauchy", "uniform_sphere", "von_mises_fisher"]

Array = np.ndarray[Any, np.dtype[Any]]

#: Largest deviation of a norm from one, as in SciPy. It accepts float32 unit vectors, which are then renormalised.
NORM_TOLERANCE = 1e-5
_SEEDS = 2**63 - 1
_SHOWN = 8  # a repr shows the entries of arrays up to this size, and the shape of larger ones

#: The docstring of a family, from its title, its density and its name.
_DESCRIPTION = """The {0} distribution{1} on the unit sphere of R^d.

Arguments, methods and accuracy are those of ``RotationalFamily``. ``mu`` has the shape (…, d), and ``kappa`` (…).

>>> p = {2}(mu=[0, 0, 1], kappa=20)
>>> p.rvs(5, random_state=0).shape, p.pdf([[0, 0, 1], [1, 0, 0]]).shape
((5, 3), (2,))
"""


class RotationalFamily:
    """A family with a mean direction ``mu`` and a concentration ``kappa``.

    Call it to fix the parameters, or pass them to a method after its other arguments, as in SciPy:
    ``family(mu, kappa).pdf(x)`` equals ``family.pdf(x, mu, kappa)``. ``RotationalFamily(MyDistribution)`` wraps a
    subclass of ``powerspherical.RotationallySymmetric``.

    Args:
        mu: mean directions, unit vectors of shape (…, d), d ≥ 2, in any real dtype.
        kappa: concentrations ≥ 0, a number or an array that broadcasts against ``mu.shape[:-1]``. 0 is the uniform.
        seed: default for the ``random_state`` of ``rvs``. It advances with every call of ``rvs``.

    Batch shapes of all arguments broadcast, and results are float64. For the families of this package and for d from 2
    to 1e7 and κ from 0 to 1e9, the relative error is about 1e-15 for densities and entropies, and 1e-8 for
    probabilities of angles.

    >>> from powerspherical import PowerSpherical
    >>> family = RotationalFamily(PowerSpherical)
    >>> family(mu=[0, 0, 1], kappa=20)
    power_spherical(mu=[0.0, 0.0, 1.0], kappa=20.0)
    >>> x = family.rvs([0, 0, 1], [1, 20], size=10000, random_state=0)
    >>> x.shape, family.logpdf(x, [0, 0, 1], [1, 20]).shape
    ((10000, 2, 3), (10000, 2))
    >>> family.pdf([[0, 0, 1], [0.6, 0, 0.8]], mu=[0, 0, 1], kappa=20).round(4)
    array([1.6711, 0.2032])
    >>> family.entropy(mu=[0, 0, 1], kappa=[0, 20]).round(4)
    array([2.531 , 0.4389])
    >>> family.mean([0, 0, 1], 20).round(4), family.cov([0, 0, 1], 20).diagonal().round(4)
    (array([0.    , 0.    , 0.9091]), array([0.083 , 0.083 , 0.0075]))
    >>> family.cdf([0.5, 1.0], [0, 0, 1], 20).round(4), family.ppf([0.5, 0.95], [0, 0, 1], 20).round(4)
    (array([0.7346, 0.9958]), array([0.3624, 0.7464]))
    >>> mu, kappa = family.fit(x)
    >>> mu.shape, (kappa / [1, 20]).round(1)
    ((2, 3), array([1., 1.]))
    """

    def __init__(self, distribution: type[RotationallySymmetric], density: str = "") -> None:
        self._distribution = distribution
        self.__doc__ = _DESCRIPTION.format(distribution.family.title, density, distribution.family.name)

    def __repr__(self) -> str:
        return self._distribution.family.name

    def __call__(self, mu: Any, kappa: Any, seed: Any = None) -> Frozen:
        loc, concentration = _unit_vectors("mu", mu), _real("kappa", kappa)
        validation.paired_shape("mu", loc, "kappa", concentration)
        way_out = "negate mu to concentrate around the opposite direction"
        validation.require([validation.non_negative("kappa", concentration, way_out=way_out)])
        return Frozen(self._distribution(loc, concentration, validate_args=True), seed)

    def rvs(self, mu: Any, kappa: Any, size: Any = 1, random_state: Any = None) -> Array:
        """Return draws of shape ``size`` + the shape of the parameters ``mu`` (…, d) and ``kappa`` + (d,).

        ``size`` is a number, a shape, or None for one draw per parameter, without a further axis. ``random_state`` is
        None (NumPy's global state), a seed, or a ``numpy.random`` ``Generator`` or ``RandomState``. It determines the
        draws, also in threads. Torch's global generator is not used.
        """
        return self(mu, kappa).rvs(size, random_state)

    def pdf(self, x: Any, mu: Any, kappa: Any) -> Any:
        """Return the density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        return self(mu, kappa).pdf(x)

    def logpdf(self, x: Any, mu: Any, kappa: Any) -> Any:
        """Return the log of ``pdf``, of the same shape."""
        return self(mu, kappa).logpdf(x)

    def entropy(self, mu: Any, kappa: Any) -> Any:
        """Return the differential entropy (…) with respect to the area of the sphere, in nats."""
        return self(mu, kappa).entropy()

    def mean(self, mu: Any, kappa: Any) -> Array:
        """Return the mean E x, of shape (…, d). It is parallel to ``mu`` and lies inside the sphere."""
        return self(mu, kappa).mean()

    def cov(self, mu: Any, kappa: Any) -> Array:
        """Return the covariance matrix of x, of shape (…, d, d)."""
        return self(mu, kappa).cov()

    def cdf(self, angle: Any, mu: Any, kappa: Any) -> Any:
        """Return the probability that x lies within ``angle`` (radians, in [0, π], of any shape) of ``mu``."""
        return self(mu, kappa).cdf(angle)

    def ppf(self, probability: Any, mu: Any, kappa: Any) -> Any:
        """Return the angle within which x lies with this ``probability``: the inverse of ``cdf``, of the same shape."""
        return self(mu, kappa).ppf(probability)

    def fit(
        self, x: Any, weights: Any = None, *, bias_correction: bool = False, max_iter: int = 200
    ) -> tuple[Array, Any]:
        """Return the maximum-likelihood estimates of ``mu``, of shape (…, d), and ``kappa``, of shape (…).

        Args:
            x: unit vectors of shape (n, …, d), n ≥ 1. The middle axes are a batch of independent fits.
            weights: numbers ≥ 0 of shape (n, …). Default: equal weights.
            bias_correction, max_iter: as for ``powerspherical.RotationallySymmetric.fit``.
        """
        if np.ndim(x) < 2:
            raise ValueError(
                f"x must hold vectors, of shape (n, …, d), got {np.shape(x)}: convert angles with "
                "np.stack((np.cos(x), np.sin(x)), axis=-1)"
            )
        tensor = None if weights is None else _real("weights", weights)
        fitted = self._distribution.fit(
            _unit_vectors("x", x), tensor, bias_correction=bias_correction, max_iter=max_iter
        )
        return fitted.loc.numpy(), _array(fitted.concentration)


class Frozen:
    """A family with fixed mean direction ``mu`` and concentration ``kappa``. Methods are those of ``RotationalFamily``.

    ``dim`` is the ambient dimension d, and ``random_state`` the default of ``rvs``.
    """

    def __init__(self, distribution: RotationallySymmetric, seed: Any, shown: str = "") -> None:
        self.dim, self.random_state = distribution.dim, _generator(seed)
        self._distribution, self._shown = distribution, shown

    def __repr__(self) -> str:
        parameters = f"mu={_shown(self.mu)}, kappa={_shown(self.kappa)}"
        return self._shown or f"{self._distribution.family.name}({parameters})"

    @property
    def mu(self) -> Array:
        """The mean direction, (…, d)."""
        return self._distribution.loc.numpy().copy()

    @property
    def kappa(self) -> Any:
        """The concentration."""
        return _array(self._distribution.concentration)

    def rvs(self, size: Any = 1, random_state: Any = None) -> Array:
        """Draws, of shape ``size`` + the shape of the parameters + (d,). For arguments see ``RotationalFamily.rvs``."""
        shape = torch.Size() if size is None else sizes("size", size)
        seed = _seed(self.random_state if random_state is None else _generator(random_state))
        return self._distribution.sample(shape, generator=KeyedGenerator(seed)).numpy()

    def logpdf(self, x: Any) -> Any:
        """The log density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        points = _unit_vectors("x", x, self.dim)
        shapes = {"x.shape[:-1]": points.shape[:-1], "the parameters' shape": self._distribution.batch_shape}
        validation.broadcast_shape(**shapes)  # in SciPy's names
        return _array(self._distribution.log_prob(points))

    def pdf(self, x: Any) -> Any:
        """The density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        return np.exp(self.logpdf(x))

    def entropy(self) -> Any:
        """The differential entropy with respect to the area of the sphere, in nats."""
        return _array(self._distribution.entropy())

    def mean(self) -> Array:
        """E x, (…, d): parallel to ``mu`` and inside the sphere."""
        return self._distribution.mean.numpy()

    def cov(self) -> Array:
        """The covariance matrix of x, (…, d, d)."""
        return self._distribution.covariance_matrix.numpy()

    def cdf(self, angle: Any) -> Any:
        """The probability that x lies within ``angle`` (radians, in [0, π]) of the mean direction."""
        return _array(self._distribution.cap_probability(_real("angle", angle)))

    def ppf(self, probability: Any) -> Any:
        """The angle within which x lies with this ``probability``: the inverse of ``cdf``."""
        return _array(self._distribution.cap_angle(_real("probability", probability)))


class UniformFamily:
    """The uniform distribution on the unit sphere of R^dim, dim ≥ 2.

    ``uniform_sphere(dim)`` fixes the dimension. ``cdf`` and ``ppf`` measure angles from the first unit vector.

    >>> sphere = uniform_sphere(3)
    >>> bool(np.isclose(sphere.pdf([0, 0, 1]), 1 / (4 * np.pi)))
    True
    >>> sphere.rvs(5, random_state=np.random.default_rng(0)).shape, uniform_sphere.rvs(3, size=5).shape
    ((5, 3), (5, 3))
    """

    def __repr__(self) -> str:
        return "uniform_sphere"

    def __call__(self, dim: int, seed: Any = None) -> Frozen:
        pole = torch.eye(1, validation.dimension(dim), dtype=torch.float64, device="cpu")[0]
        return Frozen(PowerSpherical(pole, 0.0), seed, f"uniform_sphere(dim={dim})")

    def rvs(self, dim: int, size: Any = 1, random_state: Any = None) -> Array:
        """Return draws of shape ``size`` + (dim,), with the arguments of ``RotationalFamily.rvs``."""
        return self(dim).rvs(size, random_state)


power_spherical = RotationalFamily(PowerSpherical, ", density ∝ (1 + muᵀx)^kappa,")
von_mises_fisher = RotationalFamily(VonMisesFisher, ", density ∝ exp(kappa muᵀx),")
spherical_cauchy = RotationalFamily(
    SphericalCauchy, ", density ∝ 1 / ‖x - rho mu‖^(2(d-1)) with rho = kappa / (kappa + 2),"
)
uniform_sphere = UniformFamily()

#: More docstrings for doctest, which does not look at instances.
__test__ = {repr(family): family.__doc__ for family in (power_spherical, von_mises_fisher, spherical_cauchy)}


def _real(name: str, value: Any) -> Tensor:
    """Return an array of real numbers as a float64 tensor."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be an array of real numbers, got {array.dtype} of shape {array.shape}")
    return torch.from_numpy(array.astype(np.float64))


def _unit_vectors(name: str, value: Any, dim: int | None = None) -> Tensor:
    """Return unit vectors along the last axis, of length ``dim`` if given, as a renormalised float64 tensor."""
    vectors = _real(name, value)
    if dim is not None:
        validation.ends_in(name, vectors, (dim,))
    validation.vectors(name, vectors)
    shape = tuple(vectors.shape)
    norms = row_lengths(vectors.reshape(-1, shape[-1]), name, allow_zeros=True).reshape(*shape[:-1], 1)
    error = (norms - 1).abs()
    if not (error <= NORM_TOLERANCE).all():
        worst = norms.flatten()[error.argmax()].item()
        raise ValueError(
            f"{name} of shape {shape} must hold unit vectors along its last axis, but one has the norm {worst:.9g}: "
            f"divide by np.linalg.norm({name}, axis=-1, keepdims=True)"
        )
    return vectors / norms


def _array(values: Tensor) -> Any:
    """Return a NumPy array, or a NumPy scalar if there are no axes."""
    return values.numpy()[()]


def _shown(value: Any) -> str:
    return repr(value.tolist()) if value.size <= _SHOWN else f"<array of shape {value.shape}>"


def _generator(random_state: Any) -> Any:
    """Return a ``random_state`` as a NumPy generator. None, for NumPy's global state, stays None."""
    if isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        return np.random.default_rng(int(random_state))
    if random_state is None or isinstance(random_state, np.random.Generator | np.random.RandomState):
        return random_state
    raise ValueError(
        "random_state must be None, an integer ≥ 0, or a Generator or RandomState of numpy.random, "
        f"got {random_state!r}"
    )


def _seed(generator: Any) -> int:
    """Return a seed for torch, drawn from a NumPy generator, or from NumPy's global state."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(_SEEDS))
    return int((generator or np.random).randint(_SEEDS, dtype=np.int64))
