"""Mixtures on the sphere and spherical k-means, as scikit-learn estimators (extra ``mixture``).

Rows may be NumPy arrays, SciPy sparse matrices, CPU and CUDA tensors, or (extra ``dask``) Dask arrays, in float64,
float32 or half precision, of any length: only their directions count. Results are of the same kind, and stay where the
rows are.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "powerspherical.mixture needs scikit-learn: pip install 'powerspherical[mixture]'"
    ) from error

from powerspherical.mixture._choice import Choice, compare, plot_comparison
from powerspherical.mixture._mixtures import PowerSphericalMixture, SphericalMixture, VonMisesFisherMixture
from powerspherical.mixture._spherical_kmeans import SphericalKMeans

__all__ = [
    "Choice",
    "PowerSphericalMixture",
    "SphericalKMeans",
    "SphericalMixture",
    "VonMisesFisherMixture",
    "compare",
    "plot_comparison",
]
