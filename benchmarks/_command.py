"""Shared by the scripts of this folder: command-line options, tables, and the JSON file with the results."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from powerspherical._files.drafts import atomic_write
from powerspherical._selfcheck.environment import PACKAGES, hardware, versions
from powerspherical_paper.baselines.published import REFERENCE, has_reference
from powerspherical_paper.results import name_on, write_text
from powerspherical_paper.timing import Effort, keep_freed_memory, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]

NO_REFERENCE = (
    "the authors' package is left out, as it is not installed: pip install --no-deps power-spherical"
)
UNITS = {"milliseconds": 1e3, "microseconds": 1e6}  # per second


def peers_left_out() -> list[str]:
    """Return a note if the authors' package is not installed."""
    return [] if has_reference() else [NO_REFERENCE]


class Command:
    """One run of a script.

    Args:
        name: the name of the script, and of the JSON file that it writes. Set `name` to give the file another one.
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
        self.script = self.name = name
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
        self.out.mkdir(parents=True, exist_ok=True)
        if self.threads:
            torch.set_num_threads(self.threads)
        keep_freed_memory()

    def effort(self, full: Effort) -> Effort:
        """Return how long to measure: as little as possible for `--quick`."""
        return Effort(seconds=0, least=2, most=2) if self.quick else full

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
        figure: "Figure | None" = None,
        elsewhere: dict[str, str] | None = None,
    ) -> None:
        """Write the JSON file and the figure, and print the tables, the notes and the paths of the files.

        `content` becomes part of the file. `elsewhere` holds versions of packages in other environments.
        """
        document = {
            "benchmark": self.name,
            "command": f"python benchmarks/{self.script}.py {shlex.join(self.argv)}".strip(),
            **content,
            "notes": list(notes),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - self.started, 3),
            "versions": versions([*PACKAGES, REFERENCE]) | (elsewhere or {}),
            "hardware": hardware(self.device),
        }
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        path = self.out / f"{name_on(self.device, self.name)}.json"
        files = [write_text(path, text + "\n")]
        if figure is not None:
            files.append(path.with_suffix(".png"))
            with atomic_write(files[-1]) as draft:
                figure.savefig(draft, format="png", dpi=150)
        console = Console()
        for shown in tables:
            console.print(shown)
        for line in (*notes, *(f"written: {each}" for each in files)):
            console.print(line, soft_wrap=True)


def summary_in(unit: str, seconds: list[float]) -> Row:
    """Return the median and the quartiles of the times, in `UNITS`, and the number of rounds."""
    found = summary([UNITS[unit] * one for one in seconds])
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
