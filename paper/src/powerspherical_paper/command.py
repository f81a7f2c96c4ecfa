"""`powerspherical reproduce`: run experiments, show their findings, and write a report on all results in the folder.

Each experiment writes and shows its results as soon as it ends, so a later error or interruption loses nothing. While a
command runs, the file `unfinished.json` in the folder names its settings and the experiments that are done. If it is
still there, the same command continues.
"""

import importlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from typer import Argument, Option, Typer

from powerspherical.cli.common import (
    LARGEST_SEED,
    Failure,
    bars,
    describe,
    require_device,
    require_folder,
    wrong,
)
from powerspherical.cli.outputs import require_free
from powerspherical_paper.results import name_on, write_text

Experiment = Literal["figure1", "properties", "stability", "efficiency", "vae"]
MODULES = {"vae": "autoencoder.vae"}
"""The modules of the experiments that are not named after their module."""
Choice = Literal[Experiment, "all"]
Data = Literal["digits", "mnist", "fashion-mnist"]
OUT = Path("reproduction")
UNFINISHED = "unfinished.json"
LOG_WIDTH = 130  # columns of the tables if there is no terminal
FIRST_LINE = 2.0  # seconds until the first line of progress in a log
BETWEEN_LINES = (10.0, 60.0)  # seconds between such lines: at first, and at most


