"""How experiments write their results.

Each result is one JSON file that records how it was made: experiment, command, configuration, seed, versions and
hardware. Files are written next to their destination and then moved there, so they are never left half-written.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from powerspherical._files.drafts import atomic_write
from powerspherical._selfcheck.environment import hardware, versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 120
"""Dots per inch of the figures. The report shows one dot per CSS pixel where there is room."""

Progress = Callable[[float], None]
"""Called with the completed fraction of the work, from 0 to 1."""


def silent(fraction: float) -> None:
    """A progress callback that shows nothing."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """The callback of one part of the work, which spans the fractions from `start` to `end` of the whole."""
    return lambda fraction: progress(start + (end - start) * fraction)


@dataclass(frozen=True)
class Task:
    """One run of an experiment: the settings that every experiment has, and where its files go.

    Attributes:
        experiment: the name that `powerspherical reproduce` uses.
        out: the folder for the files.
        seed: the seed of all random draws.
        quick: whether to run a smaller experiment.
        device: where to compute.
        options: the options that only this experiment has and that change its results, by name.
        progress: called with the completed fraction.
    """

    experiment: str
    out: Path
    seed: int = 0
    quick: bool = False
    device: torch.device | str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)
    progress: Progress = silent
    started: float = field(default_factory=time.perf_counter, init=False)

    @property
    def command(self) -> str:
        """The command that does this task. It is recorded with the results."""
        options = "".join(f" --{name} {value}" for name, value in self.options.items())
        options += " --quick" * self.quick + f" --device {self.device}" * (str(self.device) != "cpu")
        return f"powerspherical reproduce {self.experiment} --seed {self.seed}{options}"

    def path(self, file: str) -> Path:
        """The path of a result. Unless the device is the CPU, its type is appended, as in `efficiency_cuda.json`."""
        path = self.out / file
        return path.with_stem(name_on(self.device, path.stem))

    def write(
        self, name: str, configuration: dict[str, Any], results: dict[str, Any] | list[dict[str, Any]]
    ) -> Path:
        """Write `NAME.json` and return its path. NaN and infinity in the results raise `ValueError`."""
        document = {
            "experiment": self.experiment,
            "command": self.command,
            "seed": self.seed,
            "configuration": configuration,
            "results": results,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - self.started, 3),
            "versions": versions(),
            "hardware": hardware(self.device),
        }
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        return write_text(self.path(f"{name}.json"), text + "\n")

    def draw(self, name: str, figure: "Figure") -> Path:
        """Write a figure as `NAME.png` and return its path."""
        path = self.path(f"{name}.png")
        with atomic_write(path) as draft:
            figure.savefig(draft, format="png", dpi=DPI)
        return path


@dataclass(frozen=True)
class Outcome:
    """The files that an experiment wrote, and whether all of its checks passed."""

    files: list[Path]
    passed: bool = True


def name_on(device: torch.device | str, name: str) -> str:
    """The name of a result with its device type appended, as in `efficiency_cuda`; unchanged for the CPU."""
    kind = torch.device(device).type
    return name if kind == "cpu" else f"{name}_{kind}"


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
