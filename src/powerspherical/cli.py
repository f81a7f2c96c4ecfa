"""The command `powerspherical`.

    powerspherical reproduce [figure1|properties|stability|efficiency|all]
                             [--out DIR] [--seed N] [--quick] [--device DEVICE]

`--quick` makes smaller versions, in seconds rather than minutes; `--device` is torch's name of the device to
draw on (`cpu`, `cuda`, `cuda:1`).

Its exit status is 0 when everything was written and every check held, 1 when a check failed or something went
wrong, and 2 for wrong use or a missing extra. An error takes one line.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

if TYPE_CHECKING:
    from typer import Typer

Experiment = Literal["figure1", "properties", "stability", "efficiency"]
Choice = Literal[Experiment, "all"]
OUT = Path("reproduction")
EXTRA = ("matplotlib", "rich", "scipy", "typer")  # what the extra `experiments` installs


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave the process; `arguments` default to the process's own."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    for module in EXTRA:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            return _fail(f"{error.name} is missing; run: pip install 'powerspherical[experiments]'", 2)
    import typer

    try:
        status = application()(args=list(arguments), prog_name="powerspherical", standalone_mode=False)
    except typer.TyperException as error:  # an unknown command or option, or a value that does not fit
        return _fail(f"{error.format_message()} (see powerspherical --help)", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error}", 1)
    return status if isinstance(status, int) else 0


def _fail(message: str, status: int) -> int:
    print("powerspherical:", " ".join(message.split()), file=sys.stderr)
    return status


def application() -> "Typer":
    """The typer application, made when called: this module can be imported without the extra."""
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def powerspherical() -> None:
        """The Power Spherical distribution: make its paper's figures and tables again."""

    @app.command()
    def reproduce(
        what: Annotated[Choice, typer.Argument(help="Which figure or table.")] = "all",
        out: Annotated[Path, typer.Option(help="Folder for the results, made if need be.")] = OUT,
        seed: Annotated[int, typer.Option(min=0, help="Seed of every random draw.")] = 0,
        quick: Annotated[bool, typer.Option("--quick", help="Smaller versions, in seconds.")] = False,
        device: Annotated[str, typer.Option(help="Where to draw: cpu, cuda, …")] = "cpu",
    ) -> int:
        """Make the paper's figures and tables again, with every number checked."""
        names = get_args(Experiment) if what == "all" else (what,)
        try:
            _require(device)
        except (AssertionError, RuntimeError) as error:
            raise typer.BadParameter(str(error).splitlines()[0], param_hint="'--device'") from error
        return reproduce_each(names, out, seed, quick=quick, device=device)

    return app


def _require(device: str) -> None:
    """Raise unless torch knows the device and has it."""
    import torch

    torch.empty(0, device=device)


def reproduce_each(
    names: Sequence[str], out: Path, seed: int, *, quick: bool = False, device: str = "cpu"
) -> int:
    """Run the named experiments, show their progress and tables, and return 0 if every check held, else 1."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    outcomes = {}
    with Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        for name in names:
            task = bars.add_task(name, total=1.0)
            experiment = importlib.import_module(f"powerspherical.experiments.{name}")
            outcomes[name] = experiment.run(
                out,
                seed=seed,
                quick=quick,
                device=device,
                progress=lambda fraction, task=task: bars.update(task, completed=fraction),
            )
    for name, outcome in outcomes.items():
        if outcome.table is not None:
            console.print(outcome.table)
        console.print(f"{name}: {outcome.summary}", highlight=False)
    console.print("written:", highlight=False)
    for outcome in outcomes.values():
        for path in outcome.files:
            console.print(f"  {path}", highlight=False, soft_wrap=True)
    failed = [name for name, outcome in outcomes.items() if not outcome.passed]
    return _fail(f"a check failed in {', '.join(failed)}", 1) if failed else 0
