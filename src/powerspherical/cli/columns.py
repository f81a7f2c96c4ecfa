"""Which columns of a table are coordinates: what the user says, or what is plain from names and values."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

import numpy as np

from powerspherical.cli._common import wrong

Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERED = re.compile(r"(?P<stem>.*?)\d+", re.DOTALL)
_NOT_A_COORDINATE = re.compile(
    r"(.*[ _.-])?(id|idx|index|row|label|class|cluster|target|weight|year)s?|unnamed.*", re.IGNORECASE
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        position: its place in the table, from 0 on.
        name: its name.
        kind: "float", "integer", or the type of values that are not numbers.
        is_index: whether it holds the index of a data frame.
        flaw: of a column of text that is mostly numbers, the first value that is none, with its row.
    """

    position: int
    name: str
    kind: str
    is_index: bool = False
    flaw: str = ""

    @property
    def holds_numbers(self) -> bool:
        """Whether every value is a number."""
        return self.kind in ("float", "integer")


@dataclass(frozen=True)
class Wanted:
    """What the user says about the columns.

    Attributes:
        columns: names, or patterns such as x*, of the columns to use.
        drop: those not to use.
        fitted: the columns that a model was fitted with, used where `columns` and `drop` say nothing.
    """

    columns: Sequence[str] = ()
    drop: Sequence[str] = ()
    fitted: Sequence[str] = ()

    @classmethod
    def of(cls, columns: str | None, drop: str | None, fitted: Sequence[str] = ()) -> Self:
        """What the options say, in which commas separate the names."""
        return cls(columns.split(",") if columns else (), drop.split(",") if drop else (), fitted)


NO_CHOICE = Wanted()


def listed(names: Sequence[str]) -> str:
    """Names with commas between them; of many, the first and the last."""
    shown = list(names) if len(names) <= 6 else [*names[:3], "…", names[-1]]
    return ", ".join(shown) or "none"


def choose(columns: Sequence[Column], head: Callable[[Column], Array], wanted: Wanted) -> list[Column]:
    """The columns that hold the coordinates, in order.

    Raises for names that are not there, for columns that hold no numbers, and, where the user did not choose, for
    columns of numbers that may be something else. `head` returns the first values of a column.
    """
    numbers = [c for c in columns if (c.holds_numbers or c.flaw) and not c.is_index]
    if wanted.columns:
        chosen = _matching("--columns", wanted.columns, columns, numbers)
    elif wanted.fitted and not wanted.drop:
        chosen = _fitted(columns, wanted.fitted)
    else:
        chosen = numbers
    dropped = set(_matching("--drop", wanted.drop, columns, columns))
    chosen = [column for column in chosen if column not in dropped]
    for column in chosen:
        if column.flaw:
            raise ValueError(
                f"its column {column.name!r} has {column.flaw}, which is no number with a decimal point:"
                " repair it, or leave the column out with --drop"
            )
        if not column.holds_numbers:
            raise ValueError(f"its column {column.name!r} holds {column.kind}, not numbers")
    if not wanted.columns and (wanted.drop or not wanted.fitted):
        _refuse_doubtful(chosen, head)
    for name, times in Counter(column.name for column in chosen).items():
        if times > 1:
            raise ValueError(f"{times} of its columns are called {name!r}: give each a name of its own")
    return chosen


def _matching(
    option: str, patterns: Sequence[str], columns: Sequence[Column], candidates: Sequence[Column]
) -> list[Column]:
    """The columns with these names, and the candidates that fit these patterns, each once."""
    found: dict[Column, None] = {}  # in order
    for pattern in patterns:
        matches = [column for column in columns if column.name == pattern]
        matches = matches or [column for column in candidates if fnmatchcase(column.name, pattern)]
        if not matches:
            names = listed([column.name for column in columns])
            raise wrong(option, f"no column is called {pattern!r}; there are {names}")
        found |= dict.fromkeys(matches)
    return list(found)


def _fitted(columns: Sequence[Column], names: Sequence[str]) -> list[Column]:
    """The columns that a model was fitted with."""
    named: dict[str, list[Column]] = {}
    for column in columns:
        named.setdefault(column.name, []).append(column)
    missing = [name for name in names if name not in named]
    if missing:
        raise ValueError(
            f"it has no column {listed(missing)}, which the model was fitted with: choose others with --columns"
        )
    return [column for name in names for column in named[name]]


def _refuse_doubtful(numbers: Sequence[Column], head: Callable[[Column], Array]) -> None:
    """Raise if a column of numbers may be something other than a coordinate, such as an identifier."""
    doubtful = [column.name for column in _doubtful(numbers, head)]
    if doubtful:
        names = listed([column.name for column in numbers])
        raise ValueError(
            f"it has the columns {names}, and {listed(doubtful)} may not be a coordinate: leave columns out"
            f" with --drop, for example --drop '{','.join(doubtful[:6])}', or use all with --columns '*'"
        )


def _doubtful(numbers: Sequence[Column], head: Callable[[Column], Array]) -> list[Column]:
    """Columns outside a numbered series, integers among floats, telling names, and values that count the rows."""
    stems = [match["stem"] if (match := _NUMBERED.fullmatch(c.name)) else None for c in numbers]
    series = Counter(stem for stem in stems if stem is not None).most_common(1)
    if series and series[0][1] > 1:
        doubtful = [column for column, stem in zip(numbers, stems, strict=True) if stem != series[0][0]]
    else:
        mixed = len({column.kind for column in numbers}) > 1
        doubtful = [
            column
            for column in numbers
            if (mixed and column.kind == "integer") or _NOT_A_COORDINATE.fullmatch(column.name)
        ]
    return doubtful or [column for column in numbers if _counts_rows(head(column))]


def _counts_rows(values: Array) -> bool:
    return len(values) > 2 and bool((np.diff(values) == 1).all())
