"""Deprecated names of ``powerspherical.special`` that moved to ``powerspherical.families``.

``special`` comes before ``families`` in the package, so we import ``families`` only when a name is requested.
"""

from __future__ import annotations

import importlib
import operator
import warnings
from typing import Any

import torch
from torch import Tensor

_FAMILIES = "powerspherical.families"

_OBJECTS = {
    "EXPONENTIAL_TILT": "VON_MISES_FISHER",
    "POWER_TILT": "POWER_SPHERICAL",
    "Tilt": "ExponentialFamily",
}
_METHODS = ("log_tails", "mean_log1m_cosine", "mean_log1p_cosine", "misalignment", "quantile")


@torch.no_grad()
def _implicit_gradient(
    family: Any, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> Tensor:
    """Return dt/dκ at a fixed probability."""
    minus, plus, k = torch.broadcast_tensors(*(x.double() for x in (one_minus_t, one_plus_t, kappa)))
    return (minus * plus * family.implicit_slope(minus, plus, k, dim)).to(one_minus_t.dtype)


def moved(name: str) -> Any:
    """Return the object that was ``powerspherical.special.<name>``, with a warning that names its replacement."""
    value: Any
    if name in _OBJECTS:
        replacement = f"{_FAMILIES}.{_OBJECTS[name]}"
        value = getattr(importlib.import_module(_FAMILIES), _OBJECTS[name])
    elif name in _METHODS:
        replacement = f"the method {name} of the family, such as {_FAMILIES}.POWER_SPHERICAL"

        def value(family: Any, *args: Tensor | int) -> Any:
            return operator.methodcaller(name, *args)(family)

    elif name == "implicit_gradient":
        replacement = (
            f"(1-t²) times the method implicit_slope of the family, such as {_FAMILIES}.POWER_SPHERICAL"
        )
        value = _implicit_gradient
    else:
        raise AttributeError(f"module 'powerspherical.special' has no attribute {name!r}")
    message = f"powerspherical.special.{name} is deprecated: use {replacement}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)  # the line that requests the name
    return value
