"""How long a step of training takes with each posterior: the paper's claim that the Power Spherical halves it.

The auto-encoder, the batch and the optimiser are those of the paper's table, in float32, and a step is forward,
backward and update. All posteriors are trained in one process, uncompiled, taking turns in short blocks of steps: a
slow moment of the machine falls on all of them. The data are made here: bits whose probabilities depend on a
few hidden coordinates, which gives the posteriors something to say and lets κ grow as it does on images (on coin
flips it would stay where it starts, and rejection would be rare). A timing never makes the experiment fail.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerspherical.experiments import paper
from powerspherical.experiments.autoencoder.models import build
from powerspherical.experiments.autoencoder.training import Protocol
from powerspherical.experiments.baselines.published import REFERENCE, has_reference
from powerspherical.experiments.efficiency import UNMEASURABLE, Call, interval, measure, ratio, reaches
from powerspherical.experiments.results import Outcome, Progress, name_on, silent, versions, write_json

if TYPE_CHECKING:
    from rich.table import Table

FILES = ("training_time.json",)
PIXELS, HIDDEN = 784, 10
DIMS = (5, 10, 20, 40)
BATCHES = 50  # of data; training goes through them again and again
MEDIAN_ERROR = (
    0.93  # standard error of the median of n normal numbers, times √n, over the distance of their quartiles
)
#: The posteriors as `models` calls them, by the names used here, which are those of the efficiency experiment.
POSTERIORS = {
    "our_ps": "power_spherical",
    "published_ps": "published_power_spherical",
    "reference_ps": "reference_power_spherical",  # the authors' package, where it is installed
    "our_vmf": "von_mises_fisher",
    "published_vmf": "published_von_mises_fisher",
    "gaussian": "gaussian",
}
#: What is compared: the slower one, as the paper has it, and the faster.
FACTORS = (
    ("published_ps", "our_ps"),
    ("reference_ps", "our_ps"),
    ("published_vmf", "our_ps"),
    ("our_vmf", "our_ps"),
    ("published_vmf", "published_ps"),
)
Times = dict[str, list[float]]  # by method: the blocks, in milliseconds a step


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Outcome:
    """Time every posterior and write `training_time.json` under `out`; `quick` takes one d and fewer steps.

    On another device than the CPU the file carries its type, as in `training_time_cuda.json`.
    """
    started = time.perf_counter()
    device = torch.device(device)
    dims = (10,) if quick else DIMS
    warm_up, blocks, steps = (20, 40, 2) if quick else (300, 80, 5)
    torch.manual_seed(seed)
    batches = list(data(BATCHES, Protocol.batch, device))
    methods = {name: q for name, q in POSTERIORS.items() if name != "reference_ps" or has_reference()}
    groups = [{name: training(q, dim, batches) for name, q in methods.items()} for dim in dims]
    for done, group in enumerate(groups, start=1):
        for step in group.values():
            for _ in range(warm_up):
                step()
        progress(0.4 * done / len(groups))
    measured = measure(groups, blocks, steps, device, lambda fraction: progress(0.4 + 0.6 * fraction))
    times = dict(zip(dims, measured, strict=True))

    by_dim = {str(dim): factors(each) for dim, each in times.items()}
    overall = {
        name: statistics.median(each[name] for each in by_dim.values()) for name in by_dim[str(dims[0])]
    }
    results = {
        "milliseconds_per_step": {
            str(dim): {name: summarised(blocks_of) for name, blocks_of in each.items()}
            for dim, each in times.items()
        },
        "factors": overall,
        "factors_by_dim": by_dim,
    }
    path = write_json(
        out / f"{name_on(device, 'training_time')}.json",
        experiment="vae",  # the experiment, and so the command, that this is a part of
        seed=seed,
        quick=quick,
        device=device,
        configuration={
            "pixels": PIXELS,
            "batch": Protocol.batch,
            "learning_rate": Protocol.learning_rate,
            "dims": list(dims),
            "steps_before": warm_up,
            "blocks": blocks,
            "steps_a_block": steps,
            "dtype": "float32",
            "reference": versions([REFERENCE])[REFERENCE] if has_reference() else None,
        },
        results=results,
        seconds=time.perf_counter() - started,
    )
    return Outcome([path], summary=_summary(results, blocks), table=table(times))


def data(batches: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Batches of bits, each bit's log-odds a linear function of hidden standard normals."""
    slopes = torch.randn(HIDDEN, PIXELS)
    for _ in range(batches):
        yield torch.bernoulli(torch.sigmoid(torch.randn(size, HIDDEN) @ slopes)).to(device)


