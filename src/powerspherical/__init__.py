"""Distributions on the unit sphere: Power Spherical, von Mises–Fisher, spherical Cauchy and uniform.

Importing the package registers the KL divergences of all pairs with ``torch.distributions.kl_divergence``, and a
transform to the sphere with ``torch.distributions.transform_to``.
"""

from powerspherical import families, special
from powerspherical.distributions import (
    ConcatenatedSpheres,
    ConvergenceWarning,
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    ProductOfSpheres,
    RotationallySymmetric,
    SphericalCauchy,
    SphericalCauchyMarginal,
    VonMisesFisher,
    VonMisesFisherMarginal,
    pairwise_kl,
)

__version__ = "0.1.0"

__all__ = [
    "ConcatenatedSpheres",
    "ConvergenceWarning",
    "HypersphericalUniform",
    "PowerSpherical",
    "PowerSphericalMarginal",
    "ProductOfSpheres",
    "RotationallySymmetric",
    "SphericalCauchy",
    "SphericalCauchyMarginal",
    "VonMisesFisher",
    "VonMisesFisherMarginal",
    "families",
    "pairwise_kl",
    "special",
]
