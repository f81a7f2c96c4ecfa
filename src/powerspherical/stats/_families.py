"""The families, which a user calls to get frozen distributions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from powerspherical.distributions import (
    PowerSpherical,
    RotationallySymmetric,
    SphericalCauchy,
    VonMisesFisher,
)
from powerspherical.stats._arrays import Array, array_of, real, unit_vectors
from powerspherical.stats._frozen import FrozenRotational, FrozenUniform


class RotationalFamily:
    """A family with a mean direction ``mu`` and a concentration ``kappa``.

    Call it to fix the parameters, or pass them to a method after its other arguments, as in SciPy:
    ``family(mu, kappa).pdf(x)`` equals ``family.pdf(x, mu, kappa)``. ``RotationalFamily(MyDistribution)`` wraps a
    subclass of ``powerspherical.RotationallySymmetric``.

    Args:
        mu: mean directions, unit vectors of shape (…, d), d ≥ 2, in any real dtype.
        kappa: concentrations ≥ 0, a number or an array that broadcasts against ``mu.shape[:-1]``. 0 is the uniform.
        seed: default for the ``random_state`` of ``rvs``. It advances with every call of ``rvs``.

    Results are float64. For the families of this package and for d from 2 to 1e7 and κ from 0 to 1e9, the relative
    error is about 1e-15 for densities and entropies, and 1e-8 for probabilities of angles.

    >>> from powerspherical import PowerSpherical
    >>> RotationalFamily(PowerSpherical)(mu=[0, 0, 1], kappa=20)
    power_spherical(mu=[0.0, 0.0, 1.0], kappa=20.0)
    """

    def __init__(self, distribution: type[RotationallySymmetric], density: str = "") -> None:
        self._distribution = distribution
        law = f"The {distribution.family.title} distribution{density} on the unit sphere of R^d."
        self.__doc__ = f"{law}\n\n{inspect.getdoc(type(self))}"

    def __repr__(self) -> str:
        return self._distribution.family.name

    def __call__(self, mu: Any, kappa: Any, seed: Any = None) -> FrozenRotational:
        return FrozenRotational(self._distribution, mu, kappa, seed)

    def rvs(self, mu: Any, kappa: Any, size: Any = 1, random_state: Any = None) -> Array:
        """Draws, see ``FrozenSpherical.rvs``."""
        return self(mu, kappa).rvs(size, random_state)

    def pdf(self, x: Any, mu: Any, kappa: Any) -> Any:
        """The density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        return self(mu, kappa).pdf(x)

    def logpdf(self, x: Any, mu: Any, kappa: Any) -> Any:
        """The log density at unit vectors ``x`` (…, d) with respect to the area of the sphere."""
        return self(mu, kappa).logpdf(x)

    def entropy(self, mu: Any, kappa: Any) -> Any:
        """The differential entropy with respect to the area of the sphere, in nats."""
        return self(mu, kappa).entropy()

    def mean(self, mu: Any, kappa: Any) -> Array:
        """E x, (…, d): parallel to ``mu`` and inside the sphere."""
        return self(mu, kappa).mean()

    def cov(self, mu: Any, kappa: Any) -> Array:
        """The covariance matrix of x, (…, d, d)."""
        return self(mu, kappa).cov()

    def cdf(self, angle: Any, mu: Any, kappa: Any) -> Any:
        """The probability that x lies within ``angle`` (radians, in [0, π]) of ``mu``."""
        return self(mu, kappa).cdf(angle)

    def ppf(self, probability: Any, mu: Any, kappa: Any) -> Any:
        """The angle within which x lies with this ``probability``: the inverse of ``cdf``."""
        return self(mu, kappa).ppf(probability)

    def fit(
        self, x: Any, weights: Any = None, *, bias_correction: bool = False, max_iter: int = 200
    ) -> tuple[Array, Any]:
        """The maximum-likelihood estimates of ``mu`` and ``kappa``.

        Args:
            x: unit vectors of shape (n, …, d), n ≥ 1. The middle axes are a batch of independent fits.
            weights: numbers ≥ 0 of shape (n, …). Default: equal weights.
            bias_correction: whether to remove the bias of kappa that estimating mu causes.
            max_iter: maximum number of steps for mu. Warns with ``powerspherical.ConvergenceWarning`` if these were
                not enough.

        >>> from powerspherical.stats import von_mises_fisher
        >>> x = von_mises_fisher([0.6, 0.8], 30.0).rvs(5000, random_state=1)
        >>> mu, kappa = von_mises_fisher.fit(x)
        >>> mu.round(2), round(float(kappa) / 30, 1)
        (array([0.6, 0.8]), 1.0)
        """
        tensor = None if weights is None else real("weights", weights)
        fitted = self._distribution.fit(
            unit_vectors("x", x), tensor, bias_correction=bias_correction, max_iter=max_iter
        )
        return np.asarray(fitted.loc), array_of(fitted.concentration)


class UniformFamily:
    """The uniform distribution on the unit sphere of R^dim, dim ≥ 2: ``uniform_sphere(dim)``.

    >>> import numpy as np
    >>> sphere = uniform_sphere(3)
    >>> bool(np.isclose(sphere.pdf([0, 0, 1]), 1 / (4 * np.pi)))
    True
    >>> sphere.rvs(5, random_state=np.random.default_rng(0)).shape
    (5, 3)
    """

    def __repr__(self) -> str:
        return "uniform_sphere"

    def __call__(self, dim: int, seed: Any = None) -> FrozenUniform:
        return FrozenUniform(dim, seed)

    def rvs(self, dim: int, size: Any = 1, random_state: Any = None) -> Array:
        """Draws, see ``FrozenSpherical.rvs``."""
        return self(dim).rvs(size, random_state)


power_spherical = RotationalFamily(PowerSpherical, ", density ∝ (1 + muᵀx)^kappa,")
von_mises_fisher = RotationalFamily(VonMisesFisher, ", density ∝ exp(kappa muᵀx),")
spherical_cauchy = RotationalFamily(
    SphericalCauchy, ", density ∝ 1 / ‖x - rho mu‖^(2(d-1)) with rho = kappa / (kappa + 2),"
)
uniform_sphere = UniformFamily()
