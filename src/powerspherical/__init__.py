"""Distributions on the unit sphere: Power Spherical, von Mises–Fisher, spherical Cauchy and uniform.

Importing the package registers the KL divergences of all pairs with ``torch.distributions.kl_divergence``, and a
transform to the sphere with ``torch.distributions.transform_to``. The other modules, such as ``powerspherical.nn``, are
imported on first use.
"""

import importlib
from types import ModuleType

from powerspherical import families, special
from powerspherical.distributions import (
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

_ON_FIRST_USE = frozenset({"compat", "mixture", "nn", "plot", "pyro", "stats", "testing"})


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
