"""Distributions for variables on the unit sphere: Power Spherical, von Mises–Fisher and the uniform.

Importing the package registers the KL divergences of all pairs with ``torch.distributions.kl_divergence`` and the
sphere with ``torch.distributions.transform_to``.
"""

from powerspherical import special
from powerspherical.distributions import (
    ConvergenceWarning,
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    VonMisesFisher,
    VonMisesFisherMarginal,
)

__version__ = "0.1.0"

__all__ = [
    "ConvergenceWarning",
    "HypersphericalUniform",
    "PowerSpherical",
    "PowerSphericalMarginal",
    "VonMisesFisher",
    "VonMisesFisherMarginal",
    "special",
]
