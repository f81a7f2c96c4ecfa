"""`powerspherical reproduce`: run experiments, show what they found, and write the report over the results.

Whatever ends the run, a finished experiment keeps its results: they are shown as it ends, and the report covers all
that lies in the folder.
"""

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import torch

from powerspherical.cli._common import (
    LARGEST_SEED,
    Failure,
    bars,
    describe,
    is_first_process,
    processes,
    require,
    require_device,
    require_folder,
    wrong,
)
from powerspherical.cli._outputs import is_made_by, require_free

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from typer import Typer

    from powerspherical.experiments.results import Outcome

Experiment = Literal["figure1", "properties", "stability", "efficiency", "vae"]
MODULES = {"vae": "autoencoder.vae"}
"""The modules of experiments by their names, where the two differ."""
Choice = Literal[Experiment, "all"]
Data = Literal["digits", "mnist", "fashion-mnist"]
Posterior = Literal["power-spherical", "von-mises-fisher", "spherical-cauchy", "gaussian"]
OUT = Path("reproduction")
NEEDED = ("PIL", "jinja2", "matplotlib", "pooch", "rich", "safetensors", "scipy", "sklearn")
"""What the experiments import that the package itself does not install."""
FIRST_LINE = 2.0  # seconds until a log gets its first line of progress
BETWEEN_LINES = (10.0, 60.0)  # seconds from one such line to the next: at first, and at most


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Argument, Option

    from powerspherical.cli._options import Force

    @app.command()
    def reproduce(
        what: Annotated[Choice, Argument(help="Which figure or table.")] = "all",
        out: Annotated[Path, Option(metavar="DIR", help="Folder for the results, made if need be.")] = OUT,
        seed: Annotated[
            int, Option(metavar="N", min=0, max=LARGEST_SEED, help="Seed of every random draw.")
        ] = 0,
        quick: Annotated[bool, Option("--quick", help="Smaller versions, in minutes.")] = False,
        device: Annotated[
            str, Option(metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1, …")
        ] = "cpu",
        data: Annotated[
            Data | None,
            Option(
                metavar="NAME",
                help=f"vae: its images, {', '.join(get_args(Data))}.",
                show_default="mnist; with --quick digits",
            ),
        ] = None,
        data_dir: Annotated[
            Path | None,
            Option(
                metavar="DIR",
                exists=True,
                file_okay=False,
                help="vae: the folder with the files of the images.",
                show_default="that in POWERSPHERICAL_DATA; else they are downloaded",
            ),
        ] = None,
        seeds: Annotated[
            int | None, Option(metavar="N", min=1, help="vae: train with N seeds, from --seed on.")
        ] = None,
        jobs: Annotated[int | None, Option(metavar="N", min=1, help="vae: N trainings side by side.")] = None,
        posterior: Annotated[
            Posterior | None,
            Option(
                metavar="NAME",
                help=f"vae: train {', '.join(get_args(Posterior))} only, and keep the other rows of the table.",
                show_default="all of them",
            ),
        ] = None,
        force: Force = False,
        threads: Annotated[
            int,
            Option(
                metavar="N", min=1, help="CPU threads, shared by --jobs. Small models gain nothing from more."
            ),
        ] = 1,
    ) -> None:
        """Make the paper's figures and tables again.

        The exit status is 1 if a check fails; timings never change it. The last line names a report over all the
        results in the folder. Given again after Ctrl-C, the command goes on with trainings from their last epoch.
        """
        require(*NEEDED, needed_for="reproduce", extra="experiments")
        experiments = {
            name: importlib.import_module(f"powerspherical.experiments.{MODULES.get(name, name)}")
            for name in (get_args(Experiment) if what == "all" else (what,))
        }
        options = {
            "data": data,
            "data_dir": data_dir,
            "seeds": seeds,
            "jobs": jobs,
            "posterior": posterior and posterior.replace("-", "_"),
        }
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if not any(_takes(experiment, name) for experiment in experiments.values()):
                raise wrong(f"--{name.replace('_', '-')}", f"{what} does not take it, only vae does")
        if processes() > 1 and what != "vae":
            raise wrong("what", "under torchrun only vae is shared between the processes: reproduce vae")
        if processes() > 1 and jobs is not None and jobs > 1:
            raise wrong("--jobs", "torchrun shares each training between its processes: leave it at 1")
        require_device(device)
        require_free(
            _outputs(experiments.values(), out, device), force=force, is_own=partial(is_made_by, "reproduce")
        )
        require_folder(out)
        for experiment in experiments.values():
            if hasattr(experiment, "load"):  # data that are missing should not be missed hours later
                experiment.load(quick, data, data_dir)
        with torch_threads(threads):
            run_each(experiments, out, {"seed": seed, "quick": quick, "device": device}, given)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many threads of torch inside the block.

    By default torch takes one for each core. Steps of small models then wait for threads more than they compute, and
    where other processes keep the cores busy they take ten times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Advance:
    """What an experiment calls with the fraction that is done.

    It moves the bar of the experiment. Where no terminal shows bars, it prints a line now and then.
    """

    def __init__(self, shown: "Progress", name: str) -> None:
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
        """Take the bar away."""
        self.shown.remove_task(self.task.id)

    def say(self, text: str) -> None:
        """Print a line, unless there are bars."""
        if self.shown.disable:
            self.shown.console.out(f"{self.task.description}: {text}", highlight=False)


def rounded(seconds: float) -> str:
    """A time to come, no more precisely than it can be known."""
    if seconds < 55:
        return f"{10 * max(1, round(seconds / 10))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.0f} h"


def _outputs(experiments: Iterable[ModuleType], out: Path, device: str) -> list[Path]:
    """The files that experiments may write in the folder, under their names on the CPU and on the device."""
    from powerspherical.experiments import report
    from powerspherical.experiments.results import name_on

    names: list[str] = [name for experiment in experiments for name in experiment.FILES]
    on_device = [f"{name_on(device, Path(name).stem)}{Path(name).suffix}" for name in names]
    return [out / name for name in (*names, *on_device, report.NAME)]


def _takes(experiment: ModuleType, option: str) -> bool:
    return option in inspect.signature(experiment.run).parameters


def run_each(
    experiments: Mapping[str, ModuleType], out: Path, common: Mapping[str, Any], special: Mapping[str, Any]
) -> None:
    """Run the experiments and write the report; raise `Failure` unless all ended well and every check held.

    Each is given the options `common` to all, and of the `special` ones those that it takes.
    """
    from rich.console import Console

    console = Console()
    failed: list[str] = []
    name, problem, status = "", "", 1
    try:
        with bars(console) as shown:
            for name, experiment in experiments.items():
                options = {option: value for option, value in special.items() if _takes(experiment, option)}
                advance = Advance(shown, name)
                outcome = experiment.run(out, **common, **options, progress=advance)
                advance.end()
                _show(console, name, outcome)
                if not outcome.passed:
                    failed.append(name)
        problem = f"a check failed in {', '.join(failed)}" if failed else ""
    except KeyboardInterrupt:
        problem = f"interrupted in {name}; what is done is kept, the same command resumes trainings"
        status = 130
    except Exception as error:
        problem = f"{name}: {describe(error)}"
    if is_first_process():
        problem = "; ".join(filter(None, (problem, _report(console, out))))
    if problem:
        raise Failure(problem, status)


def _show(console: "Console", name: str, outcome: "Outcome") -> None:
    """Show what an experiment found, and the files it wrote."""
    if outcome.table is not None:
        console.print(outcome.table)
    for line in (f"{name}: {outcome.summary}", *(f"  {path}" for path in outcome.files)):
        console.out(line, highlight=False)


def _report(console: "Console", out: Path) -> str:
    """Write the report over the results in `out` and show its path; return what went wrong, if anything."""
    from powerspherical.experiments import report

    if not any(out.glob("*.json")):
        return ""  # stopped before the first result
    try:
        console.out(report.write_report(out), highlight=False)
    except Exception as error:  # it must not hide what became of the experiments
        return f"no report: {describe(error)}"
    return ""
