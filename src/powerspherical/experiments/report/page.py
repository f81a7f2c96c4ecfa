"""One page over the results in a folder: what the paper says, what was found, and how it was made.

The page is a single HTML file that needs nothing else, neither a network nor a script: the figures are in it.
"""

import base64
import io
import json
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from powerspherical.experiments import paper
from powerspherical.experiments.report.autoencoder import training_time, vae
from powerspherical.experiments.report.findings import (
    Document,
    Figure,
    Finding,
    Table,
    efficiency,
    figure1,
    properties,
    stability,
)
from powerspherical.experiments.results import write_text

if TYPE_CHECKING:
    from PIL.Image import Image as PngImage

NAME = "report.html"
TEMPLATE = "page.html.jinja"
WIDTH = 1400  # pixels of an embedded figure: sharp also where a screen has two dots a pixel
# CSS pixels for an inch of a figure: where there is room, and at least. With less, its smallest letters (8.5 points)
# could not be read; a narrower screen shows a part of the figure, and scrolls.
ENLARGED, LEGIBLE = 115, 85
LISTED = 6  # the longest list of settings that is shown whole


class ReportError(Exception):
    """A result that cannot be reported; the message names the file and the way out."""


class Topic(NamedTuple):
    """One experiment: its title, the command that makes it, and what makes sense of its result files.

    `scales` is whether `--quick` makes it smaller.
    """

    title: str
    command: str
    understand: Callable[[Document, str], Finding]
    scales: bool = True


#: By the stem of their result files, which may go on after an underscore, as in `efficiency_cuda.json`.
TOPICS = {
    "figure1": Topic("Draws and densities", "powerspherical reproduce figure1", figure1, scales=False),
    "properties": Topic("Closed forms", "powerspherical reproduce properties", properties),
    "stability": Topic("Stability", "powerspherical reproduce stability", stability),
    "efficiency": Topic("Sampling time", "powerspherical reproduce efficiency", efficiency),
    "vae": Topic("Auto-encoders", "powerspherical reproduce vae", vae),
    "training_time": Topic("Training time", "powerspherical reproduce vae", training_time),
}


class Picture(NamedTuple):
    """A figure and its image as a data URL, with its size on the page where a PNG tells it."""

    figure: Figure
    source: str
    size: tuple[int, int] | None

    @property
    def least(self) -> int | None:
        """The width below which its letters could not be read."""
        return None if self.size is None else round(self.size[0] * LEGIBLE / ENLARGED)


class Run(NamedTuple):
    """One result file: what it says, and how it was made."""

    name: str
    finding: Finding
    command: str
    quick: bool
    made: str
    took: str
    hardware: dict[str, Any]
    versions: str
    configuration: list[tuple[str, str]]
    pictures: list[Picture]

    @property
    def machine(self) -> str:
        """The processor with its cores, and how many torch used; before it the device, if that is another."""
        processor = "{cpu}, {cores} cores ({torch_threads} used)".format(**self.hardware)
        device = self.hardware["device"]
        return processor if device == "cpu" else f"{device}; {processor}"

    def made_on(self, part: Figure | Table) -> str:
        """What computed a figure or a table: the device of the run, or its processor."""
        device = self.hardware["device"]
        return str(self.hardware["cpu"] if part.on_cpu or device == "cpu" else device)


class Section(NamedTuple):
    """A topic and its runs; none where the folder holds no result of it."""

    name: str
    topic: Topic
    claim: paper.Claim
    runs: list[Run]


def write_report(folder: Path) -> Path:
    """Write `report.html` over the results that lie in the folder, beside them."""
    sections = [
        Section(name, topic, paper.CLAIMS[name], [read(path, topic) for path in _found(folder, name)])
        for name, topic in TOPICS.items()
    ]
    if not any(section.runs for section in sections):
        again = f"powerspherical reproduce all --out {shlex.quote(str(folder))}"
        raise ReportError(f"no results in {folder}; make some with: {again}")
    return write_text(folder / NAME, render(sections))


def _found(folder: Path, name: str) -> list[Path]:
    """The result files of a topic: the plain one first, then its variants."""
    return [
        path for path in (folder / f"{name}.json", *sorted(folder.glob(f"{name}_*.json"))) if path.exists()
    ]


def read(path: Path, topic: Topic) -> Run:
    """A result file, with its figures where they lie beside it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        finding = topic.understand(document, path.stem)
        return Run(
            name=path.stem,
            finding=finding,
            command=document["command"],
            quick=topic.scales and "--quick" in document["command"].split(),
            made=f"{datetime.fromisoformat(document['created']).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
            took=duration(document["seconds"]),
            hardware=document["hardware"],
            versions=", ".join(
                f"{name} {version}" for name, version in document["versions"].items() if version
            ),
            configuration=list(settings(document["configuration"])),
            pictures=[
                picture for figure in finding.figures if (picture := embed(path.parent, figure)) is not None
            ],
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Whatever is missing or of another kind in a damaged file; undecodable bytes are a ValueError, too.
        again = f"{topic.command} --out {shlex.quote(str(path.parent))}"
        raise ReportError(
            f"{path} is damaged ({type(error).__name__}: {error}); make it again with: {again}"
        ) from error


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def settings(configuration: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The settings as text: groups of plain values in one line, deeper ones under the names that lead to them."""
    for key, value in configuration.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict) and any(isinstance(one, dict | list) for one in value.values()):
            yield from settings(value, f"{name}: ")
        elif isinstance(value, dict):
            yield name, ", ".join(f"{one.replace('_', ' ')} {_plain(value[one])}" for one in value)
        elif isinstance(value, list):
            shown = [_plain(one) for one in value]
            if len(shown) > LISTED:
                shown = [*shown[:3], "…", f"{shown[-1]} ({len(value)} values)"]
            yield name, ", ".join(shown)
        else:
            yield name, _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:,g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def embed(folder: Path, figure: Figure) -> Picture | None:
    """The figure's PNG, made small, or its SVG, whichever is smaller; None if neither lies in the folder."""
    from PIL import Image

    png, svg = (folder / f"{figure.name}.{ending}" for ending in ("png", "svg"))
    images, size = {}, None
    if png.exists():
        try:
            with Image.open(png) as image:
                images["png"], size = small_png(image), shown_size(image)
        except OSError as error:
            raise ReportError(f"{png} is no PNG that can be read; remove it, or make it again") from error
    if svg.exists():
        images["svg+xml"] = svg.read_bytes()
    if not images:
        return None
    kind, data = min(images.items(), key=lambda item: len(item[1]))
    return Picture(figure, f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}", size)


def small_png(image: "PngImage") -> bytes:
    """A PNG of at most `WIDTH` pixels across, with a palette of 256 colours."""
    from PIL import Image

    plain = image.convert("RGB")
    if plain.width > WIDTH:
        plain = plain.resize((WIDTH, round(plain.height * WIDTH / plain.width)), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    plain.quantize(256, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
    return data.getvalue()


def shown_size(image: "PngImage") -> tuple[int, int] | None:
    """The figure's own size in CSS pixels, so that all figures have letters of one size; None if it tells none."""
    if "dpi" not in image.info:
        return None
    scale = ENLARGED / image.info["dpi"][0]
    return round(image.width * scale), round(image.height * scale)


def render(sections: list[Section]) -> str:
    """The page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    source = files("powerspherical.experiments.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    runs = [run for section in sections for run in section.runs]
    software: dict[str, list[str]] = {}
    for run in runs:
        software.setdefault(run.versions, []).append(run.name)
    return environment.from_string(source).render(
        sections=sections, runs=runs, software=software, paper=paper
    )
