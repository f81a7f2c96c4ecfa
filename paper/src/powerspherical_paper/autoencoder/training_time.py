"""The time of a training step with each posterior, for the paper's claim that the Power Spherical halves it.

The auto-encoder, the batch size and the optimiser are those of the paper's table, in float32. A step is forward,
backward and update, uncompiled. All posteriors train in one process and take turns of a few steps, called blocks; see
`timing`.

The data are synthetic: the probabilities of the bits depend on a few hidden coordinates, so that κ grows during
training as it does on images. (On independent fair bits κ would stay small, and rejection rare.) Timings never make the
experiment fail.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from powerspherical._selfcheck.environment import versions
from powerspherical_paper import claims
from powerspherical_paper.autoencoder.models import build
from powerspherical_paper.autoencoder.training import Protocol
from powerspherical_paper.baselines.published import REFERENCE, has_reference
from powerspherical_paper.results import Outcome, Task, part
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


def run(task: Task) -> Outcome:
    """Time every posterior and write `training_time.json`. A quick run has a single d and fewer steps."""
    device = torch.device(task.device)
    dims = (10,) if task.quick else DIMS
    warm_up, blocks, steps = (20, 40, 2) if task.quick else (300, 80, 5)
    torch.manual_seed(task.seed)
    batches = list(data(BATCHES, Protocol.batch, device))
    methods = {name: q for name, q in POSTERIORS.items() if name != "reference_ps" or has_reference()}
    clock = clock_on(device)
    timers = []
    for done, dim in enumerate(dims, start=1):
        group = {name: training(q, dim, batches) for name, q in methods.items()}
        for step in group.values():
            clock(step, warm_up)
        timers.append({name: partial(clock, step, steps) for name, step in group.items()})
        task.progress(0.4 * done / len(dims))
    times = dict(zip(map(str, dims), take_turns(timers, blocks, part(task.progress, 0.4, 1)), strict=True))
    configuration = {
        "pixels": PIXELS,
        "batch": Protocol.batch,
        "learning_rate": Protocol.learning_rate,
        "dims": dims,
        "steps_before": warm_up,
        "blocks": blocks,
        "steps_a_block": steps,
        "dtype": "float32",
        "reference": versions([REFERENCE])[REFERENCE],
    }
    return Outcome([task.write("training_time", configuration, summarised(times))])


def summarised(times: dict[str, Times]) -> dict[str, Any]:
    """The results for the times by d: median and quartiles of each method, and the ratios `FACTORS`."""
    by_dim = {dim: factors(each) for dim, each in times.items()}
    return {
        "milliseconds_per_step": {
            dim: {name: summary([1e3 * one for one in blocks]) for name, blocks in each.items()}
            for dim, each in times.items()
        },
        "factors": {
            name: statistics.median(each[name] for each in by_dim.values())
            for name in next(iter(by_dim.values()))
        },
        "factors_by_dim": by_dim,
    }


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
