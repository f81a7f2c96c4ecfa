"""Distributions on the unit sphere, and the marginals of their cosines."""

from powerspherical.distributions.constraints import NormalizeTransform, UnitVector, unit_vector
from powerspherical.distributions.fit import ConvergenceWarning
from powerspherical.distributions.kl import pairwise_kl  # the module registers the divergences
from powerspherical.distributions.marginal import (
    Marginal,
    PowerSphericalMarginal,
    SphericalCauchyMarginal,
    VonMisesFisherMarginal,
)
from powerspherical.distributions.power_spherical import PowerSpherical
from powerspherical.distributions.product import ProductOfSpheres
from powerspherical.distributions.rotational import RotationallySymmetric, distribution_named
from powerspherical.distributions.spherical_cauchy import SphericalCauchy
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.distributions.von_mises_fisher import VonMisesFisher

__all__ = [
    "ConvergenceWarning",
    "HypersphericalUniform",
    "Marginal",
    "NormalizeTransform",
    "PowerSpherical",
    "PowerSphericalMarginal",
    "ProductOfSpheres",
    "RotationallySymmetric",
    "SphericalCauchy",
    "SphericalCauchyMarginal",
    "UnitVector",
    "VonMisesFisher",
    "VonMisesFisherMarginal",
    "distribution_named",
    "pairwise_kl",
    "unit_vector",
]
