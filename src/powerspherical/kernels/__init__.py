"""Drawing on the unit sphere, differentiably: one operator a family.

Every distribution here depends on x only through t = μᵀx, so a draw is a cosine t and a uniform direction in
the tangent space at μ (Theorem 1 of De Cao & Aziz, 2020). ``_geometry`` draws directions and puts the point
together, ``_operator`` makes a torch operator of it, and a family's file says how t is drawn and how it moves
with the concentration. Start a new family from ``power_spherical.py``, the shortest.
"""

from powerspherical.kernels.power_spherical import power_spherical
from powerspherical.kernels.uniform import uniform
from powerspherical.kernels.von_mises_fisher import von_mises_fisher

__all__ = ["power_spherical", "uniform", "von_mises_fisher"]
