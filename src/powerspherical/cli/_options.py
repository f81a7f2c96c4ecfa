"""Arguments and options that several commands share. Needs typer."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from powerspherical.cli.common import LARGEST_SEED
from powerspherical.families import family_names

DEFAULT_FAMILY = "power-spherical"


def _names(text: str) -> list[str]:
    return text.split(",") if text else []


DataFile = Annotated[
    Path,
    Argument(
        metavar="DATA",
        help="File with one vector per row: .npy, .npz, .csv, .tsv or .parquet; or a folder of .csv or .parquet files.",
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Name of the array in an .npz file, or of the list column in a Parquet file.",
        show_default="the only one",
    ),
]
Columns = Annotated[
    Any,
    Option(
        metavar="NAME,…",
        parser=_names,
        help="Columns of a .csv or Parquet file to use: names, or patterns such as 'x*'.",
        show_default="all numeric columns",
    ),
]
Drop = Annotated[
    Any, Option(metavar="NAME,…", parser=_names, help="Columns of a .csv or Parquet file to ignore.")
]
Header = Annotated[
    bool | None,
    Option(help="Whether the first line of a .csv file holds column names.", show_default="detected"),
]
Strict = Annotated[bool, Option("--strict", help="Fail if a row is not a unit vector; else normalise it.")]
Force = Annotated[bool, Option("--force", help="Replace existing files.")]
Seed = Annotated[int, Option(metavar="N", min=0, max=LARGEST_SEED, help="Random seed.")]
Device = Annotated[str, Option(metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1, …")]


def family(kind: Any = Option, *others: str, metavar: str = "NAME", **options: Any) -> Any:
    """An option, or another kind of parameter, that accepts a registered family or one of `others`."""
    choices = [*family_choices(), *others]

    def parse(text: str) -> str:
        if text not in choices:
            raise BadParameter(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return kind(metavar=metavar, parser=parse, help=f"Family: {', '.join(choices)}.", **options)


def family_choices() -> list[str]:
    """The names of all registered families as the command line spells them, with hyphens."""
    return [name.replace("_", "-") for name in family_names()]
