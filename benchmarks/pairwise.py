"""Time and memory of all pairs of distributions and points, beside the matrix product of their directions alone.

`q.log_prob_matrix(x)` is a matrix product and a function of each cosine. It is timed forward, and with the gradients in
the directions and in κ. The floor is `torch.mm` of the same matrices, whose backward pass is two further products. On
CUDA the times are the device's.

    python benchmarks/pairwise.py [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
"""

from collections.abc import Iterator
from typing import Any

import torch
from _command import Command, Row, grouped, summary_in, table
from _memory import peak
from torch import Tensor

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical_paper.timing import Call, Effort, clock_on, measure, queued_clock, ratio

SIZES = {"cpu": ((2048, 2048, 512),), "cuda": ((8192, 8192, 512), (2048, 2048, 512))}
QUICK_SIZES = ((64, 64, 8),)
EFFORT = Effort(seconds=4.0, least=9, most=101)
FAMILIES = (PowerSpherical, VonMisesFisher, SphericalCauchy)
FLOOR = "mm"


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


def timed(rows: int, columns: int, dim: int, device: torch.device, effort: Effort) -> Iterator[Row]:
    """Yield one result per matrix and pass, with the ratio to the matrix product and, on CUDA, the peak memory."""
    methods = calls(rows, columns, dim, device)
    on_cuda = device.type == "cuda"
    seconds = measure(methods, effort, queued_clock if on_cuda else clock_on(device))
    for (name, which), times in seconds.items():
        yield {
            "rows": rows,
            "columns": columns,
            "dim": dim,
            "matrix": name,
            "pass": which,
            **summary_in("milliseconds", times),
            "over_mm": ratio(times, seconds[FLOOR, which]),
            "peak_outputs": peak(methods[name, which], device) / (4 * rows * columns) if on_cuda else None,
        }


def cell(row: Row) -> str:
    """Return the time of a result as text, with its ratio to the matrix product and its memory."""
    memory = "" if row["peak_outputs"] is None else f"; {row['peak_outputs']:.2f}"
    return f"{row['milliseconds']:.2f} ({row['over_mm']:.2f}{memory})"


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `pairwise.json`."""
    command = Command("pairwise", __doc__, argv)
    torch.manual_seed(0)
    sizes = QUICK_SIZES if command.quick else SIZES[command.device.type]
    effort = command.effort(EFFORT)
    rows = [row for size in sizes for row in timed(*size, command.device, effort)]
    configuration = {
        "dtype": "float32",
        "tf32": torch.get_float32_matmul_precision() != "highest",
        "threads": torch.get_num_threads(),
    }
    shown = table(
        "Milliseconds (times the matrix product; peak memory in outputs)",
        ("rows", "columns", "d", "matrix", "forward", "with backward"),
        grouped(rows, ("rows", "columns", "dim", "matrix"), cell),
        labels=4,
    )
    command.finish({"configuration": configuration, "results": rows}, [shown])


if __name__ == "__main__":
    main()
