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

MADE_BY = "powerspherical reproduce"
"""Written into figures and text files, so that the command recognises its own output."""

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
    amend: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
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
        amend: maps the document to the one that is written, for instance to merge it with an earlier one.
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
    if amend is not None:
        document = amend(document)
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


def write_figure(folder: Path, name: str, figure: "Figure", *, dpi: int = 300) -> list[Path]:
    """Write a figure as PNG and SVG and return both paths.

    The files contain no dates or random identifiers, so the same figure gives the same bytes.
    """
    import matplotlib

    metadata = {"png": {"Software": MADE_BY}, "svg": {"Creator": MADE_BY, "Date": None}}
    paths = [folder / f"{name}.{suffix}" for suffix in metadata]
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for path, (suffix, entries) in zip(paths, metadata.items(), strict=True):
            with atomic_write(path) as draft:
                figure.savefig(draft, format=suffix, dpi=dpi, metadata=entries)
    return paths
