"""Names that moved from ``powerspherical.special`` to ``powerspherical.families``: they still work, with a warning.

``special`` comes before ``families`` in the package, so that module is imported by name, when it is asked for.
"""

from __future__ import annotations

import importlib
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_FAMILIES = "powerspherical.families"

_OBJECTS = {
    "EXPONENTIAL_TILT": "VON_MISES_FISHER",
    "POWER_TILT": "POWER_SPHERICAL",
    "Tilt": "ExponentialFamily",
}


def _method(name: str) -> Callable[..., Any]:
    def function(family: Any, *args: Tensor | int) -> Any:
        return operator.methodcaller(name, *args)(family)

    return function


@torch.no_grad()
def _implicit_gradient(
    family: Any, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> Tensor:
    """dt/dκ at a fixed probability."""
    minus, plus, k = torch.broadcast_tensors(*(x.double() for x in (one_minus_t, one_plus_t, kappa)))
    return (minus * plus * family.implicit_slope(minus, plus, k, dim)).to(one_minus_t.dtype)


_FUNCTIONS = {
    "implicit_gradient": ("(1-t²) times the method implicit_slope", _implicit_gradient),
    **{
        name: (f"the method {name}", _method(name))
        for name in ("log_tails", "mean_log1m_cosine", "mean_log1p_cosine", "misalignment", "quantile")
    },
}


def moved(name: str) -> Any:
    """What ``powerspherical.special.<name>`` was, with a warning that names its replacement."""
    if name in _OBJECTS:
        _warn(name, f"{_FAMILIES}.{_OBJECTS[name]}")
        return getattr(importlib.import_module(_FAMILIES), _OBJECTS[name])
    if name in _FUNCTIONS:
        replacement, function = _FUNCTIONS[name]
        _warn(name, f"{replacement} of the family, such as {_FAMILIES}.POWER_SPHERICAL")
        return function
    raise AttributeError(f"module 'powerspherical.special' has no attribute {name!r}")


def _warn(name: str, replacement: str) -> None:
    message = f"powerspherical.special.{name} is deprecated: use {replacement}"
    warnings.warn(message, DeprecationWarning, stacklevel=4)  # the line that asks for the name
