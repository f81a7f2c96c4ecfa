"""Mixtures on the sphere and spherical k-means, as scikit-learn estimators (extra ``mixture``).

Rows may be NumPy arrays, SciPy sparse matrices, CPU and CUDA tensors, or (extra ``dask``) Dask arrays. Only their
directions matter. Results are of the same kind, on the same device.
"""

from powerspherical._extras import install_hint

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(f"powerspherical.mixture needs scikit-learn: {install_hint('mixture')}") from error

from powerspherical._files.checkpoint import CheckpointError
from powerspherical.mixture._choice import Choice, compare, plot_comparison
from powerspherical.mixture._families import (
    PowerSphericalMixture,
    SphericalCauchyMixture,
    VonMisesFisherMixture,
)
from powerspherical.mixture._kmeans import SphericalKMeans
from powerspherical.mixture._mixture import SphericalMixture, load, mixture_named

__all__ = [
    "CheckpointError",
    "Choice",
    "PowerSphericalMixture",
    "SphericalCauchyMixture",
    "SphericalKMeans",
    "SphericalMixture",
    "VonMisesFisherMixture",
    "compare",
    "load",
    "mixture_named",
    "plot_comparison",
]
