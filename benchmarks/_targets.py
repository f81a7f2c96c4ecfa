"""What the samplers are meant to reach, beside what was measured. Timings are reported, never asserted."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from _methods import BACKWARD, FORWARD

from powerspherical.experiments.autoencoder.training_time import relative_error_of_median
from powerspherical.experiments.efficiency import interval

Row = dict[str, Any]


class Measured(NamedTuple):
    """A measured value and its relative standard error."""

    value: float
    error: float


Value = Callable[[list[Row]], Measured | None]
"""From the rows of one number of threads to a measured value, or `None` where its rows are missing."""


@dataclass(frozen=True)
class Target:
    """A value that should be at most, or at least, so much."""

    what: str
    value: Value
    relation: Literal["≤", "≥"]
    limit: float

    def met(self, measured: Measured) -> bool | None:
        """Whether the target is met; None if the spread over rounds leaves that open."""
        answers = {
            one <= self.limit if self.relation == "≤" else one >= self.limit for one in interval(*measured)
        }
        return answers.pop() if len(answers) == 1 else None


EACH, SHARED = "per row", "shared"


def ratio(
    rows: list[Row],
    size: tuple[int, int],
    quantity: str,
    method: str,
    loc: str = EACH,
    section: str = "sizes",
) -> Measured | None:
    """How many times its floor a method takes, at a size and with a μ for each row, or one for all."""
    for row in rows:
        place = row["section"], (row["rows"], row["dim"]), row["quantity"], row["loc"], row["method"]
        if place == (section, size, quantity, loc, method):
            return Measured(float(row["ratio"]), error(row))
    return None


def error(row: Row) -> float:
    """The relative standard error of the time of a row."""
    return relative_error_of_median(row["milliseconds"], row["quartiles"], row["rounds"])


def over(slow: Measured, fast: Measured) -> Measured:
    """The quotient of two values."""
    return Measured(slow.value / fast.value, math.hypot(slow.error, fast.error))


def over_floor(size: tuple[int, int], quantity: str, loc: str = EACH, section: str = "sizes") -> Value:
    """Our Power Spherical over the floor."""
    return lambda rows: ratio(rows, size, quantity, "our_ps", loc, section)


def quotient(slow: str, fast: str, size: tuple[int, int], quantity: str) -> Value:
    """How many times as long one method takes as another, by their ratios to the floor."""

    def value(rows: list[Row]) -> Measured | None:
        above, below = (ratio(rows, size, quantity, method) for method in (slow, fast))
        return over(above, below) if above is not None and below is not None else None

    return value


def spread(method: str, quantity: str) -> Value:
    """The slowest over the fastest concentration, by their ratios to the floor: rounds differ by more than these do."""

    def value(rows: list[Row]) -> Measured | None:
        wanted = ("concentrations", quantity, method)
        times = [
            Measured(row["ratio"], error(row))
            for row in rows
            if (row["section"], row["quantity"], row["method"]) == wanted
        ]
        return over(max(times), min(times)) if times else None

    return value


def graphed(rows: list[Row]) -> Measured | None:
    """Microseconds a draw of our Power Spherical takes among others in a CUDA graph."""
    for row in rows:
        if (row["section"], row["method"]) == ("graph", "our_ps"):
            return Measured(1e3 * float(row["milliseconds"]), error(row))
    return None


def _floor_targets(
    size: tuple[int, int], forward: float, backward: float, loc: str = EACH
) -> Iterable[Target]:
    name = "{} × {}, μ {}".format(*size, loc)
    for quantity, most in ((FORWARD, forward), (BACKWARD, backward)):
        for section, part in (("sizes", ""), ("queued", ", the device's time")):
            value = over_floor(size, quantity, loc, section)
            yield Target(f"PS over randn, {name}, {quantity}{part}", value, "≤", most)


def _authors_targets(size: tuple[int, int], forward: float, backward: float) -> Iterable[Target]:
    for quantity, least in ((FORWARD, forward), (BACKWARD, backward)):
        value = quotient("reference_ps", "our_ps", size, quantity)
        yield Target("the authors' PS over ours, {} × {}, {}".format(*size, quantity), value, "≥", least)


def _family_target(size: tuple[int, int]) -> Target:
    value = quotient("our_vmf", "our_ps", size, FORWARD)
    return Target("vMF over PS, {} × {}, {}".format(*size, FORWARD), value, "≤", 2)


_SPREADS = tuple(
    Target(f"PS, slowest over fastest κ, {quantity}", spread("our_ps", quantity), "≤", 1.1)
    for quantity in (FORWARD, BACKWARD)
)

TARGETS = {
    "cpu": (
        *_floor_targets((100_000, 64), 1.7, 2.7),
        *_floor_targets((10_000, 768), 1.7, 2.7),
        *_floor_targets((1000, 10_000), 1.7, 2.7),
        *_authors_targets((100, 64), 4, 3),
        _family_target((100_000, 64)),
        *_SPREADS,
    ),
    "cuda": (
        *_floor_targets((1_000_000, 64), 1.0, 2.6, SHARED),
        *_floor_targets((100_000, 768), 1.0, 2.6, SHARED),
        *_floor_targets((1_000_000, 64), 1.1, 3.2),
        *_floor_targets((100_000, 768), 1.1, 3.2),
        *_floor_targets((10_000, 10_000), 1.6, 3.2),
        *_authors_targets((65_536, 16), 8, 8),
        *_authors_targets((65_536, 64), 8, 8),
        _family_target((1_000_000, 64)),
        Target("PS, 100 × 64, a draw of 20 in a CUDA graph, µs", graphed, "≤", 8),
        *_SPREADS,
    ),
}


def compared(rows: list[Row], device: str) -> list[Row]:
    """Every target that was measured, for each number of threads: what was wanted and what came out."""
    found = []
    for threads in sorted({row["threads"] for row in rows}):
        ours = [row for row in rows if row["threads"] == threads]
        for target in TARGETS[device]:
            measured = target.value(ours)
            if measured is not None:
                outcome = {
                    "wanted": f"{target.relation} {target.limit:g}",
                    "measured": measured.value,
                    "met": target.met(measured),
                }
                found.append({"what": target.what, "threads": threads, **outcome})
    return found
