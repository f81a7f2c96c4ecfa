"""Where the time of a small training step goes: Python and torch around the kernels, or the kernels themselves.

The stages are nested, so that each one's excess over the one before is its own cost. All stages take turns, as in
sampling.py. The time in kernels is that of torch's profiler on CUDA. On the CPU it is the part of a step that grows
with the rows, found from a step with ten times as many. `--label` names the run inside the results, so that two
versions of the package can be published together.

    python benchmarks/host_time.py [--device cpu|cuda] [--label NAME] [--quick] [--out DIR]
"""

import json
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from _command import Command, table
from torch import Tensor

from powerspherical import PowerSpherical
from powerspherical_paper.results import name_on
from powerspherical_paper.timing import Call, Effort, clock_on, measure

SIZES = {"cpu": (100, 64), "cuda": (65_536, 16)}
KAPPA = 100.0
EFFORT = Effort(seconds=3.0, least=25, most=301)
CALLS = 50  # per turn
MORE = 10  # times as many rows
STAGES = {
    "randn": "torch.randn of the same shape",
    "construct": "construct the distribution",
    "draw": "construct it and draw",
    "record": "the same, recording for the backward pass",
    "step": "the same, with the backward pass",
    "checked_draw": "the draw, with checks of the arguments",
    "checked_step": "the step, with checks of the arguments",
    "same_thread": "the step, with the backward pass on the calling thread",
    "empty": "an autograd function that computes nothing, both passes",
}


class Empty(torch.autograd.Function):
    """An autograd function that does nothing, with two inputs and one output: the overhead of autograd itself."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, kappa: Tensor) -> Tensor:
        ctx.save_for_backward(loc, kappa)
        return torch.empty_like(loc)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        loc, kappa = ctx.saved_tensors
        return torch.empty_like(loc), torch.empty_like(kappa)


def stages(rows: int, dim: int, device: torch.device) -> dict[str, Call]:
    """Return the stages of a step by name, as functions without arguments."""
    loc = torch.nn.functional.normalize(torch.randn(rows, dim, device=device), dim=-1)
    kappa = torch.full((rows,), KAPPA, device=device)
    grad = torch.randn(rows, dim, device=device)
    leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()

    def made(parameters: tuple[Tensor, Tensor], checks: bool = False) -> PowerSpherical:
        return PowerSpherical(*parameters, validate_args=checks)

    def step(checks: bool = False) -> object:
        return torch.autograd.grad(made(leaves, checks).rsample(), leaves, grad)

    def same_thread() -> object:
        # On CUDA, torch runs the backward pass on a thread of its own unless this is off.
        with torch.autograd.set_multithreading_enabled(False):
            return step()

    return {
        "randn": lambda: torch.randn(rows, dim, device=device),
        "construct": lambda: made((loc, kappa)),
        "draw": lambda: made((loc, kappa)).rsample(),
        "record": lambda: made(leaves).rsample(),
        "step": step,
        "checked_draw": lambda: made((loc, kappa), True).rsample(),
        "checked_step": lambda: step(True),
        "same_thread": same_thread,
        "empty": lambda: torch.autograd.grad(Empty.apply(*leaves), leaves, grad),
    }


def cuda_kernels(call: Call, repeats: int = 20) -> dict[str, float]:
    """Return the microseconds per call inside each CUDA kernel, by torch's profiler."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    return {event.key: event.self_device_time_total / repeats for event in profiled.key_averages()}


def lines(results: dict[str, Any]) -> Iterator[list[str]]:
    """Yield one line per stage, with one cell per label, and a line for the kernels."""
    times = [one["microseconds"] for one in results.values()]
    for stage, words in STAGES.items():
        cells = (
            f"{one[stage]:.1f} ({one[stage] / one['randn']:.1f})" if stage in one else "" for one in times
        )
        yield [words, *cells]
    yield ["the kernels", *(f"{sum(one['kernels'].values()):.1f}" for one in results.values())]


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `host_time.json`."""
    label = {"default": "now", "help": "name of this run in the results; default: now"}
    command = Command("host_time", __doc__, argv, {"--label": label})
    device = command.device
    torch.set_num_threads(command.threads or 1)
    rows, dim = SIZES[device.type]
    calls = stages(rows, dim, device)
    larger = {"larger": stages(MORE * rows, dim, device)["step"]} if device.type == "cpu" else {}
    seconds = measure(calls | larger, command.effort(EFFORT), clock_on(device), CALLS)
    microseconds = {name: 1e6 * statistics.median(times) for name, times in seconds.items()}
    if larger:
        kernels = {"growing": (microseconds.pop("larger") - microseconds["step"]) / (MORE - 1)}
    else:
        kernels = cuda_kernels(calls["step"])
    path = command.out / f"{name_on(device, 'host_time')}.json"
    results = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    results[command.arguments.label] = {"microseconds": microseconds, "kernels": kernels}
    configuration = {
        "rows": rows,
        "dim": dim,
        "kappa": KAPPA,
        "dtype": "float32",
        "threads": torch.get_num_threads(),
    }
    shown = table("Microseconds per call (times of randn)", ("", *results), lines(results))
    command.finish({"configuration": configuration, "results": results}, [shown])


if __name__ == "__main__":
    main()
