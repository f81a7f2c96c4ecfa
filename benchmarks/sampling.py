"""Time per draw, compared with peers and with drawing the same number of normals.

All methods run in one process and take turns. The results are the median over rounds of the ratio to `torch.randn(rows,
dim)` in the same round, and the median time. TensorFlow Probability needs a separate environment and is compared with
its own floor. See README.md in this folder.

    python benchmarks/sampling.py [--device cpu|cuda] [--threads N] [--tfp PYTHON] [--quick] [--out DIR]
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

import torch
from _command import Command, Row, peers_left_out, summary_in
from _memory import peak
from _methods import FLOOR, FORWARD, QUANTITIES, WAITING, Case, floors, methods
from _shown import figure, tables

from powerspherical._selfcheck.environment import hardware
from powerspherical_paper.timing import Call, Effort, clock_on, measure, queued_clock, ratio

Value = TypeVar("Value")
Times = dict[tuple[Case, str], list[float]]  # (case, method) -> seconds of each round

GRAPH_CASE, GRAPH_DRAWS = Case(100, 64), 20
QUEUED_FROM = 1_000_000  # numbers per draw; below, the device does not limit the time
SINGLE_UP_TO = 2_000_000  # numbers per draw; above, single calls take as long as those in a turn of many
TFP_FLOOR = "jax_normal"


@dataclass(frozen=True)
class Plan:
    """What to measure and for how long: some sizes, then κ and d one at a time with `sweep` numbers per draw."""

    sizes: Sequence[tuple[int, int]]
    sweep: int
    memory: Sequence[tuple[int, int]]
    effort: Effort
    concentrations: Sequence[float] = (1.0, 1e1, 1e2, 1e3, 1e4, 1e5)
    dims: Sequence[int] = (8, 64, 512, 4096, 32_768)

    def groups(self, *, cuda: bool, sweeps: bool) -> Iterator[tuple[str, list[Case]]]:
        """Yield the section of the results and the cases that are measured together.

        *Singles* are single calls, one per method and turn. In a turn of many calls caches are warm and, on CUDA, the
        host runs ahead. Both situations occur in practice. *Queued* is the time of the device alone.
        """
        for shared, (rows, dim) in product((False, True), self.sizes):
            yield "sizes", [Case(rows, dim, shared=shared)]
            if cuda and rows * dim >= QUEUED_FROM:
                yield "queued", [Case(rows, dim, shared=shared)]
            if not shared and rows * dim <= SINGLE_UP_TO:
                yield "singles", [Case(rows, dim)]
        if sweeps:
            yield "concentrations", [Case(self.sweep // 64, 64, kappa) for kappa in self.concentrations]
            yield "dimensions", [Case(self.sweep // dim, dim) for dim in self.dims]


PLANS = {
    "cpu": Plan(
        sizes=((100, 64), (1000, 3), (100_000, 64), (10_000, 768), (1000, 10_000)),
        sweep=6_400_000,
        memory=((100_000, 64), (10_000, 768)),
        effort=Effort(seconds=2.0, least=15, most=301),
    ),
    "cuda": Plan(
        sizes=(
            (100, 64),
            (65_536, 16),
            (65_536, 64),
            (1_000_000, 3),
            (1_000_000, 16),
            (1_000_000, 64),
            (100_000, 768),
            (10_000, 10_000),
        ),
        sweep=64_000_000,
        memory=((1_000_000, 64), (100_000, 768)),
        effort=Effort(seconds=1.0, least=9, most=101),
    ),
}
QUICK = Plan(
    sizes=((100, 64), (1000, 3)),
    concentrations=(1.0, 1e5),
    dims=(8, 64),
    sweep=6400,
    memory=((100, 64),),
    effort=Effort(seconds=0, least=2, most=2),
)


def timed(plan: Plan, section: str, cases: list[Case], quantity: str, device: torch.device) -> Times:
    """Return the times of the methods in a group of cases, and of the floors."""
    # The floor depends only on the numbers per draw, which all cases of a group share.
    calls = keyed(cases[0], floors(cases[0], device))
    for case in cases:
        calls |= keyed(case, methods(case, quantity, device))
    if section == "queued":
        calls = {key: call for key, call in calls.items() if key[1] not in WAITING}
    effort = plan.effort
    if section == "concentrations":  # differences of a few percent matter
        effort = replace(effort, least=3 * effort.least)
    clock = queued_clock if section == "queued" else clock_on(device)
    return measure(calls, effort, clock, 1 if section == "singles" else cases[0].calls(device))


def keyed(case: Case, by_name: Mapping[str, Value]) -> dict[tuple[Case, str], Value]:
    """Return a mapping of methods as a mapping of (case, method)."""
    return {(case, name): value for name, value in by_name.items()}


def summary(section: str, quantity: str, threads: int, times: Times, floor: str) -> list[Row]:
    """Return the rounds as lines of the results, with ratios to the floor, which is one of the methods."""
    beneath = next(seconds for (_, method), seconds in times.items() if method == floor)
    rows = []
    for (case, method), seconds in times.items():
        setting = {"section": section, **case.as_row(), "quantity": quantity, "threads": threads}
        times_over_floor = {"floor": floor, "ratio": ratio(seconds, beneath)}
        rows.append(setting | {"method": method} | summary_in("milliseconds", seconds) | times_over_floor)
    return rows


def graphs(plan: Plan) -> Times:
    """Return the times of draws in a CUDA graph of many, which has no launch overhead."""
    device, case = torch.device("cuda"), GRAPH_CASE
    calls = floors(case, device) | methods(case, FORWARD, device)
    replays = {name: captured(call, GRAPH_DRAWS) for name, call in calls.items() if name not in WAITING}
    times = measure(keyed(case, replays), plan.effort, clock_on(device), case.calls(device))
    return {key: [one / GRAPH_DRAWS for one in seconds] for key, seconds in times.items()}


def captured(call: Call, times: int) -> Call:
    """Capture `times` calls in a CUDA graph, and return the function that replays it."""
    # torch recommends to warm up on a separate stream before a capture.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def tfp(python: str, plan: Plan, threads: int) -> tuple[list[Row], dict[str, str]]:
    """Return the results of TensorFlow Probability at the sizes of the plan, and its versions."""
    cases, cpu = [Case(rows, dim) for rows, dim in plan.sizes], torch.device("cpu")
    request = {
        "sizes": [(case.rows, case.dim, case.calls(cpu)) for case in cases],
        "kappa": cases[0].kappa,
        "quantities": QUANTITIES,
        "threads": threads,
        "effort": asdict(plan.effort),
    }
    script = Path(__file__).with_name("tfp.py")
    environment = os.environ | {"PYTHONPATH": str(script.parents[1] / "paper" / "src")}  # for `timing`
    done = subprocess.run(
        [python, script, json.dumps(request)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    answer = json.loads(done.stdout)
    rows = []
    for group in answer["groups"]:
        times = keyed(Case(group["rows"], group["dim"]), group["seconds"])
        rows += summary("sizes", group["quantity"], threads, times, TFP_FLOOR)
    return rows, answer["versions"]


def memory(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Measure the peak memory of every method beyond its inputs, as a multiple of its output."""
    for (rows, dim), shared, quantity in product(plan.memory, (False, True), QUANTITIES):
        case = Case(rows, dim, shared=shared)
        for name, call in methods(case, quantity, device).items():
            if name != "scipy_vmf":  # torch does not count NumPy's memory
                outputs = peak(call, device) / (4 * rows * dim)
                yield case.as_row() | {"quantity": quantity, "method": name, "outputs": outputs}


