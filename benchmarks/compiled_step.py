"""A small training step, compiled and eager, against the package of the paper's authors, and the time to compile it.

The step makes loc and κ from features, draws from Power Spherical, adds the KL to the uniform and runs the backward
pass. All variants take turns in one process. The authors' `kl_divergence` cannot be compiled as one graph, so their
package is timed twice: as it is, and with the divergence written as a constant minus the entropy, which can
("formula"). A ratio is the median over rounds of our time over theirs in the same round. Steps run on one thread, and
their times are CPU times, so that other work on the machine changes them less.

The time to compile is that of a new process with empty caches at the last size, until calls no longer compile. It has
two parts: the set-up of torch's own C++ tool chain, measured with a trivial function, and the step.

    python benchmarks/compiled_step.py [--quick] [--out DIR]
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from _command import Command, Row, peers_left_out, summary_in, table
from rich.table import Table
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical.special import log_sphere_area
from powerspherical_paper.baselines.published import has_reference, reference_package
from powerspherical_paper.timing import Call, Effort, measure, ratio

SIZES, QUICK_SIZES = ((16, 8), (64, 6), (256, 16)), ((4, 3),)
EFFORT = Effort(seconds=6.0, least=25, most=201)
CALLS = 20  # per turn
OURS, THEIRS, FORMULA = "ours", "reference", "reference, formula"

Latent = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From features of shape (batch, d+1) to draws and their divergences from the uniform."""


def stochastic(family: Any, divergence: Callable[[Any], Tensor]) -> Latent:
    """Return the layer that draws from the family, with the given divergence."""

    def latent(features: Tensor) -> tuple[Tensor, Tensor]:
        loc = torch.nn.functional.normalize(features[..., :-1], dim=-1)
        kappa = torch.nn.functional.softplus(features[..., -1]) + 1
        q = family(loc, kappa, validate_args=False)
        return q.rsample(), divergence(q)

    return latent


def latents(dim: int) -> dict[str, Latent]:
    """Return the layers by name."""
    prior = HypersphericalUniform(dim)
    layers = {OURS: stochastic(PowerSpherical, lambda q: kl_divergence(q, prior))}
    if has_reference():
        theirs = reference_package()
        uniform = theirs.HypersphericalUniform(dim, device="cpu")
        area = log_sphere_area(dim)
        layers[THEIRS] = stochastic(theirs.PowerSpherical, lambda q: kl_divergence(q, uniform))
        layers[FORMULA] = stochastic(theirs.PowerSpherical, lambda q: area - q.entropy())
    return layers


def training(latent: Latent, batch: int, dim: int) -> Call:
    """Return a function that runs one step."""
    features, weights = torch.randn(batch, dim + 1, requires_grad=True), torch.randn(batch, dim)

    def step() -> None:
        point, divergence = latent(features)
        ((point * weights).sum() + divergence.sum()).backward()
        features.grad = None

    return step


def cpu_clock(call: Call, calls: int) -> float:
    """Return the CPU seconds per call of a method that runs on this thread."""
    started = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - started) / calls


def timed(batch: int, dim: int, effort: Effort) -> dict[str, dict[str, list[float]]]:
    """Return the seconds per step of each layer in each round, eager and compiled."""
    torch.compiler.reset()  # torch limits the number of recompilations
    steps = {}
    for name, latent in latents(dim).items():
        steps["eager", name] = training(latent, batch, dim)
        steps["compiled", name] = training(torch.compile(latent, fullgraph=name != THEIRS), batch, dim)
    times = measure(steps, effort, cpu_clock, CALLS)
    return {
        mode: {name: times[mode, name] for other, name in times if other == mode}
        for mode in ("eager", "compiled")
    }


def summary(times: dict[str, list[float]]) -> dict[str, Row]:
    """Return the microseconds of each layer and, for theirs, the ratio of ours to it."""
    rows: dict[str, Row] = {}
    for name, seconds in times.items():
        rows[name] = summary_in("microseconds", seconds)
        if name != OURS:
            rows[name]["ours_over_this"] = ratio(times[OURS], seconds)
    return rows


def compiling(name: str, batch: int, dim: int) -> Row:
    """Return the seconds that a new process with empty caches needs to compile, see `report_compilation`."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, __file__, "--compile", name, str(batch), str(dim)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report_compilation(name: str, batch: int, dim: int) -> None:
    """Compile a trivial function, then the step, and print the seconds of both."""
    torch.set_num_threads(1)

    def trivial(features: Tensor) -> tuple[Tensor, Tensor]:
        return features[..., :-1].sin(), features[..., -1]

    started = time.perf_counter()
    training(torch.compile(trivial), batch, dim)()
    tool_chain = time.perf_counter() - started
    step = training(torch.compile(latents(dim)[name], fullgraph=name != THEIRS), batch, dim)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"tool_chain": tool_chain, "step": sum(seconds), "calls": seconds}))


def tables(rows: list[Row], compilation: dict[str, Row]) -> Iterator[Table]:
    """Yield the tables of the times of a step, and of the seconds until a new process no longer compiles."""

    def cell(one: Row) -> str:
        over = f" ({one['ours_over_this']:.2f})" if "ours_over_this" in one else ""
        return f"{one['microseconds']:.0f}{over}"

    lines = [
        [mode, row["batch"], row["dim"], *map(cell, row[mode].values())]
        for row in rows
        for mode in ("eager", "compiled")
    ]
    yield table("Microseconds per step (ours over this)", ("", "batch", "d", *rows[0]["eager"]), lines)
    lines = [[name, f"{row['step']:.1f}", f"{row['tool_chain']:.1f}"] for name, row in compilation.items()]
    yield table("Seconds to compile the step", ("", "step", "tool chain before it"), lines)


def main(argv: list[str] | None = None) -> None:
    """Measure, print the tables, and write `compiled_step.json`."""
    command = Command("compiled_step", __doc__, argv, cpu_only=True)
    if command.threads not in (None, 1):
        command.error("this benchmark runs on one CPU thread only")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    effort = command.effort(EFFORT)
    rows: list[Row] = []
    for batch, dim in QUICK_SIZES if command.quick else SIZES:
        times = timed(batch, dim, effort)
        rows.append({"batch": batch, "dim": dim} | {mode: summary(one) for mode, one in times.items()})
    compilation = {name: compiling(name, batch, dim) for name in times["compiled"]}
    configuration = {"threads": torch.get_num_threads(), "calls": CALLS, "effort": asdict(effort)}
    content = {"configuration": configuration, "results": rows, "compilation": compilation}
    command.finish(content, tables(rows, compilation), notes=peers_left_out())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        report_compilation(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
