"""What an experiment hands back, and how its results are written.

A result is one JSON file that says how it was made: the experiment and the command, its configuration and
seed, the versions and the hardware. Files appear whole or not at all: they are written beside their place and
then moved there.
"""

import json
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import powerspherical
from powerspherical._files.drafts import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PACKAGES = ("powerspherical", "torch", "numpy", "scipy", "matplotlib")
"""The distributions whose versions every result records."""

MADE_BY = "powerspherical reproduce"
"""The mark of a figure or a text, by which the command knows its own files."""

Progress = Callable[[float], None]
"""Called with the fraction of the work that is done, from 0 to 1."""


def silent(fraction: float) -> None:
    """The progress callback that shows nothing."""


@dataclass(frozen=True)
class Outcome:
    """What an experiment made.

    Attributes:
        files: the files it wrote.
        passed: whether everything it checks held.
        summary: one line for a person.
        table: what to show on a terminal besides, if anything.
    """

    files: list[Path]
    passed: bool = True
    summary: str = ""
    table: "Table | None" = field(default=None, compare=False)


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
    """Write one result with all that is needed to make it again, and return its path.

    `options` are those of the command that only this experiment has, with a space before each. `amend` turns the
    document into the one that is written, for instance to join it with an earlier one.
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
    """The name of a result, with the type of its device unless that is the CPU."""
    kind = torch.device(device).type
    return name if kind == "cpu" else f"{name}_{kind}"


def write_text(path: Path, text: str) -> Path:
    """Write a text file in one step."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def write_figure(folder: Path, name: str, figure: "Figure", *, dpi: int = 300) -> list[Path]:
    """Write a figure as PNG and SVG, without dates or random identifiers: the same figure, the same bytes."""
    import matplotlib

    paths = []
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for suffix, metadata in (
            ("png", {"Software": MADE_BY}),
            ("svg", {"Creator": MADE_BY, "Date": None}),
        ):
            path = folder / f"{name}.{suffix}"
            with atomic_write(path) as draft:
                figure.savefig(draft, format=suffix, dpi=dpi, metadata=metadata)
            paths.append(path)
    return paths


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """The versions of Python and of the packages; `None` for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["torch"] = str(torch.__version__)  # with its build, which the metadata may leave out
    if "powerspherical" in found:
        found["powerspherical"] = powerspherical.__version__  # also where it is not installed
    return found


def hardware(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The machine, and the device the experiment ran on."""
    device = torch.device(device)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def cpu_model() -> str:
    """The processor's own name, where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"
