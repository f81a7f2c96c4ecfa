"""The distributions in SciPy's style: frozen objects, NumPy arrays in and out, float64. SciPy is not needed.

``power_spherical``, ``von_mises_fisher``, ``spherical_cauchy`` and ``uniform_sphere`` have the interface of
``scipy.stats.vonmises_fisher`` and ``uniform_direction``. They call the torch distributions, with the same accuracy at
any dimension and concentration. ``RotationalFamily`` wraps any other rotationally symmetric distribution.

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
