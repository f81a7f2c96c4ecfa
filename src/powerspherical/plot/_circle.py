"""The unit circle, with curves and histograms that rise outwards from it."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Circle
from matplotlib.typing import ColorType

from powerspherical.plot._shared import FAINT, Array, side

BINS = 90  # of 4 degrees each


def on_circle(angle: Array) -> Array:
    """Return the points (…, 2) of the unit circle at these angles."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def draw_rim(axes: Axes) -> None:
    """Draw the unit circle on axes without a frame and with equal scales."""
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=FAINT, linewidth=0.9, zorder=3))
    axes.set_aspect("equal")
    axes.margins(0.12)
    axes.set_axis_off()


def bar_heights(points: Array) -> Array:
    """Return the histogram of points (n, 2) over `BINS` equal bins, as densities per radian."""
    counts, _ = np.histogram(np.arctan2(points[:, 1], points[:, 0]), BINS, (-math.pi, math.pi))
    return counts * BINS / (2 * math.pi * len(points))


def draw_bars(axes: Axes, heights: Array, colour: ColorType) -> None:
    """Draw one ring sector per bin, from the unit circle out to 1 + height."""
    edges = np.linspace(-math.pi, math.pi, BINS + 1)
    bars = []
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        if height > 0:
            rim = on_circle(np.linspace(low, high, 6))
            bars.append(np.concatenate([rim, (1 + height) * rim[::-1]]))
    style: Any = {"facecolor": colour, "alpha": 0.32, "edgecolor": "white", "linewidth": 0.5}
    axes.add_collection(PolyCollection(bars, zorder=2, **style))
    axes.autoscale_view()


def draw_name(axes: Axes, direction: Array, radius: float, text: str, colour: ColorType) -> None:
    """Write a text in this direction, just beyond this radius."""
    x, y = radius * direction
    above = "center" if abs(direction[1]) < 0.9 else ("bottom" if y > 0 else "top")
    axes.text(x, y, text, color=colour, fontsize=11, ha=side(direction[0]), va=above)
    axes.update_datalim([(x, y)])
    axes.autoscale_view()
