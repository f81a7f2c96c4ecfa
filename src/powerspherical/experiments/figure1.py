"""Figure 1 of the paper: draws and densities of Power Spherical distributions on the circle and the sphere.

(a) On the circle (d = 2), densities rise outwards from the unit circle over histograms of the draws. The height above
the circle is proportional to the density per radian.
(b) On the sphere (d = 3), draws from three distributions with orthogonal mean directions and different concentrations.
Draws on the far side are shown faintly.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from powerspherical import PowerSpherical
from powerspherical.experiments.results import Outcome, Progress, silent, write_figure, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D

Array = np.ndarray[Any, np.dtype[np.float64]]

FILES = ("figure1.json", "figure1.png", "figure1.svg")
SAMPLES = 1000
BINS = 90  # of 4 degrees each
HEIGHT = 0.36  # height above the unit circle at which a density of 1 is drawn
# Okabe and Ito's palette, which is safe for common colour vision deficiencies.
COLOURS = ("#0072B2", "#D55E00", "#009E73")
INK, FAINT = "#333333", "#9a9a9a"
# The sphere is seen from (1, 1, 1), so that the three axes are 120 degrees apart on the page.
ELEVATION, AZIMUTH = math.degrees(math.asin(1 / math.sqrt(3))), 45.0
EYE = np.array([1.0, 1.0, 1.0]) / math.sqrt(3)
RIGHT = np.array([-1.0, 1.0, 0.0]) / math.sqrt(2)
UP = np.array([-1.0, -1.0, 2.0]) / math.sqrt(6)


@dataclass(frozen=True)
class Component:
    """One distribution of a panel: mean direction, concentration and colour."""

    loc: tuple[float, ...]
    concentration: float
    colour: str

    def distribution(self, device: torch.device | str = "cpu") -> PowerSpherical:
        """The distribution, in float64."""
        return PowerSpherical(torch.tensor(self.loc, dtype=torch.float64, device=device), self.concentration)


def _on_circle(angles: Array) -> Array:
    """The points (…, 2) of the unit circle at these angles."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


