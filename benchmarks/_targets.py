"""Targets for the speed of the samplers, compared with the measurements. Timings are reported, never asserted."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from _command import Row
from _methods import BACKWARD, FORWARD

from powerspherical_paper.autoencoder.training_time import relative_error_of_median
from powerspherical_paper.efficiency import interval


class Measured(NamedTuple):
    """A measured value and its relative standard error."""

    value: float
    error: float


Value = Callable[[list[Row]], Measured | None]
"""Maps the results for one number of threads to a measured value, or to `None` if results are missing."""


@dataclass(frozen=True)
class Target:
    """An upper or lower limit for a measured value."""

    what: str
    value: Value
    relation: Literal["≤", "≥"]
    limit: float

    def met(self, measured: Measured) -> bool | None:
        """Whether the target is met. None if the measurement error is too large to tell."""
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
    """Return the ratio of a method to its floor in the result that matches the arguments, or None."""
    for row in rows:
        place = row["section"], (row["rows"], row["dim"]), row["quantity"], row["loc"], row["method"]
        if place == (section, size, quantity, loc, method):
            return Measured(float(row["ratio"]), error(row))
    return None


def error(row: Row) -> float:
    """Return the relative standard error of the time in a result."""
    return relative_error_of_median(row["milliseconds"], row["quartiles"], row["rounds"])


def over(slow: Measured, fast: Measured) -> Measured:
    """Return the quotient of two measured values."""
    return Measured(slow.value / fast.value, math.hypot(slow.error, fast.error))


def quotient(slow: str, fast: str, size: tuple[int, int], quantity: str, section: str = "sizes") -> Value:
    """Return a function for the ratio of the times of two methods, computed from their ratios to the floor."""

    def value(rows: list[Row]) -> Measured | None:
        above, below = (ratio(rows, size, quantity, method, section=section) for method in (slow, fast))
        return over(above, below) if above is not None and below is not None else None

    return value


def spread(method: str, quantity: str) -> Value:
    """Return a function for the ratio of the slowest to the fastest concentration, by their ratios to the floor."""

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
    """Return the microseconds per Power Spherical draw in a CUDA graph of many draws."""
    for row in rows:
        if (row["section"], row["method"]) == ("graph", "our_ps"):
            return Measured(1e3 * float(row["milliseconds"]), error(row))
    return None


NAMES = {"our_ps": "PS", "our_vmf": "vMF", "our_cauchy": "Cauchy", "reference_ps": "the authors' PS"}
PARTS = {"sizes": "", "singles": ", single calls", "queued": ", the device's time"}


def _over_floor(
    method: str,
    size: tuple[int, int],
    forward: float | None,
    backward: float | None,
    loc: str = EACH,
    section: str = "sizes",
) -> Iterable[Target]:
    """Yield upper limits for the times of a method, as multiples of the time of `torch.randn`."""
    for quantity, most in ((FORWARD, forward), (BACKWARD, backward)):
        if most is not None:
            name = f"{NAMES[method]} over randn, {size[0]} × {size[1]}, μ {loc}, {quantity}{PARTS[section]}"
            value = partial(ratio, size=size, quantity=quantity, method=method, loc=loc, section=section)
            yield Target(name, value, "≤", most)


def _over_ours(size: tuple[int, int], forward: float, backward: float, section: str) -> Iterable[Target]:
    """Yield lower limits for the time of the authors' package, as multiples of ours."""
    for quantity, least in ((FORWARD, forward), (BACKWARD, backward)):
        value = quotient("reference_ps", "our_ps", size, quantity, section)
        name = f"the authors' PS over ours, {size[0]} × {size[1]}, {quantity}{PARTS[section]}"
        yield Target(name, value, "≥", least)


def _over_power_spherical(method: str, size: tuple[int, int], limit: float) -> Iterable[Target]:
    """Yield upper limits for the times of another family, as multiples of those of Power Spherical."""
    for quantity in (FORWARD, BACKWARD):
        name = f"{NAMES[method]} over PS, {size[0]} × {size[1]}, {quantity}"
        yield Target(name, quotient(method, "our_ps", size, quantity), "≤", limit)


_SPREADS = tuple(
    Target(f"PS, slowest over fastest κ, {quantity}", spread("our_ps", quantity), "≤", 1.1)
    for quantity in (FORWARD, BACKWARD)
)

TARGETS = {
    "cpu": (
        *_over_floor("our_ps", (100_000, 64), 0.45, 0.7),
        *_over_floor("our_ps", (10_000, 768), 0.42, 0.7),
        *_over_floor("our_ps", (1000, 10_000), 0.42, 0.7),
        *_over_floor("our_ps", (1000, 3), 2.6, 9.5),
        *_over_floor("our_vmf", (100_000, 64), 0.5, 0.8),
        *_over_floor("our_vmf", (1000, 3), 3, 14),
        *_over_ours((100, 64), 12, 7, "singles"),
        *_over_power_spherical("our_cauchy", (100_000, 64), 1),
        *_SPREADS,
    ),
    "cuda": (
        *_over_floor("our_ps", (1_000_000, 64), 0.7, 2.3),
        *_over_floor("our_ps", (1_000_000, 64), 0.7, 2.3, section="queued"),
        *_over_floor("our_ps", (1_000_000, 64), 0.7, 2.3, SHARED, "queued"),
        *_over_floor("our_ps", (65_536, 16), None, 13),
        *_over_floor("our_vmf", (1_000_000, 64), None, 3, section="queued"),
        *_over_floor("our_vmf", (1_000_000, 16), None, 4.5, section="queued"),
        *_over_floor("our_vmf", (1_000_000, 3), None, 6, section="queued"),
        *_over_ours((65_536, 16), 8, 8, "sizes"),
        *_over_ours((65_536, 64), 8, 8, "sizes"),
        *_over_power_spherical("our_cauchy", (1_000_000, 64), 1),
        Target("PS, 100 × 64, a draw of 20 in a CUDA graph, µs", graphed, "≤", 8),
        *_SPREADS,
    ),
}


def compared(rows: list[Row], device: str) -> list[Row]:
    """Return every measured target for each number of threads, with its limit and the measured value."""
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
