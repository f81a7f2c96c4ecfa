"""Read the tables of tests/reference as tensors."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER

#: The families in functions.json and marginals.json, by their names there.
FAMILIES = {family.name: family for family in (POWER_SPHERICAL, VON_MISES_FISHER)}


@functools.cache
def load(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parents[1] / "reference" / name).read_text(encoding="utf-8"))


def dims(name: str, part: str) -> list[int]:
    """Return the dimensions in one part of a table."""
    return sorted({row[0] for row in load(name)[part]})


def columns(name: str, part: str, dim: int, header: str = "columns") -> dict[str, Tensor]:
    """Return the rows of one dimension as float64 columns by name."""
    table = load(name)
    rows = [[float(x) for x in row] for row in table[part] if row[0] == dim]
    values = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return dict(zip(table[header], values, strict=True))
