"""The paper's stability figure (Figure 2 (a)), with two further checks.

*Samples*, in float32. For every d and κ in a grid {a·10^b}, each method draws ten vectors x and the derivatives of
μᵀx in κ. A cell is *bad* if a sample or a derivative is NaN or infinite. A draw that is rejected a thousand times
counts as NaN. In addition to the paper, we call a cell *off* if the mean of the ten cosines is more than `LIMIT`
standard errors from its expectation: the draws are finite, but follow the wrong distribution.

*Closed forms*: the KL divergence to the uniform and the log-density against exact values; see `closed_forms.py`.

The run fails if one of our cells is bad or off, or if one of our errors exceeds its tolerance.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical._selfcheck import accuracy
from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family
from powerspherical.plot import PALETTE
from powerspherical_paper import closed_forms
from powerspherical_paper.baselines import formulas
from powerspherical_paper.maps import INK, Array, Grid, hatch, mesh
from powerspherical_paper.results import Outcome, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Method = Callable[[Tensor, Tensor], Tensor]

FILES = ("stability.json", "stability.png", "accuracy.png")
DRAWS = 10  # per cell
LIMIT = 10.0  # standard errors; for small d, the sum of ten cosines has much heavier tails than a normal
ROUNDING = 4e-6  # tolerance on the mean cosine, for float32 rounding
ELEMENTS = 1 << 23  # limit on the coordinates drawn at once


class Health(IntEnum):
    """The state of a cell. The last two are bad by the paper's criterion."""

    FINE = 0
    OFF = 1
    GRADIENT = 2
    SAMPLE = 3


_EXPANDED = partial(formulas.von_mises_fisher, taylor=True)
# The label of each method, the family that gives the expected cosine, and the sampler.
METHODS: dict[str, tuple[str, Family, Method]] = {
    "published_vmf": ("vMF, published", VON_MISES_FISHER, formulas.von_mises_fisher),
    "expanded_vmf": ("vMF, $b$ expanded for κ > 10", VON_MISES_FISHER, _EXPANDED),
    "published_ps": ("PS, published", POWER_SPHERICAL, formulas.power_spherical),
    "our_vmf": ("vMF, ours", VON_MISES_FISHER, lambda loc, kappa: VonMisesFisher(loc, kappa).rsample()),
    "our_ps": ("PS, ours", POWER_SPHERICAL, lambda loc, kappa: PowerSpherical(loc, kappa).rsample()),
}
OURS = ("our_vmf", "our_ps")

# Colour, hatch and label of each state; the hatches work without colour.
LOOKS = {
    Health.FINE: ("#E8EEF2", "", "all finite"),
    Health.OFF: (PALETTE["sky"], "////", "finite, wrong distribution"),
    Health.GRADIENT: (PALETTE["orange"], "\\\\\\\\", "derivative NaN or infinite"),
    Health.SAMPLE: ("#8C2D04", "xxxx", "sample NaN, or never accepted"),
}


def numbers_to(limit: int, leading: Iterable[int]) -> list[int]:
    """The numbers a·10^b up to `limit`, with a in `leading`."""
    return sorted(x for a in leading for b in range(10) if (x := a * 10**b) <= limit)


def run(task: Task) -> Outcome:
    """Examine every cell, and write `stability.json` and the figures `stability` and `accuracy`.

    The grid of the draws is the paper's, or a coarser and smaller one in a quick run.
    """
    torch.manual_seed(task.seed)
    numbers = numbers_to(30_000, (1, 3)) if task.quick else numbers_to(900_000, range(1, 10))
    samples = Grid.of(numbers, numbers)

    columns: dict[str, list[list[Health]]] = {name: [] for name in METHODS}
    work = np.cumsum([dim + 1000 for dim in samples.dims])  # one call costs about as much as 1000 coordinates
    for dim, done in zip(samples.dims, work, strict=True):
        for name, (_, family, method) in METHODS.items():
            columns[name].append(examine(method, family, dim, samples.concentrations, device=task.device))
        task.progress(float(done / work[-1]))
    maps = {name: np.array(cells).T for name, cells in columns.items()}
    errors, forms = closed_forms.errors(), closed_forms.grid()

    results: dict[str, Any] = {
        "samples": {name: _cells(cells, samples) for name, cells in maps.items()},
        "closed_forms": {name: closed_forms.worst(values, forms) for name, values in errors.items()},
    }
    results["passed"] = passed = passes(results)
    tolerances = {accuracy.dtype_name(dtype): value for dtype, value in accuracy.TOLERANCES.items()}
    configuration = {
        "samples": {**samples._asdict(), "draws": DRAWS, "dtype": "float32", "limit": LIMIT},
        "closed_forms": {**forms._asdict(), "tolerance": tolerances},
        "reference": f"exact values, accuracy.json: {accuracy.recipe()}",
    }
    files = [
        task.draw("stability", stability_figure(maps, samples)),
        task.draw("accuracy", closed_forms.figure(errors, forms)),
        task.write("stability", configuration, results),
    ]
    return Outcome(files, passed)


