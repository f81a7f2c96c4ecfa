"""A density on the circle or the sphere."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.typing import ColorType
from mpl_toolkits.mplot3d import Axes3D

from powerspherical.distributions import Marginal, RotationallySymmetric
from powerspherical.plot import _circle, _globe
from powerspherical.plot._shared import (
    COLOURS,
    INK,
    Array,
    cosine_law,
    plane_axes,
    profile,
    space_axes,
    unit_rows,
)


def plot_density(
    q: RotationallySymmetric,
    ax: Axes | None = None,
    *,
    points: Any = None,
    color: ColorType | None = None,
    label: str | None = None,
    scale: float | None = None,
    view: tuple[float, float] | None = None,
    colorbar: bool = True,
) -> Axes:
    """Plot the density of a distribution on the circle (d = 2) or the sphere (d = 3), and return the axes.

    On the circle the height of a curve above the unit circle is proportional to the density per radian. Call the
    function again with the same axes to compare distributions. On the sphere colours show the density per steradian.

    Args:
        q: one distribution (batch shape ``()``) with a mean direction, of any family.
        ax: the axes to draw on: flat for d = 2, ``projection="3d"`` for d = 3. Default: those of a new pyplot figure.
        points: vectors of shape (n, d) to show too: as a histogram on the circle, as dots on the sphere.
        color: any Matplotlib colour. Default: the next one of a palette on the circle, blue on the sphere.
        label: text at the mean direction. Default: κ. Pass ``""`` for none.
        scale: on the circle, the height at which a density of 1 is drawn. Default: 1, or less for a density that would
            rise above 0.75. To compare distributions, pass the same scale for all.
        view: on the sphere, elevation and azimuth in degrees from which to look. Default: the mean direction is seen
            from the side.
        colorbar: on the sphere, whether to add a colour bar.

    >>> import torch
    >>> from powerspherical import PowerSpherical
    >>> q = PowerSpherical(torch.tensor([0.0, 1.0]), 20.0)
    >>> ax = plot_density(q, points=q.sample((500,)))
    >>> ax = plot_density(PowerSpherical(torch.tensor([1.0, 0.0]), 4.0), ax)
    >>> len(ax.lines)
    2
    """
    law = cosine_law(q)
    if not isinstance(q, RotationallySymmetric):
        raise TypeError(f"q is a {type(q).__name__}, a distribution on [-1, 1]: use plot_marginal")
    if q.dim > 3:
        raise ValueError(f"plot_density can draw d = 2 and d = 3, got d = {q.dim}: use plot_marginal")
    if q.batch_shape:
        raise ValueError(
            f"q has the batch shape {tuple(q.batch_shape)}, but plot_density draws one distribution: "
            f"pass {type(q).__name__}(q.loc[i], q.concentration[i])"
        )
    loc = unit_rows(q.loc[None], q.dim)[0]
    rows = None if points is None else unit_rows(points, q.dim)
    if label is None:
        label = f"κ = {q.concentration.item():.3g}"
    if q.dim == 2:
        flat = plane_axes(ax)
        _on_circle(flat, law, loc, rows, color or COLOURS[len(flat.lines) % len(COLOURS)], label, scale)
        return flat
    axes = space_axes(ax)
    elevation, azimuth = _globe.view_of(loc)
    # From the side, the label is beside the density, not on it.
    _globe.set_view(axes, view or (elevation + (25 if elevation < 25 else -25), azimuth + 35))
    shades = _on_sphere(axes, law, loc, rows, color or COLOURS[0], label)
    if colorbar:
        bar = axes.figure.colorbar(shades, ax=axes, shrink=0.55, aspect=25, label="density per steradian")
        bar.outline.set_visible(False)
    return axes


def _on_circle(
    axes: Axes, law: Marginal, loc: Array, points: Array | None, colour: Any, label: str, scale: float | None
) -> None:
    offsets, heights = profile(law, 360)
    scale = min(1, 0.75 / heights[0]) if scale is None else scale
    offsets = np.concatenate([-offsets[::-1], offsets])
    heights = scale * np.concatenate([heights[::-1], heights])
    _circle.draw_rim(axes)
    if points is not None:
        _circle.draw_bars(axes, scale * _circle.bar_heights(points), colour)
    directions = _circle.on_circle(math.atan2(loc[1], loc[0]) + offsets)
    radius = np.where(heights > 0.012, 1 + heights, np.nan)  # a lower curve would only cover the circle
    style: Any = {"color": colour, "linewidth": 1.6, "solid_capstyle": "round"}
    axes.plot(*(radius[:, None] * directions).T, zorder=4, **style)
    arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(loc[0], loc[1]), xytext=(0, 0), arrowprops=arrow, zorder=3)
    _circle.draw_name(axes, loc, 1.12 + heights.max(), label, colour)


def _on_sphere(
    axes: Axes3D, law: Marginal, loc: Array, points: Array | None, colour: ColorType, label: str
) -> ScalarMappable:
    """Draw on axes whose view is set, and return the colours of the densities."""
    polar, heights = profile(law, 120)
    middle = np.array(to_rgb(colour))
    shades = LinearSegmentedColormap.from_list("density", np.array([[0.97] * 3, middle, 0.4 * middle]))
    scale = Normalize(0, heights.max())
    _globe.draw_ball(axes, _globe.mesh(loc, polar), shades(scale(heights))[:, None, :3])
    if points is not None:
        _globe.draw_points(axes, points, "black")
    if label:
        _globe.draw_name(axes, loc, label, INK)
    return ScalarMappable(scale, shades)
