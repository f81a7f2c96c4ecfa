"""Errors of the closed forms against exact values: the second half of the stability experiment.

We evaluate the KL divergence to the uniform and the log-density by the published formulas and by ours, in float32 and
float64, over the table of `accuracy.py`: up to d = 10^7 and κ = 10^9. The published log-density takes the rounded
cosine t = μᵀx; ours takes 1-t. Errors are relative where the exact value is above 1, and absolute below.
"""

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerspherical._selfcheck import accuracy
from powerspherical._selfcheck.accuracy import TOLERANCES, Values
from powerspherical_paper.baselines import formulas
from powerspherical_paper.maps import INK, Array, Grid, hatch, mesh

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Family(NamedTuple):
    """A family: its label in figures, its name in the table of exact values, and the published formulas."""

    label: str
    name: str
    kl_uniform: Callable[[Tensor, Tensor], Tensor]
    log_density: Callable[[Tensor, Tensor, Tensor], Tensor]

    def evaluate(self, who: str, dim: int, kappa: Tensor, one_minus_t: Tensor) -> Values:
        """Both quantities by the "published" formulas, or by "ours"."""
        if who == "ours":
            return accuracy.evaluate(accuracy.FAMILIES[self.name], dim, kappa, one_minus_t)
        d = torch.full_like(kappa, dim)
        return Values(self.kl_uniform(d, kappa), self.log_density(d, kappa, 1 - one_minus_t))


_PS = formulas.power_spherical_kl_uniform, formulas.power_spherical_log_density
_VMF = formulas.von_mises_fisher_kl_uniform, formulas.von_mises_fisher_log_density
FAMILIES = {"ps": Family("PS", "power_spherical", *_PS), "vmf": Family("vMF", "von_mises_fisher", *_VMF)}
QUANTITIES = {"kl": "KL to uniform", "log_density": "log-density"}  # in the order of `Values`
METHODS = {
    f"{who}_{accuracy.dtype_name(dtype)}": (who, dtype)
    for who in ("published", "ours")
    for dtype in TOLERANCES
}
FINEST = -16.0  # log10 of the error at which the colour scale of the maps begins; it ends at 10^0


def grid() -> Grid:
    """The grid of the table, which both families share."""
    table = accuracy.cells("power_spherical")
    return Grid.of((cells.dim for cells in table), (int(kappa) for kappa in table[0].kappa.tolist()))


def errors() -> dict[str, Array]:
    """One map of errors per "family/quantity/method"; infinite where a formula returns NaN or infinity."""
    columns: dict[str, list[Array]] = {}
    for (key, family), (method, (who, dtype)) in product(FAMILIES.items(), METHODS.items()):
        for dim, kappa, one_minus_t, exact in accuracy.cells(family.name):
            values = family.evaluate(who, dim, kappa.to(dtype), one_minus_t.to(dtype))
            for quantity, value, true in zip(QUANTITIES, values, exact, strict=True):
                error = accuracy.error(value, true, floor=1.0)
                columns.setdefault(f"{key}/{quantity}/{method}", []).append(error.numpy())
    return {name: np.stack(each, axis=-1) for name, each in columns.items()}


def worst(values: Array, cells: Grid) -> dict[str, Any]:
    """The worst finite error of a map with its (d, κ), and the number of cells that are not finite."""
    finite = np.isfinite(values)
    largest = float(values[finite].max()) if finite.any() else None
    at = None if largest is None else cells.at(values == largest)[0]
    return {"cells": int(values.size), "not_finite": int((~finite).sum()), "worst": largest, "at": at}


def passes(results: dict[str, Any]) -> bool:
    """Whether our errors are finite and within the tolerance of their dtype; `results` come from `worst`."""
    ours = [(one, METHODS[key.split("/")[2]][1]) for key, one in results.items() if "/ours_" in key]
    return all(one["not_finite"] == 0 and one["worst"] <= TOLERANCES[dtype] for one, dtype in ours)


def label(key: str) -> str:
    """A readable label for a key of `errors`."""
    family, quantity, method = key.split("/")
    return f"{FAMILIES[family].label} {QUANTITIES[quantity]}, {method.replace('_', ', ')}"


def figure(maps: dict[str, Array], cells: Grid) -> "Figure":
    """The maps of errors: one row per family and quantity, one column per method."""
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
            decades = np.ma.masked_where(~finite, np.log10(np.clip(values, 10**FINEST, 1)))
            drawn = mesh(axes, decades, cells, colours, FINEST, 0)
            hatch(axes, ~finite, cells, "xxxx", face="white")
            title = f"worst {values[finite].max():.0e}" if finite.any() else "never finite"
            if row == 0:
                title = f"{method.replace('_', ', ')}\n{title}"
            axes.set_title(title, fontsize=9.5, color=INK)
        name = f"{FAMILIES[family].label}\n{QUANTITIES[quantity]}"
        places[row, 0].set_ylabel(f"{name}\n\nconcentration $\\kappa$")
    for axes in places[-1]:
        axes.set_xlabel("dimension $d$")
    bar = result.colorbar(drawn, ax=places, orientation="horizontal", shrink=0.7, aspect=45, pad=0.02)
    bar.set_label("error (relative; absolute for values below 1)")
    powers = (-16, -12, -8, -4)
    bar.set_ticks([*powers, 0], labels=[*(f"$10^{{{power}}}$" for power in powers), "$\\geq 1$"])
    nothing = Patch(facecolor="white", hatch="xxxx", edgecolor=INK, label="NaN or infinite")
    result.legend(handles=[nothing], loc="outside lower right", frameon=False, fontsize=9.5)
    return result
