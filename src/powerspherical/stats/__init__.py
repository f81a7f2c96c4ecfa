"""The distributions as SciPy has its own: frozen objects, NumPy arrays in and out, float64.

``power_spherical``, ``von_mises_fisher``, ``spherical_cauchy`` and ``uniform_sphere`` are used as
``scipy.stats.vonmises_fisher`` and ``uniform_direction`` are. The torch distributions do the work, so they are accurate
at any dimension and concentration. ``RotationalFamily`` makes such an object of any rotationally symmetric
distribution. SciPy itself is not needed.

>>> from powerspherical.stats import power_spherical
>>> p = power_spherical(mu=[0, 0, 1], kappa=20)
>>> p
power_spherical(mu=[0.0, 0.0, 1.0], kappa=20.0)
>>> p.rvs(1000, random_state=0).shape
(1000, 3)
>>> round(float(p.cdf(0.5)), 4)  # the mass within half a radian of mu
0.7346
"""

from powerspherical.stats._families import (
    RotationalFamily,
    power_spherical,
    spherical_cauchy,
    uniform_sphere,
    von_mises_fisher,
)

__all__ = ["RotationalFamily", "power_spherical", "spherical_cauchy", "uniform_sphere", "von_mises_fisher"]
