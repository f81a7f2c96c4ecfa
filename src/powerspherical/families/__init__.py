"""What a family of distributions on the sphere is, and the families there are.

A family is one object. ``Family`` is any rotationally symmetric law: given the logarithm of its density as a function
of the cosine t = μᵀx, it computes everything else by quadrature. ``ExponentialFamily`` is the special case
exp(κT - Ψ), for which everything follows from Ψ. ``register_family`` makes one known to the rest of the package.
"""

from powerspherical.families.base import Family
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.families.power_spherical import POWER_SPHERICAL
from powerspherical.families.registry import family_named, family_names, register_family
from powerspherical.families.spherical_cauchy import SPHERICAL_CAUCHY
from powerspherical.families.von_mises_fisher import VON_MISES_FISHER

__all__ = [
    "POWER_SPHERICAL",
    "SPHERICAL_CAUCHY",
    "VON_MISES_FISHER",
    "ExponentialFamily",
    "Family",
    "family_named",
    "family_names",
    "register_family",
]
