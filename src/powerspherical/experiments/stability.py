"""The paper's stability figure, and two questions beyond it: is the law right, and are the closed forms?

*Samples*, in float32. For every d and κ of a grid {a·10^b} each method draws ten vectors x and the derivative
of μᵀx in κ for each. A cell is bad when a sample or a derivative is NaN or infinite; a draw that a thousand
proposals do not end counts as a bad sample. Beyond the paper, a cell is *off* when the mean of the ten cosines
lies more than `LIMIT` standard errors from its expectation: such draws look healthy and are of another distribution.

*Closed forms*: the KL divergence to the uniform and the log-density against exact values, see `closed_forms.py`.

The run fails when one of our cells is bad or off, or one of our errors exceeds its tolerance.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical.experiments import accuracy, closed_forms
from powerspherical.experiments._maps import INK, Array, Grid, hatch, mesh, settled
from powerspherical.experiments.baselines import formulas
from powerspherical.experiments.results import Outcome, Progress, name_on, silent, write_figure, write_json
from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Method = Callable[[Tensor, Tensor], Tensor]

FILES = ("stability.json", "stability.png", "stability.svg", "accuracy.png", "accuracy.svg")
DRAWS = 10  # a cell
LIMIT = 10.0  # standard errors; the sum of ten cosines has a tail much heavier than a normal one for small d
ROUNDING = 4e-6  # allowed to the mean cosine of float32 draws
ELEMENTS = 1 << 23  # coordinates drawn at a time


class Health(IntEnum):
    """What became of a cell; the worst that was seen."""

    FINE = 0
    OFF = 1
    GRADIENT = 2
    SAMPLE = 3  # this and the one before are bad by the paper's criterion


_EXPANDED = partial(formulas.von_mises_fisher, taylor=True)
# Each with its label, and the family that knows the expected cosine.
METHODS: dict[str, tuple[str, Family, Method]] = {
    "published_vmf": ("vMF, published", VON_MISES_FISHER, formulas.von_mises_fisher),
    "expanded_vmf": ("vMF, $b$ expanded for κ > 10", VON_MISES_FISHER, _EXPANDED),
    "published_ps": ("PS, published", POWER_SPHERICAL, formulas.power_spherical),
    "our_vmf": ("vMF, ours", VON_MISES_FISHER, lambda loc, kappa: VonMisesFisher(loc, kappa).rsample()),
    "our_ps": ("PS, ours", POWER_SPHERICAL, lambda loc, kappa: PowerSpherical(loc, kappa).rsample()),
}
OURS = ("our_vmf", "our_ps")

# Okabe and Ito's palette; the hatches tell the kinds apart without colour.
LOOKS = {
    Health.FINE: ("#E8EEF2", "", "all finite"),
    Health.OFF: ("#56B4E9", "////", "finite, of another law"),
    Health.GRADIENT: ("#E69F00", "\\\\\\\\", "derivative NaN or infinite"),
    Health.SAMPLE: ("#8C2D04", "xxxx", "sample NaN, or not accepted"),
}


def numbers_to(limit: int, leading: Iterable[int]) -> list[int]:
    """The numbers a·10^b up to `limit`, with a in `leading`."""
    return sorted(x for a in leading for b in range(10) if (x := a * 10**b) <= limit)


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    samples: Grid | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Examine every cell and write `stability` and `accuracy` figures and `stability.json` under `out`.

    On a GPU the names end in `_cuda`.

    `samples` is the grid of the draws; by default that of the paper, coarser and smaller with `quick`.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    numbers = numbers_to(30_000, (1, 3)) if quick else numbers_to(900_000, range(1, 10))
    samples = samples or Grid.of(numbers, numbers)
    drawing = 0.25 if quick else 0.9  # the share of the draws in the time, roughly

    columns: dict[str, list[list[Health]]] = {name: [] for name in METHODS}
    work = np.cumsum([dim + 1000 for dim in samples.dims])  # a call costs as much as 1000 coordinates
    for dim, done in zip(samples.dims, work, strict=True):
        for name, (_, family, method) in METHODS.items():
            columns[name].append(examine(method, family, dim, samples.concentrations, device=device))
        progress(drawing * float(done / work[-1]))
    maps = {name: np.array(cells).T for name, cells in columns.items()}
    errors, forms = closed_forms.errors(), closed_forms.grid()
    progress(drawing + 0.2 * (1 - drawing))

    results: dict[str, Any] = {
        "samples": {name: _cells(cells, samples) for name, cells in maps.items()},
        "closed_forms": {name: closed_forms.worst(values, forms) for name, values in errors.items()},
    }
    results["passed"] = passed = passes(results)
    files = write_figure(out, name_on(device, "stability"), stability_figure(maps, samples), dpi=200)
    progress(drawing + 0.5 * (1 - drawing))
    files += [
        *write_figure(out, name_on(device, "accuracy"), closed_forms.figure(errors, forms), dpi=200),
        write_json(
            out / f"{name_on(device, 'stability')}.json",
            experiment="stability",
            seed=seed,
            quick=quick,
            device=device,
            configuration={
                "samples": {**samples._asdict(), "draws": DRAWS, "dtype": "float32", "limit": LIMIT},
                "closed_forms": {
                    **forms._asdict(),
                    "tolerance": {
                        accuracy.dtype_name(dtype): most for dtype, most in accuracy.TOLERANCES.items()
                    },
                },
                "reference": f"exact values, accuracy.json: {accuracy.recipe()}",
            },
            results=results,
            seconds=time.perf_counter() - started,
        ),
    ]
    progress(1.0)
    return Outcome(files, passed=passed, summary=_summary(results["samples"]), table=table(results))


def examine(
    method: Method,
    family: Family,
    dim: int,
    concentrations: Sequence[float],
    *,
    device: torch.device | str = "cpu",
) -> list[Health]:
    """Draw ten vectors in float32 for each concentration, with their derivatives, and judge them."""
    loc = torch.nn.functional.normalize(torch.randn(dim, dtype=torch.float64), dim=-1)
    loc = loc.to(torch.float32).to(device)
    everything = torch.tensor([float(kappa) for kappa in concentrations], dtype=torch.float32, device=device)
    judged: list[Health] = []
    for kappas in everything.split(max(ELEMENTS // (DRAWS * dim), 1)):
        each = kappas.expand(DRAWS, -1).clone().requires_grad_()
        x = method(loc, each)
        t = x @ loc
        (gradient,) = torch.autograd.grad(t.sum(), each)
        expected = family.mean_cosine(kappas.double(), dim)
        deviation = (t.detach().double().mean(0) - expected).abs()
        error = (family.variance_cosine(kappas.double(), dim) / DRAWS).sqrt()
        off = deviation > LIMIT * error + ROUNDING
        lost = ~x.detach().isfinite().all(-1).all(0)
        bent = ~gradient.isfinite().all(0)
        code = torch.where(off, int(Health.OFF), int(Health.FINE))
        code = torch.where(bent, int(Health.GRADIENT), code)
        code = torch.where(lost, int(Health.SAMPLE), code)
        judged.extend(Health(value) for value in code.tolist())
    return judged


def passes(results: dict[str, Any]) -> bool:
    """Whether no cell of ours is bad or off, and no error of ours too large or not a number."""
    samples = all(results["samples"][name]["bad"] + results["samples"][name]["off"] == 0 for name in OURS)
    return samples and closed_forms.passes(results["closed_forms"])


def _cells(cells: Array, grid: Grid) -> dict[str, Any]:
    """Counts, and the lists of (d, κ), of one method's map."""
    return {
        "cells": int(cells.size),
        "bad": int((cells >= Health.GRADIENT).sum()),
        "off": int((cells == Health.OFF).sum()),
        "bad_sample_cells": grid.at(cells == Health.SAMPLE),
        "bad_gradient_cells": grid.at(cells == Health.GRADIENT),
        "off_cells": grid.at(cells == Health.OFF),
    }


