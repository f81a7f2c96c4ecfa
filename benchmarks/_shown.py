"""The tables and the figure with the results of `sampling.py`."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from _command import Row, table
from _methods import BACKWARD, FLOOR, FORWARD
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, a marker for each implementation: vMF dashed, Power Spherical solid, floors dotted.
LOOKS = {
    "randn": ("randn", "#666666", ":", ""),
    "fill": ("fill", "#BBBBBB", ":", ""),
    "our_ps": ("PS, ours", "#009E73", "-", "o"),
    "our_vmf": ("vMF, ours", "#E69F00", "--", "o"),
    "our_cauchy": ("Cauchy, ours", "#56B4E9", "-.", "o"),
    "reference_ps": ("PS, authors'", "#000000", "-", "^"),
    "published_vmf": ("vMF, published", "#A6761D", "--", "v"),
    "scipy_vmf": ("vMF, SciPy", "#CC79A7", "--", "D"),
    "jax_normal": ("jax normal", "#999999", ":", ""),
    "tfp_ps": ("PS, TFP", "#0072B2", "-", "s"),
    "tfp_vmf": ("vMF, TFP", "#D55E00", "--", "s"),
}
FLOORS = {"randn": "torch.randn", "jax_normal": "jax.random.normal"}
SECTIONS = {
    "sizes": "by size",
    "singles": "by size, single calls",
    "concentrations": "by concentration",
    "dimensions": "by dimension",
    "queued": "by size, the device's time",
    "graph": "in a CUDA graph",
}


def tables(content: dict[str, Any]) -> Iterator[Table]:
    """Yield the tables of a run: times (one table per title), memory and targets."""
    parts: dict[str, list[Row]] = {}
    for row in content["results"]:
        title = (
            f"Time over {FLOORS[row['floor']]}, {SECTIONS[row['section']]}, μ {row['loc']}, "
            f"{counted(row['threads'])}"
        )
        parts.setdefault(title, []).append(row)
    for title, rows in parts.items():
        yield by_method(rows, title, time_cell)
    memory_title = "Peak memory beyond the inputs, in outputs, μ {}"
    for loc in ("per row", "shared"):
        rows = [row for row in content["memory"] if row["loc"] == loc]
        yield by_method(rows, memory_title.format(loc), lambda row: f"{row['outputs']:.2f}")
    yield targets_table(content["targets"])


def size(row: Row) -> str:
    return f"{row['rows']} × {row['dim']}"


def brief(number: int) -> str:
    """A number for the label of an axis, such as 65k."""
    for unit, letter in ((1_000_000, "M"), (1000, "k")):
        if number >= unit:
            return f"{number // unit}{letter}"
    return str(number)


def counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def time_cell(row: Row) -> str:
    """Return the ratio to the floor as text. Floors show their times, and methods with another floor show both."""
    time = f"{row['milliseconds']:.3g} ms"
    if row["method"] == row["floor"]:
        return time
    return f"{row['ratio']:.2f}" if row["floor"] == FLOOR else f"{row['ratio']:.2f} ({time})"


def by_method(rows: list[Row], title: str, cell: Callable[[Row], str]) -> Table:
    """Return a table with one line per setting and quantity, and one column per method."""
    names = [name for name in LOOKS if any(row["method"] == name for row in rows)]
    several = len({row["kappa"] for row in rows}) > 1
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = f"{row['kappa']:g}" if several else size(row), row["quantity"].replace(f"{FORWARD} and ", "+ ")
        lines.setdefault(line, {})[row["method"]] = cell(row)
    headings = ("κ" if several else "n × d", "", *(LOOKS[name][0].replace(", ", "\n") for name in names))
    return table(title, headings, filled(lines, names), labels=2)


def targets_table(rows: list[Row]) -> Table:
    """Return a table with one line per target, and one column per number of threads."""
    counts = sorted({row["threads"] for row in rows})
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        mark = {True: "", False: " ✗", None: " ?"}[row["met"]]
        lines.setdefault((row["what"], row["wanted"]), {})[row["threads"]] = f"{row['measured']:.2f}{mark}"
    title = "Targets (✗ missed, ? not measurable: the times spread too widely)"
    return table(title, ("", "wanted", *map(counted, counts)), filled(lines, counts))


def filled(lines: dict[tuple[str, str], dict[Any, str]], keys: Iterable[Any]) -> Iterator[list[str]]:
    """Yield the lines of a table: their labels and the cells of all keys, with dashes for missing ones."""
    for labels, cells in lines.items():
        yield [*labels, *(cells.get(key, "–") for key in keys)]


def figure(rows: list[Row], machine: str) -> "Figure":
    """Return a figure of the times by size, by κ and by d, with the fewest threads and one μ per row.

    The sizes differ in both n and d, so they are drawn as points without a curve.
    """
    from matplotlib.figure import Figure

    threads = min(row["threads"] for row in rows)
    rows = [
        row
        for row in rows
        if row["threads"] == threads and (row["loc"] == "per row" or row["method"] == "scipy_vmf")
    ]
    result = Figure(figsize=(11, 6.4), facecolor="white", layout="constrained")
    grid = result.subplots(2, 3, sharey="row", width_ratios=(1.5, 1, 1))
    curves = {
        "concentrations": ("concentration $\\kappa$", lambda row: row["kappa"]),
        "dimensions": ("dimension $d$, at one $n\\cdot d$", lambda row: row["dim"]),
    }
    for (left, *others), quantity in zip(grid, (FORWARD, BACKWARD), strict=True):
        parts: dict[str, list[Row]] = {}
        for row in rows:
            if row["quantity"] == quantity:
                parts.setdefault(row["section"], []).append(row)
        _points(left, parts.get("sizes", []))
        for axes, (section, (label, position)) in zip(others, curves.items(), strict=True):
            _curves(axes, parts.get(section, []), position)
            axes.set_xlabel(label)
        left.set_ylabel(f"milliseconds, {quantity}")
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    result.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        ncols=min(len(handles), 7),  # more do not fit into the width
        loc="outside lower center",
        fontsize=8.5,
    )
    result.suptitle(f"{machine}, {counted(threads)}", fontsize=10, color="#333333")
    return result


def _points(axes: "Axes", rows: list[Row]) -> None:
    """Draw the median times by size, with the methods side by side. Floors are dashes."""
    sizes = sorted({(row["rows"], row["dim"]) for row in rows}, key=math.prod)
    names = [name for name in LOOKS if any(row["method"] == name for row in rows)]
    for place, name in enumerate(names):
        label, colour, _, marker = LOOKS[name]
        own = [row for row in rows if row["method"] == name]
        beside = 0.8 * ((place + 0.5) / len(names) - 0.5)
        axes.plot(
            [sizes.index((row["rows"], row["dim"])) + beside for row in own],
            [row["milliseconds"] for row in own],
            color=colour,
            linestyle="none",
            marker=marker or "_",
            markersize=4 if marker else 8,
            label=label,
        )
    axes.set_xticks(
        range(len(sizes)), [f"{brief(count)}\n× {brief(dim)}" for count, dim in sizes], fontsize=8.5
    )
    axes.set_xlabel("draws $n$ × dimension $d$")
    axes.set_yscale("log")
    axes.grid(True, axis="y", which="major", color="#dddddd", linewidth=0.6)


def _curves(axes: "Axes", rows: list[Row], position: Callable[[Row], float]) -> None:
    """Draw the median times of every method. A floor with a single measurement is a horizontal line."""
    for name, (label, colour, line, marker) in LOOKS.items():
        points = sorted((position(row), row["milliseconds"]) for row in rows if row["method"] == name)
        style: dict[str, Any] = {"color": colour, "linestyle": line, "label": label}
        if len(points) == 1 and not marker:
            axes.axhline(points[0][1], **style)
        elif points:
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