def run(plan: Plan, device: torch.device, counts: Sequence[int]) -> Iterator[Row]:
    """Measure with each number of threads in `counts`, and yield the results."""
    for threads in counts:
        torch.set_num_threads(threads)
        # The sweeps over κ and d show the shapes of curves, for which one number of threads is enough.
        groups = plan.groups(cuda=device.type == "cuda", sweeps=threads == counts[0])
        for (section, cases), quantity in product(groups, QUANTITIES):
            print(f"threads: {threads}, {section}, {cases[0]}, {quantity}", flush=True)
            times = timed(plan, section, cases, quantity, device)
            yield from summary(section, quantity, threads, times, FLOOR)
        if device.type == "cuda":
            yield from summary("graph", FORWARD, threads, graphs(plan), FLOOR)


def main(argv: list[str] | None = None) -> None:
    """Measure, print the tables, and write `sampling.json` and `sampling.png`."""
    option = {"metavar": "PYTHON", "help": "a Python interpreter with TensorFlow Probability"}
    command = Command("sampling", __doc__, argv, {"--tfp": option})
    device, python, counts = command.device, command.arguments.tfp, command.thread_counts()
    if python and (device.type != "cpu" or not hasattr(os, "sched_setaffinity")):
        command.error("TensorFlow Probability is measured on the CPU, under Linux: leave --tfp out")
    if python:
        subprocess.run([python, "-c", "import tensorflow_probability.substrates.jax"], check=True)
    plan = QUICK if command.quick else PLANS[device.type]
    torch.manual_seed(0)
    rows = list(run(plan, device, counts))
    notes, elsewhere = peers_left_out(), {}
    if python:
        for threads in counts:
            others, elsewhere = tfp(python, plan, threads)
            rows += others
    else:
        notes.append("TensorFlow Probability is left out: --tfp names its interpreter")
    content = {
        "configuration": asdict(plan) | {"threads": counts, "dtype": "float32"},
        "results": rows,
        "memory": list(memory(plan, device)),
    }
    drawn = figure(rows, hardware(device)["cpu" if device.type == "cpu" else "device"])
    shown = tables(rows, content["memory"])
    command.finish(content, shown, notes=notes, figure=drawn, elsewhere=elsewhere)


if __name__ == "__main__":
    main()