CIRCLE = (
    Component((0.0, 1.0), 4.0, COLOURS[0]),
    Component((-math.sqrt(3) / 2, -0.5), 20.0, COLOURS[1]),
    Component((math.sqrt(3) / 2, -0.5), 100.0, COLOURS[2]),
)
SPHERE = (
    Component((0.0, 0.0, 1.0), 10.0, COLOURS[0]),
    Component((1.0, 0.0, 0.0), 50.0, COLOURS[1]),
    Component((0.0, 1.0, 0.0), 500.0, COLOURS[2]),
)


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    samples: int = SAMPLES,
    progress: Progress = silent,
) -> Outcome:
    """Draw both panels and write `figure1.png`, `figure1.svg` and `figure1.json` under `out`.

    `quick` changes nothing, because the figure takes only seconds.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    circle = [component.distribution(device).sample((samples,)).cpu().numpy() for component in CIRCLE]
    sphere = [component.distribution(device).sample((samples,)).cpu().numpy() for component in SPHERE]
    progress(0.2)

    files = write_figure(out, "figure1", figure(circle, sphere))
    progress(0.9)
    files.append(
        write_json(
            out / "figure1.json",
            experiment="figure1",
            seed=seed,
            quick=quick,
            device=device,
            configuration={"samples": samples, "bins": BINS},
            results={"circle": _summary(CIRCLE, circle), "sphere": _summary(SPHERE, sphere)},
            seconds=time.perf_counter() - started,
        )
    )
    progress(1.0)
    return Outcome(files)


def figure(circle: list[Array], sphere: list[Array]) -> "Figure":
    """The figure of the draws: one array (n, 2) per component of `CIRCLE`, one array (n, 3) per one of `SPHERE`."""
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D

    result = Figure(figsize=(7.6, 3.5), facecolor="white")
    left = result.add_axes((0.0, 0.08, 0.48, 0.91))
    draw_circle(left, circle)
    right = result.add_axes((0.5, 0.0, 0.49, 0.97), projection="3d", computed_zorder=False)
    assert isinstance(right, Axes3D)
    draw_sphere(right, sphere)
    for x, text in ((0.225, "(a) On the circle, $d=2$"), (0.745, "(b) On the sphere, $d=3$")):
        result.text(x, 0.025, text, ha="center", va="center", fontsize=10, color=INK)
    return result


def draw_circle(axes: "Axes", draws: list[Array]) -> None:
    """Panel (a): densities and histograms, outwards from the unit circle."""
    angles = np.linspace(-math.pi, math.pi, 1441)
    directions = _on_circle(angles)
    axes.plot(*directions.T, color=FAINT, linewidth=0.9, zorder=3)
    edges = np.linspace(-math.pi, math.pi, BINS + 1)
    for component, points in zip(CIRCLE, draws, strict=True):
        counts, _ = np.histogram(np.arctan2(points[:, 1], points[:, 0]), edges)
        heights = counts / (len(points) * np.diff(edges))
        _histogram(axes, edges, HEIGHT * heights, component.colour)

        density = component.distribution().log_prob(torch.from_numpy(directions)).exp().numpy()
        height = HEIGHT * density
        radius = np.where(height > 0.012, 1 + height, np.nan)  # a lower line would only cover the circle
        x, y = (radius[:, None] * directions).T
        axes.plot(x, y, color=component.colour, linewidth=1.6, solid_capstyle="round", zorder=4)
        x, y = component.loc
        arrow = {"arrowstyle": "-|>", "color": component.colour, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=(x, y), xytext=(0, 0), arrowprops=arrow, zorder=3)
        label_radius = 1.12 + height.max()
        axes.text(
            label_radius * x,
            label_radius * y,
            f"$\\kappa={component.concentration:g}$",
            color=component.colour,
            fontsize=11,
            ha="center" if abs(x) < 0.1 else ("left" if x > 0 else "right"),
            va="bottom" if y > 0.1 else "center",
        )
    axes.set_aspect("equal")
    axes.set_xlim(-2.15, 2.55)
    axes.set_ylim(-1.45, 1.8)
    axes.set_axis_off()


def _histogram(axes: "Axes", edges: Array, heights: Array, colour: str) -> None:
    """Draw the bars of a histogram as ring sectors between the unit circle and 1 + height."""
    from matplotlib.collections import PolyCollection

    bars = []
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        if height > 0:
            rim = _on_circle(np.linspace(low, high, 6))
            bars.append(np.concatenate([rim, (1 + height) * rim[::-1]]))
    axes.add_collection(
        PolyCollection(bars, facecolor=colour, alpha=0.32, edgecolor="white", linewidth=0.5, zorder=2)
    )


def draw_sphere(axes: "Axes3D", draws: list[Array]) -> None:
    """Panel (b): the draws over a shaded sphere.

    matplotlib does not hide points behind a surface. We therefore paint in this order: the sphere, the near side of its
    grid, the far draws (faintly), the near draws, the mean directions.
    """
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_proj_type("ortho")
    axes.set_box_aspect((1, 1, 1), zoom=1.2)
    axes.set_axis_off()
    for setter in (axes.set_xlim, axes.set_ylim, axes.set_zlim):
        setter(-1.02, 1.02)

    _ball(axes)
    _grid(axes)
    for component, points in zip(SPHERE, draws, strict=True):
        depth = points @ EYE
        for near, size, alpha, order in ((False, 5.0, 0.12, 3), (True, 7.0, 0.6, 5)):
            shown = points[(depth >= 0) == near]
            look = {"color": component.colour, "alpha": alpha, "linewidth": 0, "depthshade": False}
            axes.scatter(*shown.T, s=size, zorder=order, **look)
        loc = np.asarray(component.loc)
        axes.plot(*np.stack([loc, 1.35 * loc]).T, color=INK, linewidth=1.1, zorder=6)
        axes.scatter(*loc, s=14, color=INK, depthshade=False, zorder=7)
        axes.text(
            *(1.42 * loc),
            f"$\\kappa={component.concentration:g}$",
            color=component.colour,
            fontsize=11,
            ha=("right", "center", "left")[round(float(np.sign(loc @ RIGHT))) + 1],
            va="bottom" if loc @ UP > 0 else "center",
            zorder=8,
        )


def _ball(axes: "Axes3D") -> None:
    """Draw the sphere, lit from the upper left."""
    polar, around = np.mgrid[0 : math.pi : 91j, 0 : 2 * math.pi : 181j]
    points = np.concatenate(
        [np.sin(polar)[..., None] * _on_circle(around), np.cos(polar)[..., None]], axis=-1
    )
    light = EYE - 0.35 * RIGHT + 0.55 * UP
    brightness = np.clip(points @ light / np.linalg.norm(light), 0, 1)
    grey = 0.80 + 0.18 * brightness
    axes.plot_surface(
        *np.moveaxis(points, -1, 0),
        rstride=1,
        cstride=1,
        facecolors=np.stack([grey, grey, grey], axis=-1),
        shade=False,
        linewidth=0,
        antialiased=False,
        zorder=1,
        rasterized=True,
    )


def _grid(axes: "Axes3D") -> None:
    """Draw meridians and parallels every 30 degrees on the near side, and the outline."""
    along = np.linspace(0, 2 * math.pi, 721)
    cos, sin = np.cos(along), np.sin(along)
    lines = []
    for angle in np.radians(range(0, 180, 30)):
        lines.append(np.stack([sin * np.cos(angle), sin * np.sin(angle), cos], axis=-1))
        level = np.full_like(along, np.cos(angle))
        lines.append(np.stack([np.sin(angle) * cos, np.sin(angle) * sin, level], axis=-1))
    for line in lines:
        near = np.where((line @ EYE >= 0)[:, None], line, np.nan)
        axes.plot(*near.T, color=FAINT, linewidth=0.4, alpha=0.7, zorder=2)
    outline = cos[:, None] * RIGHT + sin[:, None] * UP
    axes.plot(*outline.T, color=FAINT, linewidth=0.8, zorder=4)


def _summary(components: tuple[Component, ...], draws: list[Array]) -> list[dict[str, Any]]:
    """The parameters of each component, the length of its mean, and that of the mean of its draws."""
    return [
        {
            "loc": list(component.loc),
            "concentration": component.concentration,
            "mean_length": float(component.distribution().mean.norm()),
            "sample_mean_length": float(np.linalg.norm(points.mean(axis=0))),
        }
        for component, points in zip(components, draws, strict=True)
    ]
