"""Do what `powerspherical reproduce` is asked for: run the experiments, show their findings, and write the report.

Each experiment writes and shows its results as soon as it ends, so a later error or interruption loses nothing. Its
JSON file is written last: if it exists, the experiment is done.
"""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from powerspherical.cli.common import Failure, describe, wrong
from powerspherical_paper.autoencoder import datasets
from powerspherical_paper.report import page
from powerspherical_paper.results import Task

MODULES = {"vae": "autoencoder.vae"}
"""The modules of the experiments that are not named after their module."""
LOG_WIDTH = 130  # columns of the tables if there is no terminal
BETWEEN_LINES = 60.0  # seconds between two lines of progress in a log


def module(experiment: str) -> ModuleType:
    """The module of an experiment."""
    return importlib.import_module(f"powerspherical_paper.{MODULES.get(experiment, experiment)}")


def task(name: str, out: Path, seed: int, quick: bool, device: str, only_vae: dict[str, Any]) -> Task:
    """The task of one experiment. `only_vae` has the options of the auto-encoders; None stands for the default."""
    options = module(name).settings(quick, **only_vae) if name == "vae" else {}
    return Task(name, out, seed, quick, device, options)


def new(tasks: list[Task], out: Path, *, skip: bool) -> list[Task]:
    """The tasks to do: all, or with `skip` those that are not done yet. Raises if one would replace a file.

    The report may be replaced if the folder has results: then it is a report on these, and will be updated.
    """
    done = [task for task in tasks if skip and is_done(task)]
    left = [task for task in tasks if task not in done]
    files = [task.path(name) for task in left for name in module(task.experiment).FILES]
    for file in files if page.has_results(out) else [*files, out / page.NAME]:
        if file.exists():
            raise wrong("--out", f"{file} exists; pass --force to replace it")
    for task in done:
        print(f"{task.experiment}: skipped, done with the same settings", flush=True)
    return left


def is_done(task: Task) -> bool:
    """Whether the result of a task exists, made with the same settings."""
    try:
        document = json.loads(task.path(f"{task.experiment}.json").read_text(encoding="utf-8"))
        return bool(document["command"] == task.command)
    except (OSError, ValueError, LookupError, TypeError):  # no such file, or another one of this name
        return False


class Advance:
    """The progress callback of one experiment: it moves a bar, or prints lines if there is no terminal."""

    def __init__(self, shown: Progress, name: str) -> None:
        self.shown, self.due = shown, BETWEEN_LINES
        shown.add_task(name, total=1.0)
        self.bar = shown.tasks[-1]
        self.say("started")

    def __call__(self, fraction: float) -> None:
        self.shown.update(self.bar.id, completed=fraction)
        elapsed = self.bar.elapsed or 0.0
        if elapsed >= self.due and 0 < fraction < 1:
            self.due = elapsed + BETWEEN_LINES
            self.say(f"{fraction:.0%}, about {page.duration(elapsed / fraction - elapsed)} left")

    def say(self, text: str) -> None:
        """Print a line if there is no terminal."""
        if self.shown.disable:
            self.shown.console.out(f"{self.bar.description}: {text}", highlight=False)


def run_each(tasks: list[Task], out: Path, data_dir: Path | None, jobs: int) -> None:
    """Do the tasks and write the report; raise `Failure` if one fails or one of its checks does.

    Args:
        tasks: what to do.
        out: the folder of the report.
        data_dir: the folder with the image files, if given.
        jobs: the number of trainings in parallel.
    """
    for task in tasks:
        if task.experiment == "vae":  # report missing data now, not after hours of other experiments
            datasets.load(task.options["data"], data_dir)
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    failed: list[str] = []
    name, problem, status = "", "", 1
    try:
        columns = ("{task.description:<12}", BarColumn(), TimeElapsedColumn(), "left:", TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
            for task in tasks:
                name = task.experiment
                advance = Advance(shown, name)
                only_vae = {"data_dir": data_dir, "jobs": jobs} if name == "vae" else {}
                outcome = module(name).run(replace(task, progress=advance), **only_vae)
                shown.remove_task(advance.bar.id)
                _show(console, name, outcome.files)
                if not outcome.passed:
                    failed.append(name)
        problem = f"a check failed in {', '.join(failed)}" if failed else ""
    except KeyboardInterrupt:
        problem = f"interrupted in {name}; finished results are kept, and the same command continues"
        status = 130
    except Exception as error:
        problem = f"{name}: {describe(error)}"
    if page.has_results(out):  # else the run stopped before its first result
        try:
            console.out(page.write_report(out), highlight=False)
        except Exception as error:  # must not hide an error of the experiments
            problem = "; ".join(filter(None, (problem, f"no report: {describe(error)}")))
    if problem:
        raise Failure(problem, status)


def _show(console: Console, name: str, files: list[Path]) -> None:
    """Show the findings of an experiment, and the files it wrote."""
    for finding in (page.read(path).finding for path in files if path.suffix == ".json"):
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
