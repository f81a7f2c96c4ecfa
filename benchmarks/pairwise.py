"""Time and memory of all pairs of distributions and points, beside the matrix product of their directions alone.

`q.log_prob_matrix(x)` is a matrix product and a function of each cosine. It is timed forward, and with the gradients in
the directions and in κ. The floor is `torch.mm` of the same matrices, whose backward pass is two further products. On
CUDA the times are the device's.

    python benchmarks/pairwise.py [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from _command import parsed, parser, show, write
from _timing import Call, Effort, keep_freed_memory, measure, queued_clock, wall_clock
from torch import Tensor

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.experiments.autoencoder.training_time import summarised
from powerspherical.experiments.efficiency import ratio

if TYPE_CHECKING:
    from rich.table import Table

SIZES = {"cpu": ((2048, 2048, 512),), "cuda": ((8192, 8192, 512), (2048, 2048, 512))}
QUICK_SIZES = ((64, 64, 8),)
EFFORT, QUICK_EFFORT = Effort(seconds=4.0, least=9, most=101), Effort(seconds=0.1, least=3, most=5)
FAMILIES = (PowerSpherical, VonMisesFisher, SphericalCauchy)
FLOOR = "mm"

Row = dict[str, Any]


def directions(rows: int, dim: int, device: torch.device) -> Tensor:
    """Return random unit vectors (rows, dim)."""
    return torch.nn.functional.normalize(torch.randn(rows, dim, device=device), dim=-1)


def calls(rows: int, columns: int, dim: int, device: torch.device) -> dict[tuple[str, str], Call]:
    """Return the matrices by name and pass, as functions without arguments."""
    loc, x = directions(rows, dim, device), directions(columns, dim, device)
    kappa = 50 + 100 * torch.rand(rows, device=device)
    grad = torch.full((rows, columns), 1 / columns, device=device)
    leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
    points = x.clone().requires_grad_()
    result: dict[tuple[str, str], Call] = {
        (FLOOR, "forward"): lambda: loc @ x.T,
        (FLOOR, "with backward"): lambda: torch.autograd.grad(
            leaves[0] @ points.T, (leaves[0], points), grad
        ),
    }
    for family in FAMILIES:
        q = family(loc, kappa, validate_args=False)

        def forward(q: Any = q) -> Tensor:
            return q.log_prob_matrix(x)

        def with_backward(family: Any = family) -> object:
            q = family(*leaves, validate_args=False)
            return torch.autograd.grad(q.log_prob_matrix(points), (*leaves, points), grad)

        result[family.__name__, "forward"] = forward
        result[family.__name__, "with backward"] = with_backward
    return result


def peak(call: Call, outputs: int, device: torch.device) -> float | None:
    """Return the peak of allocated CUDA memory during a call, in outputs of so many float32 numbers."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / (4 * outputs)


def timed(rows: int, columns: int, dim: int, device: torch.device, effort: Effort) -> Iterator[Row]:
    """Yield one result per matrix and pass, with the ratio to the matrix product."""
    methods = calls(rows, columns, dim, device)
    keep_freed_memory()
    clock = wall_clock if device.type == "cpu" else queued_clock(torch.cuda)
    seconds = measure(methods, effort, clock)
    for (name, which), times in seconds.items():
        milliseconds = summarised([1e3 * one for one in times])
        yield {
            "rows": rows,
            "columns": columns,
            "dim": dim,
            "matrix": name,
            "pass": which,
            "milliseconds": milliseconds["median"],
            "quartiles": milliseconds["quartiles"],
            "over_mm": ratio(times, seconds[FLOOR, which]),
            "peak_outputs": peak(methods[name, which], rows * columns, device),
            "rounds": len(times),
        }


def table(rows: list[Row]) -> "Table":
    """Return a table with one line per size and matrix, and one column per pass."""
    from rich.table import Table

    shown = Table(
        title="Milliseconds (times the matrix product; peak memory in outputs)", title_justify="left"
    )
    for heading in ("size", "matrix", "forward", "with backward"):
        shown.add_column(heading, justify="right")
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        memory = "" if row["peak_outputs"] is None else f"; {row['peak_outputs']:.2f}"
        cell = f"{row['milliseconds']:.2f} ({row['over_mm']:.2f}{memory})"
        size = f"{row['rows']} × {row['columns']} × {row['dim']}"
        lines.setdefault((size, row["matrix"]), []).append(cell)
    for setting, cells in lines.items():
        shown.add_row(*setting, *cells)
    return shown


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `pairwise.json`."""
    started = time.perf_counter()
    arguments, device = parsed(parser(str(__doc__).partition("\n")[0]), argv)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    sizes = QUICK_SIZES if arguments.quick else SIZES[device.type]
    effort = QUICK_EFFORT if arguments.quick else EFFORT
    rows = [row for size in sizes for row in timed(*size, device, effort)]
    configuration = {
        "dtype": "float32",
        "tf32": torch.get_float32_matmul_precision() != "highest",
        "threads": torch.get_num_threads(),
    }
    content = {"configuration": configuration, "results": rows}
    show([table(rows)], [], [write(arguments.out, "pairwise", device, argv, started, content)])


if __name__ == "__main__":
    main()
