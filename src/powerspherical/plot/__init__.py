"""Plots of distributions and clusters on the sphere, with Matplotlib (extra ``plot``).

- :func:`plot_density`: a density on the circle or the sphere, with points if you like.
- :func:`plot_marginal`: densities or cdfs of the cosine t = μᵀx, in any dimension.
- :func:`plot_clusters`: points coloured by cluster, in any dimension.

Each function draws on the Matplotlib axes that you pass, or on a new figure, and returns the axes. Colours are those of
Okabe and Ito, which people with a colour vision deficiency can tell apart.
"""

from powerspherical._extras import install_hint

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(f"powerspherical.plot needs Matplotlib: {install_hint('plot')}") from error

from powerspherical.plot._clusters import plot_clusters
from powerspherical.plot._density import plot_density
from powerspherical.plot._marginal import plot_marginal
from powerspherical.plot._shared import PALETTE as PALETTE  # not public: for other figures of this project

__all__ = ["plot_clusters", "plot_density", "plot_marginal"]
