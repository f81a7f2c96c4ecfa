"""The time of a training step with each posterior, for the paper's claim that the Power Spherical halves it.

The auto-encoder, the batch size and the optimiser are those of the paper's table, in float32. A step is forward,
backward and update, uncompiled. All posteriors train in one process and take turns of a few steps, called blocks; see
`timing`.

The data are synthetic: the probabilities of the bits depend on a few hidden coordinates, so that κ grows during
training as it does on images. (On independent fair bits κ would stay small, and rejection rare.) Timings never make the
experiment fail.
"""

import statistics
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerspherical._selfcheck.environment import versions
from powerspherical_paper import claims
from powerspherical_paper.autoencoder.models import build
from powerspherical_paper.autoencoder.training import Protocol
from powerspherical_paper.baselines.published import REFERENCE, has_reference
from powerspherical_paper.results import Outcome, Progress, name_on, part, silent, write_json
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

FILES = ("training_time.json",)
PIXELS, HIDDEN = 784, 10
DIMS = (5, 10, 20, 40)
BATCHES = 50  # distinct batches, used in a cycle
#: The keys of `models.HEADS`, by the names that the efficiency experiment uses too.
POSTERIORS = {
    "our_ps": "power_spherical",
    "published_ps": "published_power_spherical",
    "reference_ps": "reference_power_spherical",  # the authors' package, if installed
    "our_vmf": "von_mises_fisher",
    "published_vmf": "published_von_mises_fisher",
    "gaussian": "gaussian",
}
#: The ratios to report: numerator and denominator.
FACTORS = (
    ("published_ps", "our_ps"),
    ("reference_ps", "our_ps"),
    ("published_vmf", "our_ps"),
    ("our_vmf", "our_ps"),
    ("published_vmf", "published_ps"),
)
Times = dict[str, list[float]]  # by method: seconds per step, for each block


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Outcome:
    """Time every posterior and write `training_time.json` under `out`.

    On a GPU the file is `training_time_cuda.json`. `quick` uses a single d and fewer steps.
    """
    started = time.perf_counter()
    device = torch.device(device)
    dims = (10,) if quick else DIMS
    warm_up, blocks, steps = (20, 40, 2) if quick else (300, 80, 5)
    torch.manual_seed(seed)
    batches = list(data(BATCHES, Protocol.batch, device))
    methods = {name: q for name, q in POSTERIORS.items() if name != "reference_ps" or has_reference()}
    clock = clock_on(device)
    timers = []
    for done, dim in enumerate(dims, start=1):
        group = {name: training(q, dim, batches) for name, q in methods.items()}
        for step in group.values():
            clock(step, warm_up)
        timers.append({name: partial(clock, step, steps) for name, step in group.items()})
        progress(0.4 * done / len(dims))
    times = dict(zip(dims, take_turns(timers, blocks, part(progress, 0.4, 1)), strict=True))

    by_dim = {str(dim): factors(each) for dim, each in times.items()}
    overall = {
        name: statistics.median(each[name] for each in by_dim.values()) for name in by_dim[str(dims[0])]
    }
    results = {
        "milliseconds_per_step": {
            str(dim): {
                name: summary([1e3 * seconds for seconds in blocks_of]) for name, blocks_of in each.items()
            }
            for dim, each in times.items()
        },
        "factors": overall,
        "factors_by_dim": by_dim,
    }
    path = write_json(
        out / f"{name_on(device, 'training_time')}.json",
        experiment="vae",  # the name of the command, which runs both
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
    return Outcome([path])


def data(batches: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Yield batches (size, PIXELS) of bits whose log-odds are linear in hidden standard normals."""
    slopes = torch.randn(HIDDEN, PIXELS)
    for _ in range(batches):
        yield torch.bernoulli(torch.sigmoid(torch.randn(size, HIDDEN) @ slopes)).to(device)


def training(posterior: str, dim: int, batches: list[Tensor]) -> Call:
    """A function that trains a new auto-encoder for one step."""
    model = build(posterior, dim, PIXELS).to(batches[0].device)
    optimizer = torch.optim.Adam(model.parameters(), lr=Protocol.learning_rate)
    remaining = cycle(batches)

    def step() -> None:
        optimizer.zero_grad()
        (-model.elbo(next(remaining)).elbo.mean()).backward()
        optimizer.step()

    return step


def factors(times: Times) -> dict[str, float]:
    """The ratios `FACTORS` of step times, each the median over blocks."""
    return {
        f"{slow}_over_{fast}": ratio(times[slow], times[fast])
        for slow, fast in FACTORS
        if slow in times and fast in times
    }


def verdicts(results: dict[str, Any], blocks: int) -> list[bool | None]:
    """Whether the published Power Spherical trains faster than the published vMF, and by the paper's factor.

    An answer is None if the spread over blocks is too large to tell. The bounds on the ratio are medians over d.
    """
    slow, fast = "published_vmf", "published_ps"
    bounds = []
    for dim, times in results["milliseconds_per_step"].items():
        errors = [relative_error(**times[name], count=blocks) for name in (slow, fast)]
        bounds.append(interval(results["factors_by_dim"][dim][f"{slow}_over_{fast}"], *errors))
    low, high = (statistics.median(bound) for bound in zip(*bounds, strict=True))
    return [reaches(limit, low, high) for limit in (1.0, claims.TRAINING_SPEEDUP)]