def add_to(app: Typer) -> None:
    """Add the command to the application."""

    @app.command()
    def reproduce(
        what: Annotated[Choice, Argument(help="The figure or table to make.")] = "all",
        out: Annotated[
            Path, Option(metavar="DIR", help="Folder for the results; created if it does not exist.")
        ] = OUT,
        seed: Annotated[
            int, Option(metavar="N", min=0, max=LARGEST_SEED, help="Seed of all random draws.")
        ] = 0,
        quick: Annotated[
            bool, Option("--quick", help="Run smaller experiments, which take minutes.")
        ] = False,
        # The name is explicit because some versions of typer take it from the metavar: --DEVICE.
        device: Annotated[
            str, Option("--device", metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1, …")
        ] = "cpu",
        data: Annotated[
            Data | None,
            Option(
                metavar="NAME",
                help=f"Only for vae. Images to train on: {', '.join(get_args(Data))}.",
                show_default="mnist; with --quick digits",
            ),
        ] = None,
        data_dir: Annotated[
            Path | None,
            Option(
                metavar="DIR",
                exists=True,
                file_okay=False,
                help="Only for vae. Folder with the image files.",
                show_default="POWERSPHERICAL_DATA if set; else download",
            ),
        ] = None,
        seeds: Annotated[
            int | None,
            Option(
                metavar="N",
                min=1,
                help="Only for vae. Train with N consecutive seeds, starting at --seed.",
                show_default="3; with --quick 1",
            ),
        ] = None,
        jobs: Annotated[
            int | None,
            Option(metavar="N", min=1, help="Only for vae. Run N trainings in parallel.", show_default="1"),
        ] = None,
        force: Annotated[
            bool, Option("--force", help="Replace existing results. Finished trainings are kept.")
        ] = False,
        threads: Annotated[
            int,
            Option(
                metavar="N",
                min=1,
                help="CPU threads, shared by all --jobs. More threads do not speed up small models.",
            ),
        ] = 1,
    ) -> None:
        """Reproduce the paper's figures and tables.

        Writes the results and a report on them into the folder --out. The last line of the output is the path of the
        report. The exit status is 1 if a check fails; timings are not checked.

        After an interruption or an error, the same command continues: it skips the experiments that are done and
        resumes trainings at their last epoch. Otherwise existing results are replaced only with --force. To repeat
        trainings too, delete the folder vae in --out.

        Example: powerspherical reproduce all --quick
        """
        experiments = {
            name: importlib.import_module(f"powerspherical_paper.{MODULES.get(name, name)}")
            for name in (get_args(Experiment) if what == "all" else (what,))
        }
        options = {"data": data, "data_dir": data_dir, "seeds": seeds, "jobs": jobs}
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if not any(_takes(experiment, name) for experiment in experiments.values()):
                raise wrong(f"--{name.replace('_', '-')}", f"{what} does not take this option, only vae does")
        require_device(device)
        common = {"seed": seed, "quick": quick, "device": device}
        settings = {"what": what, **common, "data": data, "data_dir": str(data_dir), "seeds": seeds}
        unfinished = Unfinished(out / UNFINISHED, settings, anew=force)
        if not unfinished.continued:
            require_free(_outputs(experiments.values(), out, device), force=force)
        require_folder(out)
        left = {name: experiment for name, experiment in experiments.items() if name not in unfinished.done}
        for experiment in left.values():
            if hasattr(experiment, "load"):  # report missing data now, not after hours of other experiments
                experiment.load(quick, data, data_dir)
        with torch_threads(threads):
            run_each(left, out, common, given, unfinished)


class Unfinished:
    """The file that exists while a command runs, and remains if it is stopped: its settings, and what is done.

    Attributes:
        continued: whether a command with the same settings was stopped in this folder, and shall continue.
        done: the experiments that are done.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, anew: bool) -> None:
        self.path, self.settings = path, settings
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no such file, or a damaged one
            found = {}
        self.continued = not anew and found.get("settings") == settings
        self.done: list[str] = found["done"] if self.continued else []

    def write(self) -> None:
        """Write the file."""
        write_text(self.path, json.dumps({"settings": self.settings, "done": self.done}) + "\n")


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set torch's number of threads inside the block.

    Torch's default is one per core. Small models then spend more time waiting for threads than computing, and run ten
    times slower when other processes keep the cores busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Advance:
    """The progress callback of one experiment: it moves a bar, or prints lines if there is no terminal."""

    def __init__(self, shown: Progress, name: str) -> None:
        self.shown, self.due = shown, FIRST_LINE
        shown.add_task(name, total=1.0)
        self.task = shown.tasks[-1]
        self.say("started")

    def __call__(self, fraction: float) -> None:
        self.shown.update(self.task.id, completed=fraction)
        elapsed = self.task.elapsed or 0.0
        if elapsed < self.due or self.task.finished:
            return
        shortest, longest = BETWEEN_LINES
        self.due = elapsed + min(max(shortest, elapsed / 10), longest)
        left = self.task.time_remaining
        self.say(f"{fraction:.0%}" + ("" if left is None else f", about {rounded(left)} left"))

    def end(self) -> None:
        """Remove the bar."""
        self.shown.remove_task(self.task.id)

    def say(self, text: str) -> None:
        """Print a line if there is no terminal."""
        if self.shown.disable:
            self.shown.console.out(f"{self.task.description}: {text}", highlight=False)


def rounded(seconds: float) -> str:
    """A remaining time, rounded to what an estimate can tell."""
    if seconds < 55:
        return f"{10 * max(1, round(seconds / 10))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.0f} h"


def _outputs(experiments: Iterable[ModuleType], out: Path, device: str) -> list[Path]:
    """The files that the experiments may write, also under the names for the device.

    The report is one of them unless the folder has results: then it is a report on these, and will be updated.
    """
    from powerspherical_paper import report

    files = [Path(name) for experiment in experiments for name in experiment.FILES]
    files += [file.with_stem(name_on(device, file.stem)) for file in files]
    if not report.has_results(out):
        files.append(Path(report.NAME))
    return [out / file for file in files]


def _takes(experiment: ModuleType, option: str) -> bool:
    return option in inspect.signature(experiment.run).parameters


def run_each(
    experiments: Mapping[str, ModuleType],
    out: Path,
    common: Mapping[str, Any],
    special: Mapping[str, Any],
    unfinished: Unfinished,
) -> None:
    """Run the experiments and write the report; raise `Failure` if one fails or one of its checks does.

    Each experiment gets the `common` options, and those of the `special` options that it takes.
    """
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    failed: list[str] = []
    name, problem, status = "", "", 1
    try:
        with bars(console) as shown:
            for name, experiment in experiments.items():
                unfinished.write()
                options = {option: value for option, value in special.items() if _takes(experiment, option)}
                advance = Advance(shown, name)
                outcome = experiment.run(out, **common, **options, progress=advance)
                advance.end()
                _show(console, name, outcome.files)
                unfinished.done.append(name)
                if not outcome.passed:
                    failed.append(name)
        unfinished.path.unlink(missing_ok=True)
        problem = f"a check failed in {', '.join(failed)}" if failed else ""
    except KeyboardInterrupt:
        problem = f"interrupted in {name}; finished results are kept, and the same command continues"
        status = 130
    except Exception as error:
        problem = f"{name}: {describe(error)}"
    problem = "; ".join(filter(None, (problem, _report(console, out))))
    if problem:
        raise Failure(problem, status)


def _show(console: Console, name: str, files: list[Path]) -> None:
    """Show the findings of an experiment, and the files it wrote."""
    from powerspherical_paper import report

    for finding in (report.read(path).finding for path in files if path.suffix == ".json"):
        for content in finding.tables:
            table = Table(title=Text(content.caption), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
            for index, heading in enumerate(content.head):
                side: Literal["left", "right"] = "left" if index < content.labels else "right"
                table.add_column(Text(heading), justify=side, overflow="fold")
            for row in content.rows:
                table.add_row(*map(Text, row))
            console.print(table)
        for line in (f"{finding.verdict}: {finding.text}", *finding.notes):
            console.out(f"{name}: {line}", highlight=False)
    for path in files:
        console.out(f"  {path}", highlight=False)


def _report(console: Console, out: Path) -> str:
    """Write the report on the results in `out` and print its path; return an error message, or an empty string."""
    from powerspherical_paper import report

    if not report.has_results(out):
        return ""  # the run stopped before its first result
    try:
        console.out(report.write_report(out), highlight=False)
    except Exception as error:  # must not hide an error of the experiments
        return f"no report: {describe(error)}"
    return ""
