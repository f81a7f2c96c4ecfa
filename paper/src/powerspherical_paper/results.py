"""How experiments write their results.

Each result is one JSON file that records how it was made: experiment, command, configuration, seed, versions and
hardware. Files are written next to their destination and then moved there, so they are never left half-written.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from powerspherical._files.drafts import atomic_write
from powerspherical._selfcheck.environment import hardware, versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
"""Dots per inch of the figures. The report shows one dot per CSS pixel where there is room."""

Progress = Callable[[float], None]
"""Called with the completed fraction of the work, from 0 to 1."""


def silent(fraction: float) -> None:
    """A progress callback that shows nothing."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """The callback of one part of the work, which spans the fractions from `start` to `end` of the whole."""
    return lambda fraction: progress(start + (end - start) * fraction)


@dataclass(frozen=True)
class Outcome:
    """The files that an experiment wrote, and whether all of its checks passed."""

    files: list[Path]
    passed: bool = True


def write_json(
    path: Path,
    *,
    experiment: str,
    seed: int,
    quick: bool = False,
    device: torch.device | str = "cpu",
    options: str = "",
    configuration: dict[str, Any],
    results: dict[str, Any] | list[dict[str, Any]],
    seconds: float,
) -> Path:
    """Write one result with everything needed to reproduce it, and return its path.

    Args:
        path: the file to write.
        experiment: the name that `powerspherical reproduce` uses.
        seed: the seed of the run.
        quick: whether the run used `--quick`.
        device: the device of the run.
        options: further command-line options of the run, each with a leading space.
        configuration: the settings of the run.
        results: what it found. NaN and infinity raise `ValueError`.
        seconds: how long it took.
    """
    options += " --quick" * quick + f" --device {device}" * (str(device) != "cpu")
    document = {
        "experiment": experiment,
        "command": f"powerspherical reproduce {experiment} --seed {seed}{options}",
        "seed": seed,
        "configuration": configuration,
        "results": results,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": versions(),
        "hardware": hardware(device),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def name_on(device: torch.device | str, name: str) -> str:
    """The name of a result with its device type appended, as in `efficiency_cuda`; unchanged for the CPU."""
    kind = torch.device(device).type
    return name if kind == "cpu" else f"{name}_{kind}"


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def write_figure(folder: Path, name: str, figure: "Figure") -> Path:
    """Write a figure as PNG and return its path."""
    path = folder / f"{name}.png"
    with atomic_write(path) as draft:
        figure.savefig(draft, format="png", dpi=DPI)
    return path