def _summary(samples: dict[str, Any]) -> str:
    counts = (f"{METHODS[name][0]} {one['bad']} and {one['off']}" for name, one in samples.items())
    return f"cells bad and off, of {samples['our_ps']['cells']}: {'; '.join(counts).replace('$', '')}"


def table(results: dict[str, Any]) -> "Table":
    """The counts and the worst errors."""
    from rich.table import Table

    shown = Table(title="Samples in float32, and the closed forms' worst errors", title_justify="left")
    shown.add_column("what", no_wrap=True)
    for name in ("cells", "NaN or ∞", "another law", "worst"):
        shown.add_column(name, justify="right")
    for name, (label, _, _) in METHODS.items():
        one = results["samples"][name]
        shown.add_row(label.replace("$", ""), *(str(one[key]) for key in ("cells", "bad", "off")))
    shown.add_section()
    for key, one in results["closed_forms"].items():
        worst = "" if one["worst"] is None else f"{one['worst']:.1e}"
        shown.add_row(closed_forms.label(key), str(one["cells"]), str(one["not_finite"]), "", worst)
    return shown


def stability_figure(maps: dict[str, Array], grid: Grid) -> "Figure":
    """The maps of the samples: the published methods above, ours below."""
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
        axes.set_title(f"{METHODS[name][0]}\n{bad} NaN or ∞, {off} of another law", fontsize=9.5, color=INK)
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set(xlabel="dimension $d$", ylabel="concentration $\\kappa$")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#222222", linewidth=0.4, label=label)
        for colour, hatch, label in LOOKS.values()
    ]
    look = {"frameon": False, "fontsize": 9.5, "handlelength": 2.4, "handleheight": 1.8, "labelspacing": 0.9}
    places[1, 1].legend(handles=handles, loc="center", title=f"{DRAWS} draws a cell, float32", **look)
    return settled(result)
