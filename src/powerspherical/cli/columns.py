"""Chooses the columns of a table that are coordinates: by the user's options, or by names and values."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from powerspherical.cli.common import wrong

Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERED = re.compile(r"(?P<stem>.*?)\d+", re.DOTALL)
_NOT_A_COORDINATE = re.compile(
    r"(.*[ _.-])?(id|idx|index|row|label|class|cluster|target|weight|year)s?|unnamed.*", re.IGNORECASE
)


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    key: str  # what PyArrow calls it
    name: str
    kind: str  # "float", "integer", "lists of float", "lists of integer", or PyArrow's name of another type
    is_index: bool = False  # the index of a data frame

    @property
    def holds_numbers(self) -> bool:
        return self.kind in ("float", "integer")

    @property
    def holds_lists(self) -> bool:
        """Whether the values are lists of numbers."""
        return self.kind.startswith("lists of")


@dataclass(frozen=True)
class Wanted:
    """The user's choice of columns, by the options of these names. Names may be patterns such as x*."""

    key: str | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] | None = None
    header: bool | None = None
    #: The columns that a model was fitted with, used if `columns` and `drop` are empty.
    fitted: Sequence[str] = ()


def listed(names: Sequence[str], first: int = 3) -> str:
    """Names joined by commas. Of many, only the first and the last."""
    shown = list(names) if len(names) <= first + 3 else [*names[:first], "…", names[-1]]
    return ", ".join(shown) or "none"


def choose(columns: Sequence[Column], head: Callable[[Column], Array], wanted: Wanted) -> list[Column]:
    """The columns that hold the coordinates, in order.

    Raises for unknown names and for columns without numbers. If the user did not choose, also raises for numeric
    columns that may not be coordinates. `head` returns the first values of a column.
    """
    numbers = [c for c in columns if c.holds_numbers and not c.is_index]
    if wanted.columns:
        chosen = _matching("--columns", wanted.columns, columns, numbers)
    elif wanted.fitted and not wanted.drop:
        chosen = _fitted(columns, wanted.fitted)
    else:
        chosen = numbers
    dropped = set(_matching("--drop", wanted.drop, columns, columns))
    chosen = [column for column in chosen if column not in dropped]
    for column in chosen:
        if not column.holds_numbers:
            raise ValueError(f"its column {column.name!r} holds {column.kind}, not numbers")
    if not wanted.columns and (wanted.drop or not wanted.fitted):
        _refuse_doubtful(chosen, head)
    for name, times in Counter(column.name for column in chosen).items():
        if times > 1:
            raise ValueError(f"{times} of its columns are called {name!r}: give each a different name")
    return chosen


def _matching(
    option: str, patterns: Sequence[str] | None, columns: Sequence[Column], candidates: Sequence[Column]
) -> list[Column]:
    """The columns with one of these names, and the candidates that match one of these patterns. Each appears once."""
    found: dict[Column, None] = {}  # keeps the order
    for pattern in patterns or ():
        matches = [column for column in columns if column.name == pattern]
        matches = matches or [column for column in candidates if fnmatchcase(column.name, pattern)]
        if not matches:
            names = listed([column.name for column in columns])
            raise wrong(option, f"no column is called {pattern!r}; there are {names}")
        found |= dict.fromkeys(matches)
    return list(found)


def _fitted(columns: Sequence[Column], names: Sequence[str]) -> list[Column]:
    """The columns that a model was fitted with, in the order of the fit."""
    rank = {name: index for index, name in enumerate(names)}
    found = sorted((c for c in columns if c.name in rank), key=lambda column: rank[column.name])
    present = {column.name for column in found}
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(
            f"it has no column {listed(missing)}, which the model was fitted with: choose others with --columns"
        )
    return found


def _refuse_doubtful(numbers: Sequence[Column], head: Callable[[Column], Array]) -> None:
    """Raise if a numeric column may not be a coordinate, but for example an identifier.

    Doubtful are columns outside a numbered series such as x0, x1, …. Without a series, integers among floats and
    certain names are doubtful. If none of these is found, so are columns that count the rows.
    """
    stems = [match["stem"] if (match := _NUMBERED.fullmatch(c.name)) else None for c in numbers]
    series = Counter(stem for stem in stems if stem is not None).most_common(1)
    if series and series[0][1] > 1:
        doubtful = [column for column, stem in zip(numbers, stems, strict=True) if stem != series[0][0]]
    else:
        among_floats = "integer" if len({c.kind for c in numbers}) > 1 else None
        doubtful = [c for c in numbers if c.kind == among_floats or _NOT_A_COORDINATE.fullmatch(c.name)]
    doubtful = doubtful or [column for column in numbers if _counts_rows(head(column))]
    if doubtful:
        all_names, names = ([column.name for column in group] for group in (numbers, doubtful))
        drop = shlex.quote(",".join(name.replace(",", "?") for name in names))  # a comma would end the name
        raise ValueError(
            f"it has the columns {listed(all_names)}, and {listed(names)} may not be a coordinate: leave columns out"
            f" with --drop, for example --drop {drop}, or use all with --columns '*'"
        )


def _counts_rows(values: Array) -> bool:
    return len(values) > 2 and bool((np.diff(values) == 1).all())
