"""Maps over dimension and concentration: a grid of cells, and how to draw it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

Array = np.ndarray[Any, np.dtype[Any]]

INK = "#333333"


class Grid(NamedTuple):
    """The cells of a map: one row per concentration, one column per dimension."""

    dims: list[int]
    concentrations: list[int]

    @classmethod
    def of(cls, dims: Iterable[int], concentrations: Iterable[int]) -> "Grid":
        """A sorted grid without repetitions. Dimension 1, which has no sphere, is replaced by 2."""
        return cls(sorted({max(dim, 2) for dim in dims}), sorted(set(concentrations)))

    def at(self, which: Array) -> list[list[int]]:
        """The pairs (d, κ) of the cells where the mask `which` is true."""
        return [[self.dims[j], self.concentrations[i]] for i, j in np.argwhere(which).tolist()]

    def edges(self) -> tuple[Array, Array]:
        """The cell borders along both axes, halfway between neighbours on a log scale."""
        return _edges(self.dims), _edges(self.concentrations)


def _edges(values: Sequence[float]) -> Array:
    logs = np.log10(np.asarray(values, dtype=np.float64))
    half_steps = np.diff(logs) / 2 if len(logs) > 1 else np.array([0.5])
    middles = (logs[:-1] + logs[1:]) / 2
    return 10 ** np.concatenate([[logs[0] - half_steps[0]], middles, [logs[-1] + half_steps[-1]]])


def mesh(axes: "Axes", cells: Array, grid: Grid, colours: "Colormap", low: float, high: float) -> Any:
    """Colour the cells by their values, from `low` to `high`, on logarithmic axes."""
    drawn = axes.pcolormesh(*grid.edges(), cells, cmap=colours, vmin=low, vmax=high, rasterized=True)
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.tick_params(labelsize=8.5)
    return drawn


def hatch(axes: "Axes", which: Array, grid: Grid, pattern: str, *, face: str = "none") -> None:
    """Hatch the cells where the mask `which` is true."""
    from matplotlib.collections import PolyCollection

    if not pattern or not which.any():
        return
    x, y = grid.edges()
    boxes = [np.stack([x[[j, j + 1, j + 1, j]], y[[i, i, i + 1, i + 1]]], -1) for i, j in np.argwhere(which)]
    marks = PolyCollection(boxes, facecolor=face, edgecolor="#22222288", hatch=pattern, linewidth=0, zorder=2)
    axes.add_collection(marks, autolim=False)
