"""The operations of formulas, for torch tensors and JAX arrays. C and Triton have functions of the same names.

Arguments are ``Lanes``, which differ from row to row, or a ``Number`` that all rows share. Comparisons give masks. The
library is found from the type of the arguments, so that this module imports neither torch nor JAX.
"""

from __future__ import annotations

from typing import Any, TypeAlias

#: A torch tensor or a JAX array.
Lanes: TypeAlias = Any
Number = float

#: The operations for torch tensors: ``_torch.elementary``, which enters itself here.
torch_operations: Any = None


def _operations(x: Lanes) -> Any:
    """Return the module that has the operations for arrays like x. JAX arrays name theirs, and tensors do not."""
    return x.__array_namespace__() if hasattr(x, "__array_namespace__") else torch_operations


def exp(x: Lanes) -> Lanes:
    """Return e^x."""
    return _operations(x).exp(x)


def expm1(x: Lanes) -> Lanes:
    """Return e^x - 1, accurate for small x."""
    return _operations(x).expm1(x)


def log(x: Lanes) -> Lanes:
    """Return the natural logarithm."""
    return _operations(x).log(x)


def log1p(x: Lanes) -> Lanes:
    """Return log(1+x), accurate for small x."""
    return _operations(x).log1p(x)


def hypot(x: Lanes, y: Lanes) -> Lanes:
    """Return √(x²+y²) without overflow."""
    return _operations(x).hypot(x, y)


def where(mask: Lanes, x: Lanes | Number, y: Lanes | Number) -> Lanes:
    """Return x where the mask is true, and otherwise y."""
    return _operations(mask).where(mask, x, y)


def at_least(x: Lanes, bound: Number) -> Lanes:
    """Return x, or ``bound`` if that is larger. NaN stays NaN."""
    return where(x < bound, bound, x) if hasattr(x, "__array_namespace__") else x.clamp(min=bound)


def at_most(x: Lanes, bound: Number) -> Lanes:
    """Return x, or ``bound`` if that is smaller. NaN stays NaN."""
    return where(x > bound, bound, x) if hasattr(x, "__array_namespace__") else x.clamp(max=bound)


def horner(x: Lanes, *coefficients: Number) -> Lanes:
    """Return c[0] + c[1] x + c[2] x² + …"""
    value = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value
