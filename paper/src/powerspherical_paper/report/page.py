"""The report on the results in a folder: the paper's claims, what we found, and how the results were made.

The report is one HTML file with embedded figures. It needs no network access and no scripts.
"""

import base64
import json
import shlex
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from powerspherical_paper import claims
from powerspherical_paper.report.autoencoder import training_time, vae
from powerspherical_paper.report.findings import (
    Document,
    Figure,
    Finding,
    efficiency,
    figure1,
    properties,
    stability,
)
from powerspherical_paper.results import write_text

NAME = "report.html"
TEMPLATE = "page.html.jinja"


class ReportError(Exception):
    """A result cannot be reported. The message names the file and what to do."""


class Topic(NamedTuple):
    """One section of the report: its title, the experiment that makes its results, and what describes them."""

    title: str
    experiment: str
    describe: Callable[[Document, str], Finding]


#: By the stem of the result files. A file name may add an underscore and more, as in `efficiency_cuda.json`.
TOPICS = {
    "figure1": Topic("Draws and densities", "figure1", figure1),
    "properties": Topic("Closed forms", "properties", properties),
    "stability": Topic("Stability", "stability", stability),
    "efficiency": Topic("Sampling time", "efficiency", efficiency),
    "vae": Topic("Auto-encoders", "vae", vae),
    "training_time": Topic("Training time", "vae", training_time),
}


class Result(NamedTuple):
    """One result file: what it shows, whether the run was a quick one, and how it was made, by name."""

    path: Path
    finding: Finding
    quick: bool
    made: dict[str, str]

    @property
    def pictures(self) -> list[tuple[Figure, str]]:
        """The figures found beside the file, and their images as data URLs."""
        paths = [(figure, self.path.with_name(f"{figure.name}.png")) for figure in self.finding.figures]
        return [
            (figure, f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}")
            for figure, path in paths
            if path.exists()
        ]


class Section(NamedTuple):
    """A topic and its results in the folder, possibly none."""

    name: str
    topic: Topic
    claim: claims.Claim
    runs: list[Result]


def has_results(folder: Path) -> bool:
    """Whether the folder has results to report."""
    return any(_result_files(folder, name) for name in TOPICS)


def _result_files(folder: Path, name: str) -> list[Path]:
    """The result files of a topic: that of the CPU first, then those of other devices."""
    paths = (folder / f"{name}.json", *sorted(folder.glob(f"{name}_*.json")))
    return [path for path in paths if path.exists()]


def write_report(folder: Path) -> Path:
    """Write `report.html` on the results in the folder, and return its path."""
    if not has_results(folder):
        again = f"powerspherical reproduce all --out {shlex.quote(str(folder))}"
        raise ReportError(f"there are no results in {folder}; make some with: {again}")
    sections = [
        Section(name, topic, claims.CLAIMS[name], [read(path) for path in _result_files(folder, name)])
        for name, topic in TOPICS.items()
    ]
    return write_text(folder / NAME, render(sections))


def read(path: Path) -> Result:
    """Read a result file of one of the `TOPICS`.

    Raises:
        ReportError: the file is damaged.
    """
    topic = next(topic for name, topic in TOPICS.items() if f"{path.stem}_".startswith(f"{name}_"))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        created = datetime.fromisoformat(document["created"]).astimezone(timezone.utc)
        software = (f"{name} {version}" for name, version in document["versions"].items() if version)
        made = {
            "command": document["command"],
            "made": f"{created:%Y-%m-%d %H:%M} UTC, in {duration(document['seconds'])}",
            "machine": machine(document["hardware"]),
            "software": ", ".join(software),
        }
        for name, value in document["configuration"].items():
            made[name.replace("_", " ")] = json.dumps(value, ensure_ascii=False).replace('"', "")
        quick = "--quick" in document["command"].split()
        return Result(path, topic.describe(document, path.stem), quick, made)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A field is missing or has the wrong type, or the text is not UTF-8 or not JSON (both are ValueErrors).
        again = f"powerspherical reproduce {topic.experiment} --force --out {shlex.quote(str(path.parent))}"
        raise ReportError(
            f"{path} is damaged ({type(error).__name__}: {error}); make it again with: {again}"
        ) from error


def machine(hardware: dict[str, Any]) -> str:
    """The device if it is not the CPU, and the CPU with its cores and the threads of torch."""
    processor = "{cpu}, {cores} cores ({torch_threads} used)".format(**hardware)
    return processor if hardware["device"] == "cpu" else f"{hardware['device']}; {processor}"


def duration(seconds: float) -> str:
    """A time in words, such as `7 min 25 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def render(sections: list[Section]) -> str:
    """The report as HTML."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("powerspherical_paper.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(sections=sections, claims=claims)
