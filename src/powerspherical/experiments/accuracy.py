"""Exact values that ship with the package, and how close our functions come to them on this machine.

`accuracy.json` holds, for both families over d from 2 to 10^7 and κ from 1 to 10^9, the KL divergence to the
uniform and the log-density at a point: the doubles nearest to what mpmath gives with 60 digits (its recipe is
tests/reference/make_accuracy.py, which shares no code with the package). The point is the one with
1-t = E(1-t), rounded to float32, so that it and κ are the same numbers in float32 and in float64.

>>> [check.passed for check in check()]
[True, True, True, True, True, True, True, True]
"""

import json
from functools import cache
from importlib import resources
from itertools import groupby, product
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family
from powerspherical.special import log_sphere_area

FAMILIES: dict[str, Family] = {family.name: family for family in (POWER_SPHERICAL, VON_MISES_FISHER)}
"""The families of the table."""
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-12}
"""What our functions must keep to, in every cell."""
# For `check`: the constants of a dimension take a tenth of a second the first time, too long for them all.
CHECKED = frozenset([2, 3, *(10**b for b in range(1, 8))])


class Values(NamedTuple):
    """The quantities of the table, over the concentrations of one dimension."""

    kl_uniform: Tensor
    log_density: Tensor


class Cells(NamedTuple):
    """One dimension of a family's table; everything is float64."""

    dim: int
    kappa: Tensor
    one_minus_t: Tensor
    exact: Values


class Check(NamedTuple):
    """How one quantity of one family fares in one type over the dimensions `CHECKED` of the table."""

    family: str
    quantity: str
    dtype: str
    worst: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the worst error keeps to the tolerance."""
        return self.worst <= self.tolerance


@cache
def _document() -> dict[str, Any]:
    path = resources.files("powerspherical.experiments").joinpath("accuracy.json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def recipe() -> str:
    """What made the table."""
    return str(_document()["recipe"])


def cells(family: str) -> list[Cells]:
    """A family's table, dimension by dimension."""
    found = []
    for dim, rows in groupby(_document()[family], key=lambda row: int(row[0])):
        _, kappa, one_minus_t, *exact = torch.tensor(list(rows), dtype=torch.float64).unbind(1)
        found.append(Cells(dim, kappa, one_minus_t, Values(*exact)))
    return found


def evaluate(family: Family, dim: int, kappa: Tensor, one_minus_t: Tensor) -> Values:
    """What `kl_divergence` and `log_prob` return, without a vector of d coordinates for each point."""
    log_density = family.log_density(one_minus_t, 2 - one_minus_t, kappa, dim) - log_sphere_area(dim)
    return Values(family.relative_entropy(kappa, dim), log_density)


def error(value: Tensor, exact: Tensor, *, floor: float) -> Tensor:
    """The error relative to the exact value, or to `floor` where that is larger; infinite where there is no number."""
    difference = (value.cpu().double() - exact).abs().nan_to_num(nan=inf, posinf=inf)
    return difference / exact.abs().clamp(min=floor)


def check(device: torch.device | str = "cpu") -> list[Check]:
    """Compare our functions with the table on a device, in float32 and float64, at the dimensions `CHECKED`.

    Errors are relative, those of the log-density absolute where it is below 1: it passes through zero.
    """
    floors = {"kl_uniform": 0.0, "log_density": 1.0}
    checks = []
    for (name, family), (dtype, tolerance) in product(FAMILIES.items(), TOLERANCES.items()):
        worst = dict.fromkeys(floors, 0.0)
        for dim, kappa, one_minus_t, exact in cells(name):
            if dim not in CHECKED:
                continue
            values = evaluate(family, dim, kappa.to(device, dtype), one_minus_t.to(device, dtype))
            for quantity, value, true in zip(floors, values, exact, strict=True):
                most = error(value, true, floor=floors[quantity]).max().item()
                worst[quantity] = max(worst[quantity], most)
        checks += [
            Check(name, quantity, dtype_name(dtype), most, tolerance) for quantity, most in worst.items()
        ]
    return checks


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
