"""The closed forms against exact values: the part of the stability experiment that draws nothing.

The KL divergence to the uniform and the log-density, by the published formulas and by ours, each in float32 and
float64, over the table of `accuracy.py`: up to d = 10^7 and κ = 10^9. The published log-density takes the cosine
t = μᵀx itself, rounded to its type; ours takes 1-t. Errors are relative, absolute where the value is below 1.
"""

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerspherical.experiments import accuracy
from powerspherical.experiments._maps import INK, Array, Grid, hatch, mesh, settled
from powerspherical.experiments.accuracy import TOLERANCES, Values
from powerspherical.experiments.baselines import formulas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Formula = Callable[[int, Tensor, Tensor], Values]  # of d, κ and 1-t, in the type of the tensors


class Family(NamedTuple):
    """A family's label, its name in the table, and the published formulas."""

    label: str
    name: str
    kl_uniform: Callable[[Tensor, Tensor], Tensor]
    log_density: Callable[[Tensor, Tensor, Tensor], Tensor]

    def published(self, dim: int, kappa: Tensor, one_minus_t: Tensor) -> Values:
        """By the published formulas."""
        d = torch.full_like(kappa, dim)
        return Values(self.kl_uniform(d, kappa), self.log_density(d, kappa, 1 - one_minus_t))

    def ours(self, dim: int, kappa: Tensor, one_minus_t: Tensor) -> Values:
        """By the functions of this library."""
        return accuracy.evaluate(accuracy.FAMILIES[self.name], dim, kappa, one_minus_t)


FAMILIES = {
    "ps": Family(
        "PS",
        "power_spherical",
        formulas.power_spherical_kl_uniform,
        formulas.power_spherical_log_density,
    ),
    "vmf": Family(
        "vMF",
        "von_mises_fisher",
        formulas.von_mises_fisher_kl_uniform,
        formulas.von_mises_fisher_log_density,
    ),
}
QUANTITIES = {"kl": "KL to uniform", "log_density": "log-density"}  # in the order of `Values`
METHODS = {
    f"{who}_{accuracy.dtype_name(dtype)}": (who, dtype)
    for who in ("published", "ours")
    for dtype in TOLERANCES
}
COARSEST = -16.0  # the decade at which the colours of the maps begin; they end at 10^0


def grid() -> Grid:
    """The cells of the table, which both families share."""
    table = accuracy.cells("power_spherical")
    return Grid.of((cells.dim for cells in table), (int(kappa) for kappa in table[0].kappa.tolist()))


def errors() -> dict[str, Array]:
    """A map of errors for each "family/quantity/method"; infinite where a formula gives no number."""
    columns: dict[str, list[Array]] = {}
    for (key, family), (method, (who, dtype)) in product(FAMILIES.items(), METHODS.items()):
        formula: Formula = getattr(family, who)
        for dim, kappa, one_minus_t, exact in accuracy.cells(family.name):
            values = formula(dim, kappa.to(dtype), one_minus_t.to(dtype))
            for quantity, value, true in zip(QUANTITIES, values, exact, strict=True):
                error = accuracy.error(value, true, floor=1.0)
                columns.setdefault(f"{key}/{quantity}/{method}", []).append(error.numpy())
    return {name: np.stack(each, axis=-1) for name, each in columns.items()}


def worst(values: Array, cells: Grid) -> dict[str, Any]:
    """The worst finite error of a map and where it is, and how many values are NaN or infinite."""
    finite = np.isfinite(values)
    most = float(values[finite].max()) if finite.any() else None
    at = None if most is None else cells.at(values == most)[0]
    return {"cells": int(values.size), "not_finite": int((~finite).sum()), "worst": most, "at": at}


def passes(results: dict[str, Any]) -> bool:
    """Whether ours are numbers everywhere and keep to the tolerance of their type; `results` are of `worst`."""
    ours = [(one, METHODS[key.split("/")[2]][1]) for key, one in results.items() if "/ours_" in key]
    return all(one["not_finite"] == 0 and one["worst"] <= TOLERANCES[dtype] for one, dtype in ours)


def label(key: str) -> str:
    """A map's name for people."""
    family, quantity, method = key.split("/")
    return f"{FAMILIES[family].label} {QUANTITIES[quantity]}, {method.replace('_', ', ')}"


def figure(maps: dict[str, Array], cells: Grid) -> "Figure":
    """The maps, a row for each family and quantity and a column for each method."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    result = Figure(figsize=(10.4, 9.6), facecolor="white", layout="constrained")
    rows = list(product(FAMILIES, QUANTITIES))
    places = result.subplots(len(rows), len(METHODS), sharex=True, sharey=True)
    colours = matplotlib.colormaps["cividis"]
    for row, (family, quantity) in enumerate(rows):
        for axes, method in zip(places[row], METHODS, strict=True):
            values = maps[f"{family}/{quantity}/{method}"]
            finite = np.isfinite(values)
            decades = np.ma.masked_where(~finite, np.log10(np.clip(values, 10**COARSEST, 1)))
            drawn = mesh(axes, decades, cells, colours, COARSEST, 0)
            hatch(axes, ~finite, cells, "xxxx", face="white")
            most = f"worst {values[finite].max():.0e}" if finite.any() else "never finite"
            head = "" if row else method.replace("_", ", ") + "\n"
            axes.set_title(head + most, fontsize=9.5, color=INK)
        name = f"{FAMILIES[family].label}\n{QUANTITIES[quantity]}"
        places[row, 0].set_ylabel(f"{name}\n\nconcentration $\\kappa$")
    for axes in places[-1]:
        axes.set_xlabel("dimension $d$")
    bar = result.colorbar(drawn, ax=places, orientation="horizontal", shrink=0.7, aspect=45, pad=0.02)
    bar.set_label("error: relative, absolute below 1")
    bar.set_ticks(
        [-16, -12, -8, -4, 0], labels=[f"$10^{{{power}}}$" for power in (-16, -12, -8, -4)] + ["$\\geq 1$"]
    )
    nothing = Patch(facecolor="white", hatch="xxxx", edgecolor=INK, label="NaN or infinite")
    result.legend(handles=[nothing], loc="outside lower right", frameon=False, fontsize=9.5)
    return settled(result)
