"""Special functions on tensors, accurate to a few roundings and differentiable.

Functions of a concentration take ``kappa``, a float32 or float64 tensor of any shape on any device, and ``dim``, the
ambient dimension d as a Python number. Unless a function says otherwise, relative errors are about 1e-15 in float64 and
2e-7 in float32. ``powerspherical.jax.special`` has the same functions for JAX arrays.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerspherical.special.bessel import (
        bessel_ratio,
        bessel_ratio_complement,
        bessel_ratio_inverse,
        bessel_ratio_slope,
        log_bessel_i,
        log_hyp0f1,
    )
    from powerspherical.special.gamma import (
        digamma_difference,
        log_gamma_ratio,
        log_sphere_area,
        mean_log1p,
        trigamma_difference,
    )
    from powerspherical.special.mobius import mean_log_boost, mean_log_boost_inverse

__all__ = [
    "bessel_ratio",
    "bessel_ratio_complement",
    "bessel_ratio_inverse",
    "bessel_ratio_slope",
    "digamma_difference",
    "log_bessel_i",
    "log_gamma_ratio",
    "log_hyp0f1",
    "log_sphere_area",
    "mean_log1p",
    "mean_log_boost",
    "mean_log_boost_inverse",
    "trigamma_difference",
]


def __getattr__(name: str) -> Any:
    # On first use: the tables in this package serve JAX, too, and must not load torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("bessel", "gamma", "mobius"):
        found = vars(importlib.import_module(f"{__name__}.{module}"))
        globals().update({each: found[each] for each in __all__ if each in found})
    return globals()[name]
