"""`powerspherical sample`: random unit vectors, in a file or on the standard output."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from torch.distributions import Distribution

from powerspherical.cli import draws
from powerspherical.cli._common import LARGEST_SEED, bars, require_device, require_folder, wrong
from powerspherical.cli._outputs import require_free
from powerspherical.cli.draws import UNIFORM, DType

if TYPE_CHECKING:
    from typer import Typer


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Argument, Option

    from powerspherical.cli._options import DEFAULT_FAMILY, Force, family_choices, one_of

    choices = [*family_choices(), UNIFORM]

    @app.command()
    def sample(
        family: Annotated[
            str,
            Argument(metavar="FAMILY", parser=one_of(choices), help=f"{', '.join(choices)}."),
        ] = DEFAULT_FAMILY,
        dim: Annotated[
            int | None,
            Option(
                metavar="D",
                min=2,
                help="Length of the vectors: 2 is the circle.",
                show_default="that of --loc, or 3",
            ),
        ] = None,
        concentration: Annotated[
            float | None,
            Option(metavar="K", help="The larger, the closer to --loc; 0 is the uniform distribution."),
        ] = None,
        loc: Annotated[
            str | None,
            Option(
                metavar="X,Y,…",
                help="Mean direction: coordinates such as 0,0.6,0.8 or a .npy file of them.",
                show_default="the first axis",
            ),
        ] = None,
        number: Annotated[int, Option("--number", "-n", metavar="N", min=1, help="How many draws.")] = 10,
        seed: Annotated[
            int | None,
            Option(
                metavar="N",
                min=0,
                max=LARGEST_SEED,
                help="The same seed, the same draws.",
                show_default="new draws each time",
            ),
        ] = None,
        dtype: Annotated[DType, Option(metavar="TYPE", help="float32 or float64.")] = "float32",
        device: Annotated[str, Option(metavar="DEVICE", help="Where to draw: cpu, cuda, cuda:1, …")] = "cpu",
        out: Annotated[
            str, Option(metavar="FILE", help="FILE.npy or FILE.csv; - is CSV on the standard output.")
        ] = draws.STDOUT,
        force: Force = False,
    ) -> None:
        """Draw random unit vectors, one a row.

        For example: powerspherical sample --loc 0,0,1 --concentration 20 -n 1000 --out draws.npy
        """
        _require_parameters(family, concentration, loc, dtype)
        try:
            mean = None if loc is None else draws.direction(loc, dim)
        except (EOFError, OSError, ValueError) as error:
            raise wrong("--loc", str(error)) from error
        dim = dim or (3 if mean is None else len(mean))
        path = draws.destination(out)
        if path:
            require_free([path], inputs=[] if loc is None else [Path(loc)], force=force)
        require_device(device)
        if path:
            require_folder(path.parent)
        drawn = draws.distribution(family, dim, mean, concentration, dtype, device)
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        _draw(drawn, number, path)


def _require_parameters(family: str, concentration: float | None, loc: str | None, dtype: DType) -> None:
    """Raise for wrong use unless the family has these parameters."""
    if family == UNIFORM:
        for option, value in (("--concentration", concentration), ("--loc", loc)):
            if value is not None:
                raise wrong(option, "the uniform distribution has none")
    elif concentration is None:
        raise wrong("--concentration", f"{family} needs one, for example 10")
    elif not 0 <= concentration <= float(np.finfo(dtype).max):  # a NaN is caught, too
        raise wrong("--concentration", f"{concentration:g} is not a number ≥ 0 that {dtype} can hold")


def _draw(distribution: Distribution, number: int, path: Path | None) -> None:
    """Draw and write, with a bar on the standard error."""
    from rich.console import Console

    stdout = sys.stdout  # while a bar is shown, sys.stdout is a stand-in that prints above it
    among_the_rows = path is None and stdout.isatty()
    with bars(Console(stderr=True), hidden=among_the_rows) as shown:
        task = shown.add_task("drawing", total=number)

        def blocks() -> Iterator[draws.Array]:
            for block in draws.blocks(distribution, number):
                yield block
                shown.advance(task, len(block))

        if path is None:
            draws.write_csv(stdout, blocks())
        else:
            draws.save(path, blocks(), (number, *distribution.event_shape))
    if path is not None:
        print(f"{number} draws in {distribution.event_shape[0]} dimensions: {path}")
