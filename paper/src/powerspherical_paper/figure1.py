"""Figure 1 of the paper: draws and densities of Power Spherical distributions on the circle and the sphere.

(a) On the circle (d = 2), densities rise outwards from the unit circle over histograms of the draws. The height above
the circle is proportional to the density per radian.
(b) On the sphere (d = 3), draws from three distributions with orthogonal mean directions and different concentrations.
Draws on the far side are shown faintly. The dots are the mean directions of the draws.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from powerspherical import PowerSpherical
from powerspherical_paper.maps import INK
from powerspherical_paper.results import Outcome, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, np.dtype[np.float64]]

FILES = ("figure1.json", "figure1.png")
SAMPLES = 1000
HEIGHT = 0.36  # height above the unit circle at which a density of 1 is drawn
# The sphere is seen from (1, 1, 1), so that the three axes are 120 degrees apart on the page.
VIEW = (math.degrees(math.asin(1 / math.sqrt(3))), 45.0)


class Component(NamedTuple):
    """One distribution of a panel: mean direction and concentration."""

    loc: tuple[float, ...]
    concentration: float

    def distribution(self, device: torch.device | str = "cpu") -> PowerSpherical:
        """The distribution, in float64."""
        return PowerSpherical(torch.tensor(self.loc, dtype=torch.float64, device=device), self.concentration)


CIRCLE = (
    Component((0.0, 1.0), 4.0),
    Component((-math.sqrt(3) / 2, -0.5), 20.0),
    Component((math.sqrt(3) / 2, -0.5), 100.0),
)
SPHERE = (
    Component((0.0, 0.0, 1.0), 10.0),
    Component((1.0, 0.0, 0.0), 50.0),
    Component((0.0, 1.0, 0.0), 500.0),
)


def run(task: Task) -> Outcome:
    """Draw both panels and write `figure1.png` and `figure1.json`; `quick` changes nothing, it takes only seconds."""
    torch.manual_seed(task.seed)
    circle, sphere = (
        [one.distribution(task.device).sample((SAMPLES,)).cpu().numpy() for one in panel]
        for panel in (CIRCLE, SPHERE)
    )
    task.progress(0.2)
    picture = task.draw("figure1", figure(circle, sphere))
    results = {"circle": _summary(CIRCLE, circle), "sphere": _summary(SPHERE, sphere)}
    return Outcome([picture, task.write("figure1", {"samples": SAMPLES}, results)])


def figure(circle: list[Array], sphere: list[Array]) -> "Figure":
    """The figure of the draws: one array (n, 2) per component of `CIRCLE`, one array (n, 3) per one of `SPHERE`."""
    from matplotlib.figure import Figure

    from powerspherical.plot import plot_clusters, plot_density

    result = Figure(figsize=(7.6, 3.5), facecolor="white")
    left = result.add_axes((0.0, 0.08, 0.48, 0.91))
    labels = [[f"$\\kappa={one.concentration:g}$" for one in panel] for panel in (CIRCLE, SPHERE)]
    for component, points, label in zip(CIRCLE, circle, labels[0], strict=True):
        plot_density(component.distribution(), left, points=points, label=label, scale=HEIGHT)
    left.set(xlim=(-2.15, 2.55), ylim=(-1.45, 1.8))
    right = result.add_axes((0.5, 0.0, 0.49, 0.97), projection="3d")
    owners = np.repeat(np.arange(len(SPHERE)), [len(points) for points in sphere])
    plot_clusters(np.concatenate(sphere), owners, right, names=labels[1], view=VIEW)
    for x, text in ((0.225, "(a) On the circle, $d=2$"), (0.745, "(b) On the sphere, $d=3$")):
        result.text(x, 0.025, text, ha="center", va="center", fontsize=10, color=INK)
    return result


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