def training(posterior: str, dim: int, batches: list[Tensor]) -> Call:
    """A fresh auto-encoder, as a function that trains it for one step."""
    model = build(posterior, dim, PIXELS).to(batches[0].device)
    optimizer = torch.optim.Adam(model.parameters(), lr=Protocol.learning_rate)
    remaining = cycle(batches)

    def step() -> None:
        optimizer.zero_grad()
        (-model.elbo(next(remaining)).elbo.mean()).backward()
        optimizer.step()

    return step


def factors(times: Times) -> dict[str, float]:
    """How many times as long a step takes with one posterior as with another, the median over blocks."""
    return {
        f"{slow}_over_{fast}": ratio(times[slow], times[fast])
        for slow, fast in FACTORS
        if slow in times and fast in times
    }


def summarised(blocks: list[float]) -> dict[str, Any]:
    """The median over blocks, and the quartiles on both sides of it."""
    low, median, high = statistics.quantiles(blocks, n=4, method="inclusive")
    return {"median": median, "quartiles": [low, high]}


def relative_error_of_median(median: float, quartiles: Sequence[float], count: int) -> float:
    """The standard error of the median of so many numbers, relative to it, as if they were normal."""
    low, high = quartiles
    return MEDIAN_ERROR * (high - low) / math.sqrt(count) / median


def claims(results: dict[str, Any], blocks: int) -> list[bool | None]:
    """Whether training is faster with the Power Spherical as published, and as many times as the paper says.

    None where the spread over so many blocks leaves it open. Of the bounds on the factor at each d the median counts.
    """
    slow, fast = "published_vmf", "published_ps"
    bounds = []
    for dim, times in results["milliseconds_per_step"].items():
        errors = [relative_error_of_median(**times[name], count=blocks) for name in (slow, fast)]
        bounds.append(interval(results["factors_by_dim"][dim][f"{slow}_over_{fast}"], *errors))
    low, high = (statistics.median(bound) for bound in zip(*bounds, strict=True))
    return [reaches(limit, low, high) for limit in (1.0, paper.TRAINING_SPEEDUP)]


def _summary(results: dict[str, Any], blocks: int) -> str:
    overall = results["factors"]
    ours, published = overall["published_vmf_over_our_ps"], overall["published_vmf_over_published_ps"]
    reference = overall.get("reference_ps_over_our_ps")
    package = "" if reference is None else f", the authors' package over ours {reference:.2f}"
    return (
        f"a step with the published vMF takes {ours:.2f} times as long as with our PS and {published:.2f} times as "
        f"with the published PS (the paper: more than {paper.TRAINING_SPEEDUP:g}); published PS over ours "
        f"{overall['published_ps_over_our_ps']:.2f}{package}, our vMF over our PS {overall['our_vmf_over_our_ps']:.2f}"
        + f"; {UNMEASURABLE}"
        * (None in claims(results, blocks))
    )


def table(times: dict[int, Times]) -> "Table":
    """The medians with their quartiles, a row for each d."""
    from rich.table import Table

    shown = Table(title="Milliseconds for a step of training (median, quartiles)", title_justify="left")
    shown.add_column("d", justify="right")
    names = next(iter(times.values()))
    for name in names:
        shown.add_column(name.replace("_", " "), justify="right")
    for dim, measured in times.items():
        cells = (summarised(measured[name]) for name in names)
        shown.add_row(
            str(dim), *("{median:.2f} ({quartiles[0]:.2f}–{quartiles[1]:.2f})".format(**one) for one in cells)
        )
    return shown
