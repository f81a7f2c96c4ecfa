"""Maps over dimension and concentration: their cells, and how they are drawn."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Array = np.ndarray[Any, np.dtype[Any]]

INK = "#333333"


class Grid(NamedTuple):
    """The cells of a map: a row for each concentration, a column for each dimension."""

    dims: list[int]
    concentrations: list[int]

    @classmethod
    def of(cls, dims: Iterable[int], concentrations: Iterable[int]) -> "Grid":
        """In order; the dimension 1, where there is no sphere to speak of, becomes 2."""
        return cls(sorted({max(dim, 2) for dim in dims}), sorted(set(concentrations)))

    def at(self, which: Array) -> list[list[int]]:
        """The (d, κ) of the cells in `which`."""
        return [[self.dims[j], self.concentrations[i]] for i, j in np.argwhere(which).tolist()]

    def edges(self) -> tuple[Array, Array]:
        """The borders of the cells along both axes, halfway between neighbours on a log scale."""
        return _edges(self.dims), _edges(self.concentrations)


def settled(figure: "Figure") -> "Figure":
    """The figure with its layout computed once, rather than for every file."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _edges(values: Sequence[float]) -> Array:
    logs = np.log10(np.asarray(values, dtype=np.float64))
    steps = np.diff(logs) if len(logs) > 1 else np.array([1.0])
    middles = logs[:-1] + steps[: len(logs) - 1] / 2
    return 10 ** np.concatenate([[logs[0] - steps[0] / 2], middles, [logs[-1] + steps[-1] / 2]])


def mesh(axes: "Axes", cells: Array, grid: Grid, colours: "Colormap", low: float, high: float) -> Any:
    """Colour the cells of a map by their values from `low` to `high`, over logarithmic axes."""
    drawn = axes.pcolormesh(*grid.edges(), cells, cmap=colours, vmin=low, vmax=high, rasterized=True)
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5)
    return drawn


def hatch(axes: "Axes", which: Array, grid: Grid, pattern: str, *, face: str = "none") -> None:
    """Hatch the cells of a map in `which`."""
    from matplotlib.collections import PolyCollection

    if not pattern or not which.any():
        return
    x, y = grid.edges()
    boxes = [np.stack([x[[j, j + 1, j + 1, j]], y[[i, i, i + 1, i + 1]]], -1) for i, j in np.argwhere(which)]
    marks = PolyCollection(boxes, facecolor=face, edgecolor="#22222288", hatch=pattern, linewidth=0, zorder=2)
    axes.add_collection(marks, autolim=False)
