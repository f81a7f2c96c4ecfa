"""What the samplers are meant to reach, beside what was measured. Timings are reported, never asserted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from _methods import BACKWARD, FORWARD

Row = dict[str, Any]
Value = Callable[[list[Row]], float | None]
"""From the rows of one number of threads to a measured value, or `None` where its rows are missing."""


@dataclass(frozen=True)
class Target:
    """A value that should be at most, or at least, so much."""

    what: str
    value: Value
    relation: Literal["≤", "≥"]
    limit: float

    def met(self, measured: float) -> bool:
        return measured <= self.limit if self.relation == "≤" else measured >= self.limit


def ratio(rows: list[Row], size: tuple[int, int], quantity: str, method: str) -> float | None:
    """How many times its floor a method takes, at a size and with a μ for each row."""
    for row in rows:
        place = row["section"], (row["rows"], row["dim"]), row["quantity"], row["loc"], row["method"]
        if place == ("sizes", size, quantity, "per row", method):
            return float(row["ratio"])
    return None


def over_floor(size: tuple[int, int], quantity: str) -> Value:
    """Our Power Spherical over the floor."""
    return lambda rows: ratio(rows, size, quantity, "our_ps")


def quotient(slow: str, fast: str, size: tuple[int, int], quantity: str) -> Value:
    """How many times as long one method takes as another, by their ratios to the floor."""

    def value(rows: list[Row]) -> float | None:
        above, below = (ratio(rows, size, quantity, method) for method in (slow, fast))
        return above / below if above is not None and below is not None else None

    return value


def spread(method: str, quantity: str) -> Value:
    """The slowest over the fastest concentration."""

    def value(rows: list[Row]) -> float | None:
        wanted = ("concentrations", quantity, method)
        times = [
            row["milliseconds"] for row in rows if (row["section"], row["quantity"], row["method"]) == wanted
        ]
        return max(times) / min(times) if times else None

    return value


def _floor_targets(size: tuple[int, int]) -> Iterable[Target]:
    name = "{} × {}".format(*size)
    yield Target(f"PS over randn, {name}, {FORWARD}", over_floor(size, FORWARD), "≤", 1.7)
    yield Target(f"PS over randn, {name}, {BACKWARD}", over_floor(size, BACKWARD), "≤", 2.7)


def _authors(quantity: str) -> Value:
    return quotient("reference_ps", "our_ps", (100, 64), quantity)


TARGETS = (
    *(target for size in ((100_000, 64), (10_000, 768), (1000, 10_000)) for target in _floor_targets(size)),
    Target(f"the authors' PS over ours, 100 × 64, {FORWARD}", _authors(FORWARD), "≥", 4),
    Target(f"the authors' PS over ours, 100 × 64, {BACKWARD}", _authors(BACKWARD), "≥", 3),
    Target(
        f"vMF over PS, 100000 × 64, {FORWARD}",
        quotient("our_vmf", "our_ps", (100_000, 64), FORWARD),
        "≤",
        2,
    ),
    Target(f"PS, slowest over fastest κ, {FORWARD}", spread("our_ps", FORWARD), "≤", 1.1),
)


def compared(rows: list[Row]) -> list[Row]:
    """Every target that was measured, for each number of threads: what was wanted and what came out."""
    found = []
    for threads in sorted({row["threads"] for row in rows}):
        ours = [row for row in rows if row["threads"] == threads]
        for target in TARGETS:
            measured = target.value(ours)
            if measured is not None:
                outcome = {
                    "wanted": f"{target.relation} {target.limit:g}",
                    "measured": measured,
                    "met": target.met(measured),
                }
                found.append({"what": target.what, "threads": threads, **outcome})
    return found
