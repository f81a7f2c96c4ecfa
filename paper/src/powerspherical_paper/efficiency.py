"""The paper's timing figure (Figure 2 (b)): the time of a batch of 100 draws in R^64, against κ.

We time sampling alone, in float32: distributions are made beforehand and nothing is differentiated. A trial times many
draws of every method at every concentration, see `timing`.

The published methods are those of `formulas.py`, vectorised and without argument checks. The published vMF draws its
cosine in float64, because its float32 sampler does not terminate for large κ. The package of the paper's authors
(`power_spherical`) is timed too where it is installed.

Timings never make the experiment fail. A claim of the paper is left open when the spread over trials is too large to
decide it.
"""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical._selfcheck.environment import hardware, versions
from powerspherical.plot import PALETTE
from powerspherical_paper import claims
from powerspherical_paper.baselines import formulas
from powerspherical_paper.baselines.published import REFERENCE, has_reference, reference_package
from powerspherical_paper.results import Outcome, Task
from powerspherical_paper.timing import (
    Call,
    clock_on,
    interval,
    ratio,
    reaches,
    relative_error,
    summary,
    take_turns,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Times = dict[str, list[list[float]]]  # by method, then concentration: seconds per draw in each trial

FILES = ("efficiency.json", "efficiency.png")
BATCH, DIM = 100, 64
TRIALS, DRAWS = 7, 100
CONSTANT = 1.5  # the time counts as constant in κ if its medians are within this factor of each other
# Label, colour, line and marker; the vMF is dashed, the Power Spherical solid.
LOOKS = {
    "published_vmf": ("vMF, published", PALETTE["vermilion"], "--", "s"),
    "our_vmf": ("vMF, ours", PALETTE["orange"], "--", "o"),
    "published_ps": ("PS, published", PALETTE["blue"], "-", "s"),
    "reference_ps": ("PS, the authors' package", "#000000", "-", "^"),
    "our_ps": ("PS, ours", PALETTE["green"], "-", "o"),
}


def run(task: Task) -> Outcome:
    """Time every method and write `efficiency.png` and `.json`. A quick run has fewer concentrations and draws."""
    torch.manual_seed(task.seed)
    concentrations = [float(a * 10**b) for b in range(5) for a in ((1, 3) if task.quick else range(1, 6))]
    trials, draws = (8, 10) if task.quick else (TRIALS, DRAWS)
    device = torch.device(task.device)
    loc = torch.nn.functional.normalize(torch.randn(BATCH, DIM), dim=-1).to(device)
    clock = clock_on(device)
    timers = [
        {
            name: partial(clock, call, draws)
            for name, call in samplers(loc, torch.full((BATCH,), kappa, device=device))
        }
        for kappa in concentrations
    ]
    with torch.no_grad():
        take_turns(timers, 1)  # to warm up
        measured = take_turns(timers, trials, task.progress)
    times = {name: [at_one[name] for at_one in measured] for name in measured[0]}

    configuration = {
        "batch": BATCH,
        "dim": DIM,
        "concentrations": concentrations,
        "trials": trials,
        "draws": draws,
        "dtype": "float32",
        "reference": versions([REFERENCE])[REFERENCE],
    }
    results: dict[str, Any] = {
        "milliseconds": {name: list(map(milliseconds, rows)) for name, rows in times.items()},
        "published_over_ours": {
            family: ratios(times, f"published_{family}", f"our_{family}") for family in ("vmf", "ps")
        },
        "claims": verdicts(times),
    }
    machine = hardware(device)["cpu" if device.type == "cpu" else "device"]
    picture = task.draw("efficiency", figure(results["milliseconds"], concentrations, str(machine)))
    return Outcome([picture, task.write("efficiency", configuration, results)])


def samplers(loc: Tensor, concentration: Tensor) -> Iterator[tuple[str, Call]]:
    """Yield the name of each method and a function that draws one batch."""
    yield "published_vmf", lambda: formulas.von_mises_fisher(loc, concentration, wide=True)
    vmf, ps = VonMisesFisher(loc, concentration), PowerSpherical(loc, concentration)
    yield "our_vmf", vmf.sample
    yield "published_ps", lambda: formulas.power_spherical(loc, concentration)
    if has_reference():
        yield "reference_ps", reference_package().PowerSpherical(loc, concentration).rsample
    yield "our_ps", ps.sample


def milliseconds(trials: list[float]) -> dict[str, Any]:
    """Mean, variance, median and quartiles over trials."""
    found = [1e3 * seconds for seconds in trials]
    variance = statistics.variance(found) if len(found) > 1 else 0.0
    return {"mean": statistics.fmean(found), "variance": variance} | summary(found)


def ratios(times: Times, slow: str, fast: str) -> dict[str, float]:
    """The smallest and the largest ratio over the concentrations."""
    each = [ratio(a, b) for a, b in zip(times[slow], times[fast], strict=True)]
    return {"min": min(each), "max": max(each)}


def spread(times: Times, name: str) -> float:
    """The median time at the slowest concentration over that at the fastest."""
    medians = list(map(statistics.median, times[name]))
    return max(medians) / min(medians)


def error(trials: list[float]) -> float:
    """The relative standard error of the median time."""
    return relative_error(**summary(trials), count=len(trials))


def is_constant(times: Times, name: str) -> bool | None:
    """Whether a method's time is constant in κ; None if the spread over trials is too large to tell.

    Noise can only drive the medians apart. Medians that are close together therefore count as constant despite noise.
    """
    factor = spread(times, name)
    if factor <= CONSTANT:
        return True
    extremes = (find(times[name], key=statistics.median) for find in (min, max))
    low, _ = interval(factor, *map(error, extremes))
    return False if low > CONSTANT else None


def verdicts(times: Times) -> dict[str, Any]:
    """The verdicts on the paper's claims about sampling, for the published methods and for ours; None is open."""
    least, most = claims.SAMPLING_SPEEDUP
    answers = {}
    for whose, prefix in (("published", "published"), ("ours", "our")):
        vmf, ps = f"{prefix}_vmf", f"{prefix}_ps"
        lows, highs = zip(
            *(
                interval(ratio(slow, fast), error(slow), error(fast))
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


def figure(times: dict[str, list[dict[str, Any]]], concentrations: Sequence[float], machine: str) -> "Figure":
    """Mean time against concentration, with a band of one standard deviation over trials."""
    from matplotlib.figure import Figure

    result = Figure(figsize=(5.6, 3.8), facecolor="white", layout="constrained")
    axes = result.subplots()
    for name, rows in times.items():
        label, colour, line, marker = LOOKS[name]
        means = np.array([one["mean"] for one in rows])
        deviations = np.sqrt([one["variance"] for one in rows])
        axes.plot(
            concentrations, means, color=colour, linestyle=line, marker=marker, markersize=4, label=label
        )
        axes.fill_between(
            concentrations, means - deviations, means + deviations, color=colour, alpha=0.2, linewidth=0
        )
    axes.set(xscale="log", xlabel="concentration $\\kappa$", ylabel=f"milliseconds for {BATCH} draws")
    axes.set_ylim(bottom=0)
    axes.set_title(f"$d={DIM}$, on {machine}", fontsize=10, color="#333333")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.1))
    return result
