"""Distributions on the unit sphere: Power Spherical, von Mises–Fisher, spherical Cauchy and uniform.

All names are imported on first use, so that ``powerspherical.jax`` does not load torch. The first use of a distribution
registers the KL divergences of all pairs with ``torch.distributions.kl_divergence``, and a transform to the sphere with
``torch.distributions.transform_to``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

#: Modules that are attributes without having been imported.
_MODULES = frozenset(
    {
        *(
            "compat",
            "distributions",
            "engines",
            "families",
            "jax",
            "kernels",
            "mixture",
            "nn",
            "numpyro",
            "plot",
        ),
        *("pyro", "quadrature", "sampling", "special", "stats", "testing"),
    }
)


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        found = getattr(importlib.import_module(f"{__name__}.distributions"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        hint = "pip install torch (powerspherical.jax needs JAX instead)"
        raise ImportError(f"{__name__}.{name} needs torch: {hint}") from error
    globals()[name] = found  # the next access does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
