"""Exact reference values that ship with the package, and the errors of our functions on this machine.

`accuracy.json` covers the Power Spherical and the von Mises–Fisher for d from 2 to 10^7 and κ from 1 to 10^9. It holds
the KL divergence to the uniform and the log-density at one point, both rounded to float64 from mpmath's 60 digits.
tests/reference/make_accuracy.py makes it, without using this package. The point has 1-t = E(1-t), rounded to
float32; so κ and 1-t are the same numbers in float32 and float64.
"""

import json
from functools import cache
from itertools import groupby, product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family, derived
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special import log_sphere_area

#: The families in the table.
FAMILIES: dict[str, Family] = {family.name: family for family in (POWER_SPHERICAL, VON_MISES_FISHER)}
#: The largest error allowed to our functions in any cell of the table.
TOLERANCES = {torch.float32: 2e-6, torch.float64: 1e-12}
#: The dimensions that ``check`` uses. Each costs a tenth of a second, for its constants.
CHECKED = frozenset([2, 3, *(10**b for b in range(1, 8))])


class Values(NamedTuple):
    """The two quantities in the table, over the concentrations of one dimension."""

    kl_uniform: Tensor
    log_density: Tensor


class Cells(NamedTuple):
    """The part of a family's table with one dimension, in float64."""

    dim: int
    kappa: Tensor
    one_minus_t: Tensor
    exact: Values


class Check(NamedTuple):
    """The worst error of one quantity of one family in one dtype, over the dimensions `CHECKED`."""

    family: str
    quantity: str
    dtype: str
    worst: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance


@cache
def _document() -> Any:
    return json.loads(Path(__file__).with_name("accuracy.json").read_bytes())


def recipe() -> str:
    """How the table was made."""
    return str(_document()["recipe"])


def cells(family: str) -> list[Cells]:
    """A family's table, split by dimension."""
    found = []
    for dim, rows in groupby(_document()[family], key=lambda row: int(row[0])):
        _, kappa, one_minus_t, *exact = torch.tensor(list(rows), dtype=torch.float64).unbind(1)
        found.append(Cells(dim, kappa, one_minus_t, Values(*exact)))
    return found


def evaluate(family: Family, dim: int, kappa: Tensor, one_minus_t: Tensor) -> Values:
    """The values of `kl_divergence` and `log_prob`, computed without vectors of d coordinates."""
    relative = derived.log_density(family, Cosine(one_minus_t, 2 - one_minus_t), kappa, dim)
    return Values(family.relative_entropy(kappa, dim), relative - log_sphere_area(dim))


def error(value: Tensor, exact: Tensor, *, floor: float) -> Tensor:
    """|value - exact| / max(|exact|, floor), on the CPU; infinite where `value` is NaN or infinite."""
    difference = (value.cpu().double() - exact).abs().nan_to_num(nan=inf, posinf=inf)
    return difference / exact.abs().clamp(min=floor)


def check(device: torch.device | str = "cpu") -> list[Check]:
    """Compare our functions with the table on a device, in float32 and float64, at the dimensions `CHECKED`.

    Errors of the KL divergence are relative. The log-density passes through zero: its errors are relative where it is
    above 1 and absolute below.
    """
    floors, checks = {"kl_uniform": 0.0, "log_density": 1.0}, []
    for (name, family), (dtype, tolerance) in product(FAMILIES.items(), TOLERANCES.items()):
        worst = dict.fromkeys(floors, 0.0)
        for dim, kappa, one_minus_t, exact in (part for part in cells(name) if part.dim in CHECKED):
            values = evaluate(family, dim, kappa.to(device, dtype), one_minus_t.to(device, dtype))
            for (quantity, floor), value, true in zip(floors.items(), values, exact, strict=True):
                worst[quantity] = max(worst[quantity], error(value, true, floor=floor).max().item())
        checks += [Check(name, quantity, dtype_name(dtype), worst[quantity], tolerance) for quantity in worst]
    return checks


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
