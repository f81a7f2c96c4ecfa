"""The operations of formulas, for torch tensors. C and Triton have functions of the same names.

Arguments are ``Lanes``, which differ from row to row, or a ``Number`` that all rows share. Comparisons give masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.elementary import expm1 as expm1
from powerspherical._torch.elementary import hypot as hypot
from powerspherical._torch.elementary import log1p as log1p

Lanes = Tensor
Number = float

exp, log, where = torch.exp, torch.log, torch.where


def at_least(x: Lanes, bound: Number) -> Lanes:
    """Return x, or ``bound`` if that is larger. NaN stays NaN."""
    return x.clamp(min=bound)


def at_most(x: Lanes, bound: Number) -> Lanes:
    """Return x, or ``bound`` if that is smaller. NaN stays NaN."""
    return x.clamp(max=bound)


def horner(x: Lanes, *coefficients: Number) -> Lanes:
    """Return c[0] + c[1] x + c[2] x² + …"""
    value = coefficients[-1] * x + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value
