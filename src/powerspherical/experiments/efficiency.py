"""The paper's timing figure: how long a batch of 100 draws on the sphere of R^64 takes, against κ.

Each trial is the mean time of many draws; the mean and the variance are over trials. A trial goes through all
concentrations, and at each the methods take turns, in an order that rotates: a slow moment of the machine falls on
all methods, and no slow minute on one concentration alone. The distributions are made beforehand and nothing is
differentiated: what is timed is sampling, in float32. The published methods are those of `formulas.py`, vectorised and
without argument checks (the cosine of the vMF in float64: in float32 its sampler does not end for the larger κ); the
package of the paper's authors (`power_spherical`) joins in where it is installed. The paper's claims are set beside
the timings; a timing never makes the experiment fail, and a claim that the spread of the timings leaves open is neither
confirmed nor refuted.
"""

import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical.experiments import paper
from powerspherical.experiments.baselines import formulas
from powerspherical.experiments.baselines.published import REFERENCE, has_reference
from powerspherical.experiments.results import (
    Outcome,
    Progress,
    hardware,
    name_on,
    silent,
    versions,
    write_figure,
    write_json,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Call = Callable[[], Any]
Times = dict[str, list[list[float]]]  # by method: for each concentration the trials, in milliseconds

FILES = ("efficiency.json", "efficiency.png", "efficiency.svg")
BATCH, DIM = 100, 64
TRIALS, DRAWS = 7, 100
CONSTANT = 1.5  # a time counts as constant in κ if its means differ by no more than this factor
UNMEASURABLE = "the times spread too widely here for a verdict"
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
    """Time every method and write `efficiency.png`, `.svg` and `.json` under `out`; `quick` takes fewer of all.

    On another device than the CPU the files carry its type, as in `efficiency_cuda.json`.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    if concentrations is None:
        concentrations = [a * 10**b for b in range(5) for a in ((1, 3) if quick else range(1, 6))]
    concentrations = [float(kappa) for kappa in concentrations]
    trials, draws = trials or (8 if quick else TRIALS), draws or (10 if quick else DRAWS)

    loc = torch.nn.functional.normalize(torch.randn(BATCH, DIM), dim=-1).to(device)
    methods = [dict(samplers(loc, torch.full((BATCH,), kappa, device=device))) for kappa in concentrations]
    with torch.no_grad():
        measured = measure(methods, trials, draws, loc.device, progress)
    times = {name: [at_one[name] for at_one in measured] for name in measured[0]}

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
        "claims": claims(times),
    }
    name = name_on(loc.device, "efficiency")
    machine = hardware(device)["cpu" if loc.device.type == "cpu" else "device"]
    files = write_figure(out, name, figure(times, concentrations, str(machine)))
    files.append(
        write_json(
            out / f"{name}.json",
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
    return Outcome(files, summary=_summary(results), table=table(times, concentrations))


def samplers(loc: Tensor, concentration: Tensor) -> Iterator[tuple[str, Call]]:
    """The methods by name, each ready to draw one batch."""
    yield "published_vmf", lambda: formulas.von_mises_fisher(loc, concentration, wide=True)
    vmf, ps = VonMisesFisher(loc, concentration), PowerSpherical(loc, concentration)
    yield "our_vmf", vmf.sample
    yield "published_ps", lambda: formulas.power_spherical(loc, concentration)
    if has_reference():
        reference = importlib.import_module(REFERENCE)
        yield "reference_ps", reference.PowerSpherical(loc, concentration).rsample
    yield "our_ps", ps.sample


def measure(
    groups: Sequence[dict[str, Call]],
    trials: int,
    calls: int,
    device: torch.device,
    progress: Progress = silent,
) -> list[dict[str, list[float]]]:
    """The mean time of a call in milliseconds, for each group, method and trial.

    Each trial goes through the groups, in which the methods take turns; one more trial goes first, unseen.
    """
    times: list[dict[str, list[float]]] = [{name: [] for name in methods} for methods in groups]
    for trial in range(-1, trials):
        for methods, measured in zip(groups, times, strict=True):
            names = list(methods)
            first = trial % len(names)
            for name in names[first:] + names[:first]:
                milliseconds = _time(methods[name], calls, device)
                if trial >= 0:
                    measured[name].append(milliseconds)
        progress((trial + 2) / (trials + 1))
    return times


def _time(call: Call, calls: int, device: torch.device) -> float:
    """The mean time of a call in milliseconds."""
    _finish(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _finish(device)
    return 1e3 * (time.perf_counter() - start) / calls


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


def ratio(slow: list[float], fast: list[float]) -> float:
    """How many times as long one method takes as another: the median over trials, in which both were side by side."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def ratios(times: Times, slow: str, fast: str) -> dict[str, float]:
    """The least and the greatest ratio over the concentrations."""
    each = [ratio(a, b) for a, b in zip(times[slow], times[fast], strict=True)]
    return {"min": min(each), "max": max(each)}


def spread(times: Times, name: str) -> float:
    """How many times the fastest concentration's mean time the slowest takes."""
    means = [statistics.fmean(trials) for trials in times[name]]
    return max(means) / min(means)


def interval(ratio: float, *errors: float) -> tuple[float, float]:
    """Two standard errors to either side of a ratio of times that have these relative standard errors."""
    factor = math.exp(2 * math.hypot(*errors))
    return ratio / factor, ratio * factor


def reaches(limit: float, low: float, high: float) -> bool | None:
    """Whether a ratio between `low` and `high` is at least `limit`; None if the interval leaves that open."""
    return None if low < limit <= high else low >= limit


def relative_error(trials: list[float]) -> float:
    """The standard error of the mean, relative to it; 0 for a single trial."""
    if len(trials) < 2:
        return 0.0
    return statistics.stdev(trials) / math.sqrt(len(trials)) / statistics.fmean(trials)


def is_constant(times: Times, name: str) -> bool | None:
    """Whether the time of a method is constant in κ; None if the spread over trials leaves that open.

    Noise drives the means of the concentrations apart. Means that are close together are therefore a yes, however
    noisy they are.
    """
    factor = spread(times, name)
    if factor <= CONSTANT:
        return True
    extremes = (find(times[name], key=statistics.fmean) for find in (min, max))
    low, _ = interval(factor, *map(relative_error, extremes))
    return False if low > CONSTANT else None


def claims(times: Times) -> dict[str, Any]:
    """The paper's claims on sampling, asked of the published methods and of ours; None: not measurable here."""
    least, most = paper.SAMPLING_SPEEDUP
    answers = {}
    for whose, prefix in (("published", "published"), ("ours", "our")):
        vmf, ps = f"{prefix}_vmf", f"{prefix}_ps"
        lows, highs = zip(
            *(
                interval(ratio(slow, fast), relative_error(slow), relative_error(fast))
                for slow, fast in zip(times[vmf], times[ps], strict=True)
            ),
            strict=True,
        )
        answers[whose] = {
            "vmf_over_ps": ratios(times, vmf, ps),
            "spread_over_concentrations": {"vmf": spread(times, vmf), "ps": spread(times, ps)},
            "verdict": {
                f"ps_at_least_{least:g}_times_faster": reaches(least, min(lows), min(highs)),
                f"ps_almost_{most:g}_times_faster_somewhere": reaches(0.9 * most, max(lows), max(highs)),
                "ps_constant_in_concentration": is_constant(times, ps),
                "vmf_constant_in_concentration": is_constant(times, vmf),
            },
        }
    return answers


def _summary(results: dict[str, Any]) -> str:
    vmf_over_ps, gain, claimed = results["vmf_over_ps"], results["published_over_ours"], results["claims"]
    least, most = paper.SAMPLING_SPEEDUP
    spreads = (claimed[whose]["spread_over_concentrations"]["ps"] for whose in ("published", "ours"))
    return (
        f"vMF takes {_range(vmf_over_ps['published'])} times as long as PS as published, "
        f"{_range(vmf_over_ps['ours'])} in ours (the paper: {least:g} to almost {most:g}); over κ the time of PS "
        f"varies by {' and '.join(f'{one:.2g}' for one in spreads)} times (the paper: constant); "
        f"published over ours: vMF {_range(gain['vmf'])}, PS {_range(gain['ps'])}"
        + f"; {UNMEASURABLE}"
        * (None in judged(claimed))
    )


def judged(claimed: dict[str, Any]) -> list[bool | None]:
    """What came of the paper's claims on the Power Spherical as published."""
    return [holds for claim, holds in claimed["published"]["verdict"].items() if claim.startswith("ps_")]


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


def figure(times: Times, concentrations: Sequence[float], machine: str) -> "Figure":
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
    axes.set_title(f"$d={DIM}$, on {machine}", fontsize=10, color="#333333")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.1))
    return result
