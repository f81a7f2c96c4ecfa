"""The tables and the figure with the results of `sampling.py`."""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from _command import Row, table
from _methods import BACKWARD, FLOOR, FORWARD
from rich.table import Table

from powerspherical.plot import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Label, colour, line and marker. A marker for each implementation: vMF dashed, Power Spherical solid, floors dotted.
LOOKS = {
    "randn": ("randn", "#666666", ":", ""),
    "fill": ("fill", "#BBBBBB", ":", ""),
    "our_ps": ("PS, ours", PALETTE["green"], "-", "o"),
    "our_vmf": ("vMF, ours", PALETTE["orange"], "--", "o"),
    "our_cauchy": ("Cauchy, ours", PALETTE["sky"], "-.", "o"),
    "reference_ps": ("PS, authors'", "#000000", "-", "^"),
    "published_vmf": ("vMF, published", "#A6761D", "--", "v"),
    "scipy_vmf": ("vMF, SciPy", PALETTE["purple"], "--", "D"),
    "jax_normal": ("jax normal", "#999999", ":", ""),
    "tfp_ps": ("PS, TFP", PALETTE["blue"], "-", "s"),
    "tfp_vmf": ("vMF, TFP", PALETTE["vermilion"], "--", "s"),
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


def tables(rows: list[Row], memory: list[Row]) -> Iterator[Table]:
    """Yield the tables of a run: times over those of a floor, and memory."""
    keys = ("floor", "section", "loc", "threads")
    for floor, section, loc, threads in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        setting = dict(zip(keys, (floor, section, loc, threads), strict=True))
        title = f"Time over {FLOORS[floor]}, {SECTIONS[section]}, μ {loc}, threads: {threads}"
        yield by_method([row for row in rows if setting.items() <= row.items()], title, time_cell)
    for loc in dict.fromkeys(row["loc"] for row in memory):
        found = [row for row in memory if row["loc"] == loc]
        title = f"Peak memory beyond the inputs, in outputs, μ {loc}"
        yield by_method(found, title, lambda row: f"{row['outputs']:.2f}")


def time_cell(row: Row) -> str:
    """Return the ratio to the floor as text. Floors show their times, and methods with another floor show both."""
    time = f"{row['milliseconds']:.3g} ms"
    if row["method"] == row["floor"]:
        return time
    return f"{row['ratio']:.2f}" if row["floor"] == FLOOR else f"{row['ratio']:.2f} ({time})"


def by_method(rows: list[Row], title: str, cell: Callable[[Row], str]) -> Table:
    """Return a table with one line per setting and quantity, and one column per method."""
    names = present(rows)
    lines: dict[tuple[object, ...], dict[str, str]] = {}
    for row in rows:
        setting = (
            row["rows"],
            row["dim"],
            f"{row['kappa']:g}",
            row["quantity"].replace(f"{FORWARD} and ", "+ "),
        )
        lines.setdefault(setting, {})[row["method"]] = cell(row)
    headings = ("n", "d", "κ", "", *(LOOKS[name][0].replace(", ", "\n") for name in names))
    cells = ([*setting, *(found.get(name, "–") for name in names)] for setting, found in lines.items())
    return table(title, headings, cells, labels=4)


def present(rows: list[Row]) -> list[str]:
    """Return the methods in the results, in the order of `LOOKS`."""
    return [name for name in LOOKS if any(row["method"] == name for row in rows)]


def figure(rows: list[Row], machine: str) -> "Figure":
    """Return a figure of the times by size, by κ and by d, with the fewest threads and one μ per row."""
    from matplotlib.figure import Figure

    threads = min(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == threads]
    rows = [row for row in rows if row["loc"] == "per row" or row["method"] == "scipy_vmf"]
    result = Figure(figsize=(11, 6.4), facecolor="white", layout="constrained")
    grid = result.subplots(2, 3, sharey="row", width_ratios=(1.5, 1, 1))
    for line, quantity in zip(grid, (FORWARD, BACKWARD), strict=True):
        for axes, section in zip(line, ("sizes", "concentrations", "dimensions"), strict=True):
            found = [row for row in rows if (row["section"], row["quantity"]) == (section, quantity)]
            if section == "sizes":
                points(axes, found)
            else:
                curves(axes, found, "kappa" if section == "concentrations" else "dim")
            axes.set_yscale("log")
            axes.grid(True, axis="both" if axes is not line[0] else "y", color="#dddddd", linewidth=0.6)
        line[0].set_ylabel(f"milliseconds, {quantity}")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    columns = min(len(handles), 7)  # more do not fit into the width
    place = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 8.5}
    result.legend(handles.values(), handles.keys(), **place)
    result.suptitle(f"{machine}, threads: {threads}", fontsize=10, color="#333333")
    return result


def points(axes: "Axes", rows: list[Row]) -> None:
    """Draw the times by size, with the methods side by side and no curve: the sizes differ in both n and d."""
    sizes = sorted({(row["rows"], row["dim"]) for row in rows}, key=math.prod)
    names = present(rows)
    for place, name in enumerate(names):
        label, colour, _, marker = LOOKS[name]
        beside = 0.8 * ((place + 0.5) / len(names) - 0.5)
        own = [row for row in rows if row["method"] == name]
        x = [sizes.index((row["rows"], row["dim"])) + beside for row in own]
        style = {"linestyle": "none", "marker": marker or "_", "markersize": 4 if marker else 8}
        axes.plot(x, [row["milliseconds"] for row in own], color=colour, label=label, **style)
    axes.set_xticks(range(len(sizes)), [f"{n:,}\n× {d:,}" for n, d in sizes], fontsize=7.5)
    axes.set_xlabel("draws $n$ × dimension $d$")


def curves(axes: "Axes", rows: list[Row], key: str) -> None:
    """Draw the times of every method against κ or d. A floor with a single measurement is a horizontal line."""
    for name in present(rows):
        label, colour, line, marker = LOOKS[name]
        found = sorted((row[key], row["milliseconds"]) for row in rows if row["method"] == name)
        style: dict[str, Any] = {"color": colour, "linestyle": line, "label": label}
        if len(found) == 1 and not marker:
            axes.axhline(found[0][1], **style)
        else:
            axes.plot(*zip(*found, strict=True), marker=marker, markersize=4, **style)
    axes.set_xscale("log")
    axes.set_xlabel("concentration $\\kappa$" if key == "kappa" else "dimension $d$, at one $n\\cdot d$")
