"""The paper's stability figure, and two questions beyond it: is the law right, and are the closed forms?

*Samples*, in float32. For every d and κ of a grid {a·10^b} each method draws ten vectors x and the derivative
of μᵀx in κ for each. A cell is bad when a sample or a derivative is NaN or infinite; a draw that a thousand
proposals do not end counts as a bad sample. Beyond the paper, a cell is *off* when the mean of the ten cosines
lies more than `LIMIT` standard errors from its expectation: such draws look healthy and are of another distribution.

*Closed forms*, up to d = 10^7 and κ = 10^9. The KL divergence to the uniform and the log-density at the point with
1-t = E(1-t), rounded to float32, by the published formulas in float32 and float64 and by ours in float32, against
ours in float64. The published log-density takes the cosine t = μᵀx itself, rounded to its type. Errors
are relative, absolute where the value is below 1.

The run fails when one of our cells is bad or off, or one of our errors exceeds `TOLERANCE`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical.experiments import baselines
from powerspherical.experiments._results import Outcome, Progress, silent, write_figure, write_json
from powerspherical.special import EXPONENTIAL_TILT, POWER_TILT, Tilt, log_sphere_area

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from rich.table import Table

Method = Callable[[Tensor, Tensor], Tensor]
Formula = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
Array = np.ndarray[Any, np.dtype[Any]]

DRAWS = 10  # a cell
LIMIT = 10.0  # standard errors; the sum of ten cosines has a tail much heavier than a normal one for small d
ROUNDING = 4e-6  # allowed to the mean cosine of float32 draws
TOLERANCE = 2e-6  # of our closed forms in float32
ELEMENTS = 1 << 23  # coordinates drawn at a time
REFERENCE = "the library's own functions in float64, which its tests compare with mpmath tables to 1e-12"


class Health(IntEnum):
    """What became of a cell; the worst that was seen."""

    FINE = 0
    OFF = 1
    GRADIENT = 2
    SAMPLE = 3  # this and the one before are bad by the paper's criterion


_EXPANDED = partial(baselines.von_mises_fisher, taylor=True)
# Each with its label, and the tilt that knows the expected cosine.
METHODS: dict[str, tuple[str, Tilt, Method]] = {
    "published_vmf": ("vMF, published", EXPONENTIAL_TILT, baselines.von_mises_fisher),
    "expanded_vmf": ("vMF, $b$ expanded for κ > 10", EXPONENTIAL_TILT, _EXPANDED),
    "published_ps": ("PS, published", POWER_TILT, baselines.power_spherical),
    "our_vmf": ("vMF, ours", EXPONENTIAL_TILT, lambda loc, kappa: VonMisesFisher(loc, kappa).rsample()),
    "our_ps": ("PS, ours", POWER_TILT, lambda loc, kappa: PowerSpherical(loc, kappa).rsample()),
}
OURS = ("our_vmf", "our_ps")

# Okabe and Ito's palette; the hatches tell the kinds apart without colour.
LOOKS = {
    Health.FINE: ("#E8EEF2", "", "all finite"),
    Health.OFF: ("#56B4E9", "////", "finite, of another law"),
    Health.GRADIENT: ("#E69F00", "\\\\\\\\", "derivative NaN or infinite"),
    Health.SAMPLE: ("#8C2D04", "xxxx", "sample NaN, or not accepted"),
}
INK = "#333333"
COARSEST = -16.0  # the decade at which the colours of the error maps begin; they end at 10^0


class Grid(NamedTuple):
    """The cells of a map: a row for each concentration, a column for each dimension."""

    dims: list[int]
    concentrations: list[int]

    @classmethod
    def of(cls, dims: Iterable[int], concentrations: Iterable[int]) -> "Grid":
        """In order; the dimension 1, where there is no sphere to speak of, becomes 2."""
        return cls(sorted({max(dim, 2) for dim in dims}), sorted(set(concentrations)))

    def at(self, which: Array) -> list[list[int]]:
        """The (d, κ) of the cells in `which`."""
        return [[self.dims[j], self.concentrations[i]] for i, j in np.argwhere(which).tolist()]

    def edges(self) -> tuple[Array, Array]:
        """The borders of the cells along both axes, halfway between neighbours on a log scale."""
        return _edges(self.dims), _edges(self.concentrations)


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
    forms: Grid | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Examine every cell and write `stability` and `accuracy` figures and `stability.json` under `out`.

    `samples` and `forms` are the grids of the two parts; by default that of the paper and a wider one, both coarser
    with `quick`.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    numbers = numbers_to(30_000, (1, 3)) if quick else numbers_to(900_000, range(1, 10))
    leading = (1, 3) if quick else (1, 2, 5)
    samples = samples or Grid.of(numbers, numbers)
    forms = forms or Grid.of(numbers_to(10**7, leading), numbers_to(10**9, leading))

    columns: dict[str, list[list[Health]]] = {name: [] for name in METHODS}
    work = np.cumsum([dim + 1000 for dim in samples.dims])  # a call costs as much as 1000 coordinates
    for dim, done in zip(samples.dims, work, strict=True):
        for name, (_, tilt, method) in METHODS.items():
            columns[name].append(examine(method, tilt, dim, samples.concentrations, device=device))
        progress(0.9 * float(done / work[-1]))
    maps = {name: np.array(cells).T for name, cells in columns.items()}
    errors = closed_forms(forms)

    results: dict[str, Any] = {
        "samples": {name: _cells(cells, samples) for name, cells in maps.items()},
        "closed_forms": {name: _worst(values, forms) for name, values in errors.items()},
    }
    results["passed"] = passed = passes(results)
    files = [
        *write_figure(out, "stability", stability_figure(maps, samples), dpi=200),
        *write_figure(out, "accuracy", accuracy_figure(errors, forms), dpi=200),
        write_json(
            out / "stability.json",
            experiment="stability",
            seed=seed,
            quick=quick,
            device=device,
            configuration={
                "samples": {**samples._asdict(), "draws": DRAWS, "dtype": "float32", "limit": LIMIT},
                "closed_forms": {**forms._asdict(), "tolerance": TOLERANCE},
                "reference": REFERENCE,
            },
            results=results,
            seconds=time.perf_counter() - started,
        ),
    ]
    progress(1.0)
    return Outcome(files, passed=passed, summary=_summary(results["samples"]), table=table(results))


def examine(
    method: Method,
    tilt: Tilt,
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
        expected = tilt.mean_cosine(kappas.double(), dim)
        deviation = (t.detach().double().mean(0) - expected).abs()
        error = (tilt.variance_cosine(kappas.double(), dim) / DRAWS).sqrt()
        off = deviation > LIMIT * error + ROUNDING
        lost = ~x.detach().isfinite().all(-1).all(0)
        bent = ~gradient.isfinite().all(0)
        code = torch.where(off, int(Health.OFF), int(Health.FINE))
        code = torch.where(bent, int(Health.GRADIENT), code)
        code = torch.where(lost, int(Health.SAMPLE), code)
        judged.extend(Health(value) for value in code.tolist())
    return judged


# The closed forms: each gives the KL divergence to the uniform and the log-density at the cosine 1 - c.


def _published(kl: Callable[..., Tensor], log_density: Callable[..., Tensor], dtype: torch.dtype) -> Formula:
    def formula(dim: int, kappa: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        d, kappa = torch.full_like(kappa, dim, dtype=dtype), kappa.to(dtype)
        return kl(d, kappa), log_density(d, kappa, 1 - c.to(dtype))

    return formula


def _ours(tilt: Tilt, dtype: torch.dtype) -> Formula:
    """What `kl_divergence` and `log_prob` return, without a vector of d coordinates for each point."""

    def formula(dim: int, kappa: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        kappa, c = kappa.to(dtype), c.to(dtype)
        log_density = tilt.log_density(kappa, tilt.statistic(c, 2 - c), dim) - log_sphere_area(dim)
        return tilt.relative_entropy(kappa, dim), log_density

    return formula


_FORMS: dict[str, tuple[Tilt, Callable[..., Tensor], Callable[..., Tensor]]] = {
    "ps": (POWER_TILT, baselines.power_spherical_kl_uniform, baselines.power_spherical_log_density),
    "vmf": (EXPONENTIAL_TILT, baselines.von_mises_fisher_kl_uniform, baselines.von_mises_fisher_log_density),
}


def closed_forms(grid: Grid) -> dict[str, Array]:
    """The errors over a grid, by "family/quantity/method"."""
    errors: dict[str, Array] = {}
    kappa = torch.tensor(grid.concentrations, dtype=torch.float32)
    for family, (tilt, kl, log_density) in _FORMS.items():
        exact = _ours(tilt, torch.float64)
        methods = {
            "published_float32": _published(kl, log_density, torch.float32),
            "published_float64": _published(kl, log_density, torch.float64),
            "ours_float32": _ours(tilt, torch.float32),
        }
        for column, dim in enumerate(grid.dims):
            c = tilt.mean_cosine_complement(kappa.double(), dim).float()
            right = exact(dim, kappa, c)
            for method, formula in methods.items():
                values = formula(dim, kappa, c)
                for quantity, value, true in zip(("kl", "log_density"), values, right, strict=True):
                    error = (value.double() - true).abs() / true.abs().clamp(min=1)
                    key = f"{family}/{quantity}/{method}"
                    errors.setdefault(key, np.empty((len(kappa), len(grid.dims))))[:, column] = error.numpy()
    return errors


def passes(results: dict[str, Any]) -> bool:
    """Whether no cell of ours is bad or off, and no error of ours too large or not a number."""
    samples = all(results["samples"][name]["bad"] + results["samples"][name]["off"] == 0 for name in OURS)
    forms = (one for key, one in results["closed_forms"].items() if "/ours_" in key)
    return samples and all(one["not_finite"] == 0 and one["worst"] <= TOLERANCE for one in forms)


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


def _worst(errors: Array, grid: Grid) -> dict[str, Any]:
    """The worst finite error and where it is, and how many values are NaN or infinite."""
    finite = np.isfinite(errors)
    worst = float(errors[finite].max()) if finite.any() else None
    at = None if worst is None else grid.at(errors == worst)[0]
    return {"cells": int(errors.size), "not_finite": int((~finite).sum()), "worst": worst, "at": at}


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
        family, quantity, method = key.split("/")
        label = f"{_FAMILIES[family]} {_QUANTITIES[quantity]}, {method.replace('_', ', ')}"
        worst = "" if one["worst"] is None else f"{one['worst']:.1e}"
        shown.add_row(label, str(one["cells"]), str(one["not_finite"]), "", worst)
    return shown


_FAMILIES = {"ps": "PS", "vmf": "vMF"}
_QUANTITIES = {"kl": "KL to uniform", "log_density": "log-density"}
_COLUMNS = ("published_float32", "published_float64", "ours_float32")


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
        _mesh(axes, cells, grid, colours, -0.5, len(Health) - 0.5)
        for kind in Health:
            _hatch(axes, cells == kind, grid, LOOKS[kind][1])
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
    return _settled(result)


def accuracy_figure(errors: dict[str, Array], grid: Grid) -> "Figure":
    """The maps of the closed forms' errors, a row for each family and quantity."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    result = Figure(figsize=(8.4, 9.6), facecolor="white", layout="constrained")
    rows = list(product(_FAMILIES, _QUANTITIES))
    places = result.subplots(len(rows), len(_COLUMNS), sharex=True, sharey=True)
    colours = matplotlib.colormaps["cividis"]
    for row, (family, quantity) in enumerate(rows):
        for axes, method in zip(places[row], _COLUMNS, strict=True):
            values = errors[f"{family}/{quantity}/{method}"]
            finite = np.isfinite(values)
            decades = np.ma.masked_where(~finite, np.log10(np.clip(values, 10**COARSEST, 1)))
            mesh = _mesh(axes, decades, grid, colours, COARSEST, 0)
            _hatch(axes, ~finite, grid, "xxxx", face="white")
            worst = f"worst {values[finite].max():.0e}" if finite.any() else "never finite"
            head = "" if row else method.replace("_", ", ") + "\n"
            axes.set_title(head + worst, fontsize=9.5, color=INK)
        places[row, 0].set_ylabel(f"{_FAMILIES[family]}\n{_QUANTITIES[quantity]}\n\nconcentration $\\kappa$")
    for axes in places[-1]:
        axes.set_xlabel("dimension $d$")
    bar = result.colorbar(mesh, ax=places, orientation="horizontal", shrink=0.7, aspect=45, pad=0.02)
    bar.set_label("error: relative, absolute below 1")
    bar.set_ticks(
        [-16, -12, -8, -4, 0], labels=[f"$10^{{{power}}}$" for power in (-16, -12, -8, -4)] + ["$\\geq 1$"]
    )
    nothing = Patch(facecolor="white", hatch="xxxx", edgecolor=INK, label="NaN or infinite")
    result.legend(handles=[nothing], loc="outside lower right", frameon=False, fontsize=9.5)
    return _settled(result)


