"""Shared by the scripts of this folder: command-line options, tables, and the JSON file with the results."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from _timing import Clock, event_clock, keep_freed_memory, wall_clock
from rich.console import Console
from rich.table import Table

from powerspherical._selfcheck.environment import PACKAGES, hardware, versions
from powerspherical_paper.autoencoder.training_time import summarised
from powerspherical_paper.baselines.published import REFERENCE
from powerspherical_paper.results import name_on, write_text

Row = dict[str, Any]

NO_REFERENCE = (
    "the authors' package is left out, as it is not installed: pip install --no-deps power-spherical"
)
UNITS = {"milliseconds": 1e3, "microseconds": 1e6}  # per second


class Command:
    """One run of a script.

    Args:
        name: the name of the script, and of the JSON file that it writes.
        documentation: the script's docstring. Its first line describes the command.
        argv: the arguments; `None` for those of the process.
        options: further options: their names, and the arguments of `ArgumentParser.add_argument`.
        cpu_only: whether to refuse `--device cuda`.
    """

    def __init__(
        self,
        name: str,
        documentation: str | None,
        argv: list[str] | None,
        options: dict[str, dict[str, Any]] | None = None,
        *,
        cpu_only: bool = False,
    ) -> None:
        self.started = time.perf_counter()
        self.name = name
        self.argv = sys.argv[1:] if argv is None else argv
        parser = argparse.ArgumentParser(description=str(documentation).partition("\n")[0])
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        parser.add_argument(
            "--threads", type=int, metavar="N", help="CPU threads; default: one, and then all"
        )
        parser.add_argument("--quick", action="store_true", help="small and short, to check that it runs")
        parser.add_argument("--out", type=Path, default=Path("bench"), metavar="DIR", help="default: bench")
        for option, settings in (options or {}).items():
            parser.add_argument(option, **settings)
        self.error = parser.error
        self.arguments = parser.parse_args(self.argv)
        self.out, self.quick, self.threads = self.arguments.out, self.arguments.quick, self.arguments.threads
        self.device = torch.device(self.arguments.device)
        if self.device.type == "cuda" and cpu_only:
            self.error("this runs on the CPU")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            self.error("torch sees no CUDA device here: use --device cpu")
        if self.threads is not None and self.threads < 1:
            self.error(f"--threads must be 1 or more, not {self.threads}")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.error(f"cannot write to --out {self.out}: {error.strerror}")
        if self.threads:
            torch.set_num_threads(self.threads)

    def thread_counts(self) -> list[int]:
        """Return the numbers of threads to measure with: on CUDA a single one, because it makes no difference."""
        every = torch.get_num_threads()
        return [every] if self.threads or self.device.type == "cuda" else sorted({1, every})

    def finish(
        self,
        content: dict[str, Any],
        tables: Iterable[Table] = (),
        *,
        notes: Sequence[str] = (),
        files: Sequence[Path] = (),
        elsewhere: dict[str, str] | None = None,
    ) -> None:
        """Write the JSON file, and print the tables, the notes and the paths of all files.

        `files` were written before. `elsewhere` holds versions of packages in other environments.
        """
        document = {
            "benchmark": self.name,
            "command": f"python benchmarks/{self.name}.py {shlex.join(self.argv)}".strip(),
            **content,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - self.started, 3),
            "versions": versions([*PACKAGES, REFERENCE]) | (elsewhere or {}),
            "hardware": hardware(self.device),
        }
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        path = write_text(self.out / f"{name_on(self.device, self.name)}.json", text + "\n")
        console = Console()
        for shown in tables:
            console.print(shown)
        for line in (*notes, *(f"written: {each}" for each in (path, *files))):
            console.print(line, soft_wrap=True)


def clock_on(device: torch.device) -> Clock:
    """Prepare the process for timing, and return the clock for the device."""
    keep_freed_memory()
    return wall_clock if device.type == "cpu" else event_clock(torch.cuda)


def summary_in(unit: str, seconds: list[float]) -> Row:
    """Return the median and the quartiles of the times, in `UNITS`, and the number of rounds."""
    found = summarised([UNITS[unit] * one for one in seconds])
    return {unit: found["median"], "quartiles": found["quartiles"], "rounds": len(seconds)}


def table(title: str, headings: Iterable[str], lines: Iterable[Iterable[object]], labels: int = 1) -> Table:
    """Return a table for the terminal. Its first `labels` columns are left-justified."""
    shown = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if index < labels else "right")
    for line in lines:
        shown.add_row(*map(str, line))
    return shown


def grouped(rows: Iterable[Row], keys: Sequence[str], cell: Callable[[Row], str]) -> list[list[object]]:
    """Return one line per setting: the values of the `keys`, then the cells of the rows that share them."""
    lines: dict[tuple[object, ...], list[str]] = {}
    for row in rows:
        lines.setdefault(tuple(row[key] for key in keys), []).append(cell(row))
    return [[*setting, *cells] for setting, cells in lines.items()]
