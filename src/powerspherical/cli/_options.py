"""The arguments and options that commands share. Needs typer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, BadParameter, Option

from powerspherical.cli._common import LARGEST_SEED, hyphenated
from powerspherical.families import family_names

DEFAULT_FAMILY = "power-spherical"
Concentration = Literal["tied", "free"]

DataFile = Annotated[
    Path,
    Argument(
        metavar="DATA",
        help="Rows, one vector each: .npy, .npz, .csv, .parquet, or a folder of Parquet files.",
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="The array of an .npz file, or the column of lists of a Parquet file.",
        show_default="the only one",
    ),
]
Columns = Annotated[
    str | None,
    Option(
        metavar="NAME,…",
        help="The columns of a .csv or Parquet file to use: names or patterns such as 'x*'.",
        show_default="all that hold numbers",
    ),
]
Drop = Annotated[
    str | None,
    Option(metavar="NAME,…", help="Columns of a .csv or Parquet file not to use, such as an identifier."),
]
Header = Annotated[
    bool | None,
    Option(
        "--header/--no-header",
        help="Whether the first line of a .csv file holds names.",
        show_default="what it looks like",
    ),
]
Strict = Annotated[bool, Option("--strict", help="Refuse rows that are not unit vectors.")]
Force = Annotated[bool, Option("--force", help="Replace files that this command did not make.")]
Seed = Annotated[int, Option(metavar="N", min=0, max=LARGEST_SEED, help="The same seed, the same result.")]


def family_choices() -> list[str]:
    """The names of all registered families, as the command line spells them."""
    return [hyphenated(name) for name in family_names()]


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """The parser of an option that takes one of these."""

    def choice(text: str) -> str:
        if text not in choices:
            raise BadParameter(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return choice