def _settled(figure: "Figure") -> "Figure":
    """The figure with its layout computed once, rather than for every file."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _edges(values: Sequence[float]) -> Array:
    logs = np.log10(np.asarray(values, dtype=np.float64))
    steps = np.diff(logs) if len(logs) > 1 else np.array([1.0])
    middles = logs[:-1] + steps[: len(logs) - 1] / 2
    return 10 ** np.concatenate([[logs[0] - steps[0] / 2], middles, [logs[-1] + steps[-1] / 2]])


def _mesh(axes: "Axes", cells: Array, grid: Grid, colours: "Colormap", low: float, high: float) -> Any:
    mesh = axes.pcolormesh(*grid.edges(), cells, cmap=colours, vmin=low, vmax=high, rasterized=True)
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5)
    return mesh


def _hatch(axes: "Axes", which: Array, grid: Grid, hatch: str, *, face: str = "none") -> None:
    """Hatch the cells of a map in `which`."""
    from matplotlib.collections import PolyCollection

    if not hatch or not which.any():
        return
    x, y = grid.edges()
    boxes = [np.stack([x[[j, j + 1, j + 1, j]], y[[i, i, i + 1, i + 1]]], -1) for i, j in np.argwhere(which)]
    marks = PolyCollection(boxes, facecolor=face, edgecolor="#22222288", hatch=hatch, linewidth=0, zorder=2)
    axes.add_collection(marks, autolim=False)
