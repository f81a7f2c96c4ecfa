"""Shared by the commands of this folder: command-line options, and the JSON file with the results."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _timing import Clock, event_clock, keep_freed_memory, wall_clock

from powerspherical.experiments.baselines.published import REFERENCE
from powerspherical.experiments.results import PACKAGES, hardware, name_on, versions, write_text

if TYPE_CHECKING:
    from rich.table import Table

NO_REFERENCE = (
    "the authors' package is left out, as it is not installed: pip install --no-deps power-spherical"
)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all commands share."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    result.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: one, and then all")
    result.add_argument("--quick", action="store_true", help="small and short, to check that it runs")
    result.add_argument("--out", type=Path, default=Path("bench"), metavar="DIR", help="default: bench")
    return result


def parsed(
    options: argparse.ArgumentParser, argv: list[str] | None
) -> tuple[argparse.Namespace, torch.device]:
    """Parse and check the arguments. Return them and the device."""
    arguments = options.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        options.error("torch sees no CUDA device here: use --device cpu")
    if arguments.threads is not None and arguments.threads < 1:
        options.error(f"--threads must be 1 or more, not {arguments.threads}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        options.error(f"cannot write to --out {arguments.out}: {error.strerror}")
    return arguments, torch.device(arguments.device)


def thread_counts(wanted: int | None, device: torch.device) -> list[int]:
    """Return the numbers of threads to measure with. On CUDA there is only one, because it makes no difference."""
    if wanted is not None:
        return [wanted]
    every = torch.get_num_threads()
    return sorted({1, every}) if device.type == "cpu" else [every]


def clock_on(device: torch.device) -> Clock:
    """Prepare the process for timing, and return the clock for the device."""
    keep_freed_memory()
    return wall_clock if device.type == "cpu" else event_clock(torch.cuda)


def write(
    folder: Path,
    benchmark: str,
    device: torch.device,
    argv: list[str] | None,
    started: float,
    content: dict[str, Any],
    others: dict[str, str] | None = None,
) -> Path:
    """Write the JSON file of a benchmark that began at `started`. `others` are versions from other environments."""
    options = shlex.join(sys.argv[1:] if argv is None else argv)
    document = {
        "benchmark": benchmark,
        "command": f"python benchmarks/{benchmark}.py {options}".strip(),
        **content,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 3),
        "versions": versions([*PACKAGES, REFERENCE]) | (others or {}),
        "hardware": hardware(device),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return write_text(folder / f"{name_on(device, benchmark)}.json", text + "\n")


def show(tables: Iterable["Table"], notes: Sequence[str], files: Sequence[Path]) -> None:
    """Print the tables and the paths of the files that were written."""
    from rich.console import Console

    console = Console()
    for table in tables:
        console.print(table)
    for line in (*notes, *(f"written: {path}" for path in files)):
        console.print(line, soft_wrap=True)