def examine(
    method: Method,
    family: Family,
    dim: int,
    concentrations: Sequence[float],
    *,
    device: torch.device | str = "cpu",
) -> list[Health]:
    """Draw `DRAWS` float32 vectors per concentration, with derivatives, and return the state of each cell."""
    loc = torch.nn.functional.normalize(torch.randn(dim, dtype=torch.float64), dim=-1)
    loc = loc.to(torch.float32).to(device)
    everything = torch.tensor(concentrations, dtype=torch.float32, device=device)
    states: list[Health] = []
    for kappas in everything.split(max(ELEMENTS // (DRAWS * dim), 1)):
        each = kappas.expand(DRAWS, -1).clone().requires_grad_()
        x = method(loc, each)
        t = x @ loc
        (gradient,) = torch.autograd.grad(t.sum(), each)
        expected = family.mean_cosine(kappas.double(), dim)
        deviation = (t.detach().double().mean(0) - expected).abs()
        error = (family.variance_cosine(kappas.double(), dim) / DRAWS).sqrt()
        off = deviation > LIMIT * error + ROUNDING
        bad_gradient = ~gradient.isfinite().all(0)
        bad_sample = ~x.detach().isfinite().all(-1).all(0)
        state = torch.where(off, int(Health.OFF), int(Health.FINE))
        state = torch.where(bad_gradient, int(Health.GRADIENT), state)
        state = torch.where(bad_sample, int(Health.SAMPLE), state)
        states.extend(Health(value) for value in state.tolist())
    return states


def passes(results: dict[str, Any]) -> bool:
    """Whether none of our cells is bad or off, and our closed forms are within their tolerances."""
    samples = all(results["samples"][name]["bad"] + results["samples"][name]["off"] == 0 for name in OURS)
    return samples and closed_forms.passes(results["closed_forms"])


def _cells(cells: Array, grid: Grid) -> dict[str, Any]:
    """The counts of one method's bad and off cells, and their lists of (d, κ)."""
    return {
        "cells": int(cells.size),
        "bad": int((cells >= Health.GRADIENT).sum()),
        "off": int((cells == Health.OFF).sum()),
        "bad_sample_cells": grid.at(cells == Health.SAMPLE),
        "bad_gradient_cells": grid.at(cells == Health.GRADIENT),
        "off_cells": grid.at(cells == Health.OFF),
    }


def stability_figure(maps: dict[str, Array], grid: Grid) -> "Figure":
    """The maps of the cells: published methods in the first row, ours in the second."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    result = Figure(figsize=(9.0, 6.0), facecolor="white", layout="constrained")
    places = result.subplots(2, 3, sharex=True, sharey=True)
    names = ("published_vmf", "expanded_vmf", "published_ps", "our_vmf", None, "our_ps")
    colours = ListedColormap([LOOKS[kind][0] for kind in Health])
    for axes, name in zip(places.flat, names, strict=True):
        if name is None:
            axes.set_axis_off()
            continue
        cells = maps[name]
        mesh(axes, cells, grid, colours, -0.5, len(Health) - 0.5)
        for kind in Health:
            hatch(axes, cells == kind, grid, LOOKS[kind][1])
        bad, off = int((cells >= Health.GRADIENT).sum()), int((cells == Health.OFF).sum())
        axes.set_title(
            f"{METHODS[name][0]}\n{bad} NaN or ∞, {off} wrong distribution", fontsize=9.5, color=INK
        )
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set(xlabel="dimension $d$", ylabel="concentration $\\kappa$")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#222222", linewidth=0.4, label=label)
        for colour, hatch, label in LOOKS.values()
    ]
    look = {"frameon": False, "fontsize": 9.5, "handlelength": 2.4, "handleheight": 1.8, "labelspacing": 0.9}
    places[1, 1].legend(handles=handles, loc="center", title=f"{DRAWS} draws per cell, float32", **look)
    return result
