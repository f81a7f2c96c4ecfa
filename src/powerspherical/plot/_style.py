"""Colours, and new axes in two and three dimensions."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.typing import ColorType
from mpl_toolkits.mplot3d import Axes3D

Array = np.ndarray[Any, np.dtype[np.float64]]

#: The palette of Okabe and Ito without black and yellow.
PALETTE = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
}
COLOURS = tuple(PALETTE.values())
INK, FAINT = "#333333", "#9a9a9a"


def distinct_colours(count: int) -> list[ColorType]:
    """Return `count` different colours. Only the first six are safe for every colour vision."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [to_hex(colour) for colour in matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, count))]


def plane_axes(ax: Axes | None, size: tuple[float, float] = (5, 5)) -> Axes:
    """Return `ax`, or the axes of a new figure of this size in inches."""
    if ax is None:
        return plt.subplots(figsize=size, layout="constrained")[1]
    if isinstance(ax, Axes3D):
        raise ValueError("ax is three-dimensional but this plot is flat: pass plt.figure().add_subplot()")
    return ax


def space_axes(ax: Axes | None) -> Axes3D:
    """Return `ax`, or the axes of a new figure, set up so that artists cover each other by their `zorder`."""
    if ax is None:
        ax = plt.figure(figsize=(5, 5), layout="constrained").add_subplot(projection="3d")
    if not isinstance(ax, Axes3D):
        raise ValueError(
            'ax is flat but d = 3 needs a three-dimensional one: pass plt.figure().add_subplot(projection="3d")'
        )
    ax.computed_zorder = False
    return ax
