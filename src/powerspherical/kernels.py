"""Deprecated: use ``powerspherical.sampling`` instead."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from powerspherical import sampling
from powerspherical.families import family_named


def __getattr__(name: str) -> Any:
    function: Any
    if name == "uniform":
        replacement, function = "powerspherical.sampling.uniform(…)", sampling.uniform
    elif name in ("power_spherical", "von_mises_fisher"):
        replacement = f"powerspherical.sampling.draw(powerspherical.families.{name.upper()}, …)"
        function = functools.partial(sampling.draw, family_named(name))
    else:
        raise AttributeError(f"module 'powerspherical.kernels' has no attribute {name!r}")
    message = f"powerspherical.kernels.{name} is deprecated: use {replacement}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return function
