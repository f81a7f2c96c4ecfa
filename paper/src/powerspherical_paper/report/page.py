"""The report on the results in a folder: the paper's claims, what we found, and how the results were made.

The report is one HTML file with embedded figures. It needs no network access and no scripts.
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

from powerspherical_paper import claims
from powerspherical_paper.report.autoencoder import training_time, vae
from powerspherical_paper.report.findings import (
    Document,
    Figure,
    Finding,
    Table,
    efficiency,
    figure1,
    properties,
    stability,
)
from powerspherical_paper.results import write_text

if TYPE_CHECKING:
    from PIL.Image import Image as PngImage

NAME = "report.html"
TEMPLATE = "page.html.jinja"
WIDTH = 1400  # pixels of an embedded figure; enough for screens with two dots per CSS pixel
# CSS pixels per inch of a figure: at most, and at least. Below the second, the smallest letters (8.5 points) are not
# legible; a narrower screen scrolls the figure instead.
ENLARGED, LEGIBLE = 115, 85
LISTED = 6  # longer lists of settings are abbreviated


class ReportError(Exception):
    """A result cannot be reported. The message names the file and what to do."""


class Topic(NamedTuple):
    """One section of the report: its title, the command that makes its results, and what describes them.

    `scales` tells whether `--quick` makes the experiment smaller.
    """

    title: str
    command: str
    describe: Callable[[Document, str], Finding]
    scales: bool = True


#: By the stem of the result files. A file name may add an underscore and more, as in `efficiency_cuda.json`.
TOPICS = {
    "figure1": Topic("Draws and densities", "powerspherical reproduce figure1", figure1, scales=False),
    "properties": Topic("Closed forms", "powerspherical reproduce properties", properties),
    "stability": Topic("Stability", "powerspherical reproduce stability", stability),
    "efficiency": Topic("Sampling time", "powerspherical reproduce efficiency", efficiency),
    "vae": Topic("Auto-encoders", "powerspherical reproduce vae", vae),
    "training_time": Topic("Training time", "powerspherical reproduce vae", training_time),
}


class Picture(NamedTuple):
    """A figure, its image as a data URL, and its size in CSS pixels if known."""

    figure: Figure
    source: str
    size: tuple[int, int] | None

    @property
    def least(self) -> int | None:
        """The smallest width in CSS pixels at which its letters are legible."""
        return None if self.size is None else round(self.size[0] * LEGIBLE / ENLARGED)


class Result(NamedTuple):
    """One result file: what it shows, and how it was made."""

    path: Path
    finding: Finding
    command: str
    quick: bool
    made: str
    took: str
    hardware: dict[str, Any]
    versions: str
    configuration: list[tuple[str, str]]

    @property
    def name(self) -> str:
        """The stem of the file."""
        return self.path.stem

    @property
    def pictures(self) -> list[Picture]:
        """The figures found beside the file."""
        found = (embed(self.path.parent, figure) for figure in self.finding.figures)
        return [picture for picture in found if picture is not None]

    @property
    def machine(self) -> str:
        """The device if it is not the CPU, and the CPU with its cores and the threads of torch."""
        processor = "{cpu}, {cores} cores ({torch_threads} used)".format(**self.hardware)
        device = self.hardware["device"]
        return processor if device == "cpu" else f"{device}; {processor}"

    def made_on(self, part: Figure | Table) -> str:
        """The hardware that computed a figure or a table."""
        device = self.hardware["device"]
        return str(self.hardware["cpu"] if part.on_cpu or device == "cpu" else device)


class Section(NamedTuple):
    """A topic and its results in the folder, possibly none."""

    name: str
    topic: Topic
    claim: claims.Claim
    runs: list[Result]


def write_report(folder: Path) -> Path:
    """Write `report.html` on the results in the folder, and return its path."""
    sections = []
    for name, topic in TOPICS.items():
        paths = (folder / f"{name}.json", *sorted(folder.glob(f"{name}_*.json")))
        runs = [read(path) for path in paths if path.exists()]
        sections.append(Section(name, topic, claims.CLAIMS[name], runs))
    if not any(section.runs for section in sections):
        again = f"powerspherical reproduce all --out {shlex.quote(str(folder))}"
        raise ReportError(f"there are no results in {folder}; make some with: {again}")
    return write_text(folder / NAME, render(sections))


def read(path: Path) -> Result:
    """Read a result file of one of the `TOPICS`.

    Raises:
        ReportError: the file is damaged.
    """
    topic = next(topic for name, topic in TOPICS.items() if f"{path.stem}_".startswith(f"{name}_"))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Result(
            path=path,
            finding=topic.describe(document, path.stem),
            command=document["command"],
            quick=topic.scales and "--quick" in document["command"].split(),
            made=f"{datetime.fromisoformat(document['created']).astimezone(UTC):%Y-%m-%d %H:%M} UTC",
            took=duration(document["seconds"]),
            hardware=document["hardware"],
            versions=", ".join(
                f"{name} {version}" for name, version in document["versions"].items() if version
            ),
            configuration=list(settings(document["configuration"])),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A field is missing or has the wrong type, or the text is not UTF-8 or not JSON (both are ValueErrors).
        again = f"{topic.command} --out {shlex.quote(str(path.parent))}"
        raise ReportError(
            f"{path} is damaged ({type(error).__name__}: {error}); make it again with: {again}"
        ) from error


def duration(seconds: float) -> str:
    """A time in words, such as `7 min 25 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def settings(configuration: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values of the settings as text; a nested dictionary of plain values takes one line."""
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
    """The figure as a reduced PNG or as SVG, whichever is smaller; None if the folder has neither."""
    from PIL import Image

    png, svg = (folder / f"{figure.name}.{ending}" for ending in ("png", "svg"))
    images, size = {}, None
    if png.exists():
        try:
            with Image.open(png) as image:
                images["png"], size = small_png(image), shown_size(image)
        except OSError as error:
            raise ReportError(f"{png} is not a readable PNG; delete it or make it again") from error
    if svg.exists():
        images["svg+xml"] = svg.read_bytes()
    if not images:
        return None
    kind, data = min(images.items(), key=lambda item: len(item[1]))
    return Picture(figure, f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}", size)


def small_png(image: "PngImage") -> bytes:
    """The image as a PNG of at most `WIDTH` pixels across, with a palette of 256 colours."""
    from PIL import Image

    plain = image.convert("RGB")
    if plain.width > WIDTH:
        plain = plain.resize((WIDTH, round(plain.height * WIDTH / plain.width)), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    plain.quantize(256, dither=Image.Dither.NONE).save(data, "PNG", optimize=True)
    return data.getvalue()


def shown_size(image: "PngImage") -> tuple[int, int] | None:
    """The physical size of the image in CSS pixels, so that all figures have equal letters; None if unknown."""
    if "dpi" not in image.info:
        return None
    scale = ENLARGED / image.info["dpi"][0]
    return round(image.width * scale), round(image.height * scale)


def render(sections: list[Section]) -> str:
    """The report as HTML."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    source = files("powerspherical_paper.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    runs = [run for section in sections for run in section.runs]
    software: dict[str, list[str]] = {}
    for run in runs:
        software.setdefault(run.versions, []).append(run.name)
    return environment.from_string(source).render(
        sections=sections, runs=runs, software=software, claims=claims
    )
