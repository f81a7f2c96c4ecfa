"""Families of rotationally symmetric distributions on the sphere.

A ``Family`` needs the log-density as a function of the cosine t = μᵀx and computes everything else by quadrature. An
``ExponentialFamily`` has the density exp(κT - Ψ), and most of its formulas follow from Ψ. ``register_family`` makes a
family known to the rest of the package.
"""

from powerspherical.families.base import ExponentialFamily, Family
from powerspherical.families.power_spherical import POWER_SPHERICAL
from powerspherical.families.registry import family_named, family_names, register_family
from powerspherical.families.spherical_cauchy import SPHERICAL_CAUCHY
from powerspherical.families.von_mises_fisher import VON_MISES_FISHER
from powerspherical.quadrature.cosine import Cosine

__all__ = [
    "POWER_SPHERICAL",
    "SPHERICAL_CAUCHY",
    "VON_MISES_FISHER",
    "Cosine",
    "ExponentialFamily",
    "Family",
    "family_named",
    "family_names",
    "register_family",
]
