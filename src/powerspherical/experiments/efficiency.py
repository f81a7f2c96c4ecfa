"""The paper's timing figure: how long a batch of 100 draws on the sphere of R^64 takes, against κ.

Each trial is the mean time of many draws; the mean and the variance are over trials. The methods take turns
within each trial, in an order that rotates, so that a slow moment of the machine falls on all of them. The
distributions are made beforehand and nothing is differentiated: what is timed is sampling, in float32. The
published methods are those of `baselines.py`, vectorised and without argument checks (the cosine of the vMF in
float64: in float32 its sampler does not end for the larger κ); the package of the paper's
authors (`power_spherical`) joins in where it is installed. Timings are reported, never judged.
"""

import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical.experiments import baselines
from powerspherical.experiments._results import (
    Outcome,
    Progress,
    hardware,
    silent,
    versions,
    write_figure,
    write_json,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Draw = Callable[[], Any]
Times = dict[str, list[list[float]]]  # by method: for each concentration the trials, in milliseconds

BATCH, DIM = 100, 64
TRIALS, DRAWS = 7, 100
REFERENCE = "power_spherical"  # the module that the paper's authors published
# Okabe and Ito's palette, a marker each: vMF dashed, Power Spherical solid.
LOOKS = {
    "published_vmf": ("vMF, published", "#D55E00", "--", "s"),
    "our_vmf": ("vMF, ours", "#E69F00", "--", "o"),
    "published_ps": ("PS, published", "#0072B2", "-", "s"),
    "reference_ps": ("PS, the authors' package", "#000000", "-", "^"),
    "our_ps": ("PS, ours", "#009E73", "-", "o"),
}


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    concentrations: Sequence[float] | None = None,
    trials: int | None = None,
    draws: int | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Time every method and write `efficiency.png`, `.svg` and `.json` under `out`; `quick` takes fewer of all."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    if concentrations is None:
        concentrations = [a * 10**b for b in range(5) for a in ((1, 3) if quick else range(1, 6))]
    concentrations = [float(kappa) for kappa in concentrations]
    trials, draws = trials or (3 if quick else TRIALS), draws or (20 if quick else DRAWS)

    loc = torch.nn.functional.normalize(torch.randn(BATCH, DIM), dim=-1).to(device)
    times: Times = {}
    for done, kappa in enumerate(concentrations, start=1):
        methods = dict(samplers(loc, torch.full((BATCH,), kappa, device=device)))
        for name, measured in measure(methods, trials, draws, loc.device).items():
            times.setdefault(name, []).append(measured)
        progress(0.95 * done / len(concentrations))

    results = {
        "milliseconds": {name: _statistics(rows) for name, rows in times.items()},
        "vmf_over_ps": {
            "published": ratios(times, "published_vmf", "published_ps"),
            "ours": ratios(times, "our_vmf", "our_ps"),
        },
        "published_over_ours": {
            "vmf": ratios(times, "published_vmf", "our_vmf"),
            "ps": ratios(times, "published_ps", "our_ps"),
        },
    }
    files = write_figure(out, "efficiency", figure(times, concentrations, str(hardware(device)["device"])))
    files.append(
        write_json(
            out / "efficiency.json",
            experiment="efficiency",
            seed=seed,
            quick=quick,
            device=device,
            configuration={
                "batch": BATCH,
                "dim": DIM,
                "concentrations": concentrations,
                "trials": trials,
                "draws": draws,
                "dtype": "float32",
                "reference": versions([REFERENCE])[REFERENCE] if "reference_ps" in times else None,
            },
            results=results,
            seconds=time.perf_counter() - started,
        )
    )
    progress(1.0)
    return Outcome(files, summary=_summary(results), table=table(times, concentrations))


def samplers(loc: Tensor, concentration: Tensor) -> Iterator[tuple[str, Draw]]:
    """The methods by name, each ready to draw one batch."""
    yield "published_vmf", lambda: baselines.von_mises_fisher(loc, concentration, wide=True)
    vmf, ps = VonMisesFisher(loc, concentration), PowerSpherical(loc, concentration)
    yield "our_vmf", vmf.sample
    yield "published_ps", lambda: baselines.power_spherical(loc, concentration)
    try:
        reference = importlib.import_module(REFERENCE)
    except ModuleNotFoundError:
        pass
    else:
        yield "reference_ps", reference.PowerSpherical(loc, concentration).rsample
    yield "our_ps", ps.sample


def measure(
    methods: dict[str, Draw], trials: int, draws: int, device: torch.device
) -> dict[str, list[float]]:
    """The mean time of a draw in milliseconds, for each method and trial; one more trial goes first, unseen."""
    names = list(methods)
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        for trial in range(-1, trials):
            first = trial % len(names)
            for name in names[first:] + names[:first]:
                draw = methods[name]
                _finish(device)
                start = time.perf_counter()
                for _ in range(draws):
                    draw()
                _finish(device)
                if trial >= 0:
                    times[name].append(1e3 * (time.perf_counter() - start) / draws)
    return times


def _finish(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _statistics(rows: list[list[float]]) -> list[dict[str, float]]:
    """Mean, variance (over trials) and median for each concentration."""
    return [
        {
            "mean": statistics.fmean(trials),
            "variance": statistics.variance(trials) if len(trials) > 1 else 0.0,
            "median": statistics.median(trials),
        }
        for trials in rows
    ]


def ratios(times: Times, slow: str, fast: str) -> dict[str, float]:
    """The least and the greatest ratio of the median times over the concentrations."""
    each = [
        statistics.median(a) / statistics.median(b) for a, b in zip(times[slow], times[fast], strict=True)
    ]
    return {"min": min(each), "max": max(each)}


def _summary(results: dict[str, Any]) -> str:
    vmf_over_ps, gain = results["vmf_over_ps"], results["published_over_ours"]
    return (
        f"vMF takes {_range(vmf_over_ps['published'])} times as long as PS as published, "
        f"{_range(vmf_over_ps['ours'])} in ours; "
        f"published over ours: vMF {_range(gain['vmf'])}, PS {_range(gain['ps'])}"
    )


def _range(ratio: dict[str, float]) -> str:
    return f"{ratio['min']:.2g}-{ratio['max']:.2g}"


def table(times: Times, concentrations: Sequence[float]) -> "Table":
    """The mean times with their standard deviations, a row for each concentration."""
    from rich.table import Table

    shown = Table(title=f"Milliseconds for {BATCH} draws, d = {DIM} (mean ± sd)", title_justify="left")
    shown.add_column("κ", justify="right")
    for name in times:
        shown.add_column(LOOKS[name][0], justify="right")
    measured = {name: _statistics(rows) for name, rows in times.items()}
    for index, kappa in enumerate(concentrations):
        cells = (rows[index] for rows in measured.values())
        shown.add_row(f"{kappa:g}", *(f"{one['mean']:.3f} ± {one['variance'] ** 0.5:.3f}" for one in cells))
    return shown


def figure(times: Times, concentrations: Sequence[float], device: str) -> "Figure":
    """Time against concentration: means over trials, with a band of one standard deviation."""
    from matplotlib.figure import Figure

    result = Figure(figsize=(5.6, 3.8), facecolor="white", layout="constrained")
    axes = result.subplots()
    for name, rows in times.items():
        label, colour, line, marker = LOOKS[name]
        measured = _statistics(rows)
        means = [one["mean"] for one in measured]
        spreads = [one["variance"] ** 0.5 for one in measured]
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.plot(
            concentrations, means, color=colour, linestyle=line, marker=marker, markersize=4, label=label
        )
        axes.fill_between(concentrations, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("concentration $\\kappa$")
    axes.set_ylabel(f"milliseconds for {BATCH} draws")
    axes.set_title(f"$d={DIM}$, on {device}", fontsize=10, color="#333333")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.1))
    return result
