"""The unit sphere in three dimensions, with colours, points and names on it.

Matplotlib does not hide points behind a surface. The functions here therefore give each artist a `zorder`: the sphere,
the near side of its grid, the far points (faint), the near points, the names.
"""

import math

import numpy as np
from matplotlib.patheffects import withStroke
from matplotlib.typing import ColorType
from mpl_toolkits.mplot3d import Axes3D
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from powerspherical.plot._shared import FAINT, INK, Array, side

View = tuple[float, float]  # elevation and azimuth in degrees


def view_of(direction: Array) -> View:
    """Return the view from this direction, or a default view if it is zero."""
    if np.linalg.norm(direction) < 1e-6:
        return 25.0, 40.0
    x, y, z = direction
    return math.degrees(math.atan2(z, math.hypot(x, y))), math.degrees(math.atan2(y, x))


def camera(axes: Axes3D) -> tuple[Array, Array, Array]:
    """Return the unit vectors towards the viewer, to the right and up."""
    elevation, azimuth = math.radians(axes.elev), math.radians(axes.azim)
    level = np.array([math.cos(azimuth), math.sin(azimuth), 0.0])
    pole = np.array([0.0, 0.0, 1.0])
    eye = math.cos(elevation) * level + math.sin(elevation) * pole
    right = np.array([-level[1], level[0], 0.0])
    return eye, right, math.cos(elevation) * pole - math.sin(elevation) * level


def set_view(axes: Axes3D, view: View) -> None:
    """Look at the unit sphere from this side, without perspective, frame and ticks."""
    axes.view_init(elev=view[0], azim=view[1])
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.1)
    axes.set_axis_off()
    for setter in (axes.set_xlim, axes.set_ylim, axes.set_zlim):
        setter(-1.02, 1.02)


def mesh(pole: Array, polar: Array) -> Array:
    """Return the points (n, 121, 3) of circles around `pole` at these polar angles (n,)."""
    _, _, (_, first, second) = np.linalg.svd(pole[None, :])  # the other rows are orthogonal to the pole
    around = np.linspace(0, 2 * math.pi, 121)[:, None]
    ring = np.cos(around) * first + np.sin(around) * second
    return np.cos(polar)[:, None, None] * pole + np.sin(polar)[:, None, None] * ring


def draw_ball(axes: Axes3D, points: Array, colours: Array) -> None:
    """Draw a mesh (n, m, 3) of the sphere, lit from the upper left, in RGB colours that broadcast to its shape."""
    eye, right, up = camera(axes)
    light = eye - 0.35 * right + 0.55 * up
    brightness = np.clip(points @ light / np.linalg.norm(light), 0, 1)[..., None]
    lit = (0.82 + 0.18 * brightness) * colours
    # plot_surface would take ten times as long, because it converts the colour of each face by itself.
    corners = np.stack([points[:-1, :-1], points[1:, :-1], points[1:, 1:], points[:-1, 1:]], axis=2)
    colour = np.broadcast_to(lit, points.shape)[:-1, :-1]
    style = {"linewidth": 0, "antialiased": False, "rasterized": True, "zorder": 1}
    faces = Poly3DCollection(corners.reshape(-1, 4, 3), facecolors=colour.reshape(-1, 3), **style)
    axes.add_collection3d(faces)
    _draw_grid(axes)


def _draw_grid(axes: Axes3D) -> None:
    """Draw meridians and parallels every 30 degrees on the near side, and the outline."""
    eye, right, up = camera(axes)
    along = np.linspace(0, 2 * math.pi, 721)
    cos, sin = np.cos(along), np.sin(along)
    lines = []
    for angle in np.radians(range(0, 180, 30)):
        lines.append(np.stack([sin * np.cos(angle), sin * np.sin(angle), cos], axis=-1))
        level = np.full_like(along, np.cos(angle))
        lines.append(np.stack([np.sin(angle) * cos, np.sin(angle) * sin, level], axis=-1))
    for line in lines:
        near = np.where((line @ eye >= 0)[:, None], line, np.nan)
        axes.plot(*near.T, color=FAINT, linewidth=0.4, alpha=0.7, zorder=2)
    outline = cos[:, None] * right + sin[:, None] * up
    axes.plot(*outline.T, color=FAINT, linewidth=0.8, zorder=4)


def draw_points(axes: Axes3D, points: Array, colour: ColorType) -> None:
    """Draw points (n, 3), faintly on the far side."""
    near = points @ camera(axes)[0] >= 0
    style = {"color": colour, "linewidth": 0, "depthshade": False}
    for which, size, alpha, order in ((~near, 5.0, 0.12, 3), (near, 7.0, 0.6, 5)):
        axes.scatter(*points[which].T, s=size, alpha=alpha, zorder=order, **style)


def draw_name(axes: Axes3D, direction: Array, text: str, colour: ColorType) -> None:
    """Mark a direction with a dot, and write a text at the end of a line that sticks out there."""
    eye, right, up = camera(axes)
    near = direction @ eye >= 0
    shown = {"alpha": 1.0 if near else 0.3}
    axes.plot(*np.stack([direction, 1.3 * direction]).T, color=INK, linewidth=1.1, zorder=6, **shown)
    axes.scatter(*direction, s=14, color=INK, depthshade=False, zorder=7, **shown)
    place = {"ha": side(float(direction @ right)), "va": "bottom" if direction @ up > 0 else "center"}
    halo = [withStroke(linewidth=2.5, foreground="white")]
    axes.text(
        *(1.36 * direction), text, color=colour, fontsize=11, zorder=8, path_effects=halo, **place, **shown
    )
