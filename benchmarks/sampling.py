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
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeVar

import torch
from _command import NO_REFERENCE, Command, Row, clock_on, summary_in
from _memory import peak
from _methods import BACKWARD, FLOOR, FORWARD, WAITING, Case, floors, methods
from _shown import counted, figure, size, tables
from _targets import compared
from _timing import Call, Clock, Effort, captured, measure, queued_clock

from powerspherical._selfcheck.environment import hardware
from powerspherical_paper.baselines.published import has_reference
from powerspherical_paper.efficiency import ratio
from powerspherical_paper.results import name_on, write_figure

Value = TypeVar("Value")
Times = dict[tuple[Case, str], list[float]]  # (case, method) -> seconds of each round

QUANTITIES = (FORWARD, BACKWARD)
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

    def effort_for(self, section: str) -> Effort:
        """Return the effort for a section: more rounds if differences of a few percent matter."""
        many = section == "concentrations"
        return replace(self.effort, least=3 * self.effort.least) if many else self.effort

    def groups(self, *, sweeps: bool) -> Iterator[tuple[str, list[Case]]]:
        """Yield the section of the results and the cases that are measured together."""
        for shared in (False, True):
            for rows, dim in self.sizes:
                yield "sizes", [Case(rows, dim, shared=shared)]
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
    sizes=((100, 64), (1000, 3), (10_000, 64)),
    concentrations=(1.0, 1e2, 1e5),
    dims=(8, 64, 512),
    sweep=640_000,
    memory=((10_000, 64),),
    effort=Effort(seconds=0.2, least=3, most=51),
)


def timed(
    plan: Plan, device: torch.device, clock: Clock, threads: int, *, sweeps: bool
) -> Iterator[list[Row]]:
    """Measure every group and yield its results."""
    for section, cases in plan.groups(sweeps=sweeps):
        for quantity in QUANTITIES:
            # The floor depends only on the numbers per draw, which all cases of a group share.
            calls = keyed(cases[0], floors(cases[0], device))
            for case in cases:
                calls |= keyed(case, methods(case, quantity, device))
            times = measure(calls, plan.effort_for(section), clock, cases[0].calls(device))
            yield summary(section, quantity, threads, times, FLOOR)


def singles(plan: Plan, device: torch.device, clock: Clock, threads: int) -> Iterator[list[Row]]:
    """Measure single calls, one per method and turn.

    In a turn of many calls caches are warm and, on CUDA, the host runs ahead. Both situations occur in practice.
    """
    for rows, dim in plan.sizes:
        if rows * dim <= SINGLE_UP_TO:
            case = Case(rows, dim)
            for quantity in QUANTITIES:
                calls = keyed(case, floors(case, device) | methods(case, quantity, device))
                yield summary("singles", quantity, threads, measure(calls, plan.effort, clock), FLOOR)


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


def graphs(plan: Plan, clock: Clock, threads: int) -> Iterator[list[Row]]:
    """Measure draws in a CUDA graph of many, which has no launch overhead."""
    device, case = torch.device("cuda"), GRAPH_CASE
    calls = asynchronous(case, FORWARD, device)
    replays = {name: captured(call, GRAPH_DRAWS, torch.cuda) for name, call in calls.items()}
    replayed = measure(keyed(case, replays), plan.effort, clock, case.calls(device))
    times = {key: [one / GRAPH_DRAWS for one in seconds] for key, seconds in replayed.items()}
    yield summary("graph", FORWARD, threads, times, FLOOR)


def asynchronous(case: Case, quantity: str, device: torch.device) -> dict[str, Call]:
    """Return the floors and the methods that do not synchronise with the device."""
    calls = floors(case, device) | methods(case, quantity, device)
    return {name: call for name, call in calls.items() if name not in WAITING}


def queued(plan: Plan, threads: int) -> Iterator[list[Row]]:
    """Measure the device time of large draws, with the host running ahead."""
    device = torch.device("cuda")
    for section, (case, *_) in plan.groups(sweeps=False):
        if section == "sizes" and case.rows * case.dim >= QUEUED_FROM:
            for quantity in QUANTITIES:
                calls = keyed(case, asynchronous(case, quantity, device))
                times = measure(calls, plan.effort, queued_clock(torch.cuda), case.calls(device))
                yield summary("queued", quantity, threads, times, FLOOR)


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
    done = subprocess.run(
        [python, script, json.dumps(request)], stdout=subprocess.PIPE, text=True, check=True
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


def run(
    plan: Plan, device: torch.device, counts: Sequence[int], python: str | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure with each number of threads in `counts`. Return the results, and versions from other environments."""
    clock = clock_on(device)
    rows: list[Row] = []
    elsewhere: dict[str, str] = {}
    for threads in counts:
        torch.set_num_threads(threads)
        # The sweeps over κ and d show the shapes of curves, for which one number of threads is enough.
        sweeps = threads == counts[0]
        groups = [timed(plan, device, clock, threads, sweeps=sweeps), singles(plan, device, clock, threads)]
        if device.type == "cuda":
            groups += [queued(plan, threads), graphs(plan, clock, threads)]
        for group in chain.from_iterable(groups):
            rows += group
            print(said(group), flush=True)
        if python:
            print("TensorFlow Probability, in its own environment", flush=True)
            others, elsewhere = tfp(python, plan, threads)
            rows += others
    notes = [] if has_reference() else [NO_REFERENCE]
    notes += [] if python else ["TensorFlow Probability is left out: --tfp names its interpreter"]
    content = {
        "configuration": asdict(plan) | {"threads": list(counts), "dtype": "float32"},
        "targets": compared(rows, device.type),
        "results": rows,
        "memory": list(memory(plan, device)),
        "notes": notes,
    }
    return content, elsewhere


def said(group: list[Row]) -> str:
    """Return a one-line summary of a measured group."""
    first, ours = group[0], [row["ratio"] for row in group if row["method"] == "our_ps"]
    return (
        f"{counted(first['threads'])}, {first['section']}, {size(first)}, μ {first['loc']}, "
        f"{first['quantity']}: PS {', '.join(f'{one:.2f}' for one in ours)} × randn"
    )


def require_tfp(command: Command, python: str) -> None:
    """Exit with an error message if the interpreter given by `--tfp` cannot be used."""
    if command.device.type != "cpu" or not hasattr(os, "sched_setaffinity"):
        command.error("TensorFlow Probability is measured on the CPU, under Linux: leave --tfp out")
    try:
        importing = [python, "-c", "import tensorflow_probability.substrates.jax"]
        subprocess.run(importing, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        command.error(
            f"{python} has no TensorFlow Probability on JAX: benchmarks/README.md says what to install"
        )


def main(argv: list[str] | None = None) -> None:
    """Measure, print the tables, and write `sampling.json` and `sampling.png`."""
    tfp = {"metavar": "PYTHON", "help": "a Python interpreter with TensorFlow Probability"}
    command = Command("sampling", __doc__, argv, {"--tfp": tfp})
    device, python = command.device, command.arguments.tfp
    if python:
        require_tfp(command, python)
    plan = QUICK if command.quick else PLANS[device.type]
    torch.manual_seed(0)
    content, elsewhere = run(plan, device, command.thread_counts(), python)
    machine = hardware(device)["cpu" if device.type == "cpu" else "device"]
    files = [write_figure(command.out, name_on(device, "sampling"), figure(content["results"], machine))]
    command.finish(content, tables(content), notes=content["notes"], files=files, elsewhere=elsewhere)


if __name__ == "__main__":
    main()
