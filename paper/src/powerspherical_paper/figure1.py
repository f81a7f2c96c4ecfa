"""Figure 1 of the paper: draws and densities of Power Spherical distributions on the circle and the sphere.

(a) On the circle (d = 2), densities rise outwards from the unit circle over histograms of the draws. The height above
the circle is proportional to the density per radian.
(b) On the sphere (d = 3), draws from three distributions with orthogonal mean directions and different concentrations.
Draws on the far side are shown faintly. The dots are the mean directions of the draws.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from powerspherical import PowerSpherical
from powerspherical_paper._maps import INK
from powerspherical_paper.results import Outcome, Progress, silent, write_figure, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, np.dtype[np.float64]]

FILES = ("figure1.json", "figure1.png")
SAMPLES = 1000
HEIGHT = 0.36  # height above the unit circle at which a density of 1 is drawn
# The sphere is seen from (1, 1, 1), so that the three axes are 120 degrees apart on the page.
VIEW = (math.degrees(math.asin(1 / math.sqrt(3))), 45.0)


@dataclass(frozen=True)
class Component:
    """One distribution of a panel: mean direction and concentration."""

    loc: tuple[float, ...]
    concentration: float

    @property
    def label(self) -> str:
        """The concentration, for the figure."""
        return f"$\\kappa={self.concentration:g}$"

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


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    samples: int = SAMPLES,
    progress: Progress = silent,
) -> Outcome:
    """Draw both panels and write `figure1.png` and `figure1.json` under `out`.

    `quick` changes nothing, because the figure takes only seconds.
    """
    started = time.perf_counter()
    torch.manual_seed(seed)
    circle = [component.distribution(device).sample((samples,)).cpu().numpy() for component in CIRCLE]
    sphere = [component.distribution(device).sample((samples,)).cpu().numpy() for component in SPHERE]
    progress(0.2)

    picture = write_figure(out, "figure1", figure(circle, sphere))
    progress(0.9)
    document = write_json(
        out / "figure1.json",
        experiment="figure1",
        seed=seed,
        quick=quick,
        device=device,
        configuration={"samples": samples},
        results={"circle": _summary(CIRCLE, circle), "sphere": _summary(SPHERE, sphere)},
        seconds=time.perf_counter() - started,
    )
    progress(1.0)
    return Outcome([picture, document])


def figure(circle: list[Array], sphere: list[Array]) -> "Figure":
    """The figure of the draws: one array (n, 2) per component of `CIRCLE`, one array (n, 3) per one of `SPHERE`."""
    from matplotlib.figure import Figure

    from powerspherical.plot import plot_clusters, plot_density

    result = Figure(figsize=(7.6, 3.5), facecolor="white")
    left = result.add_axes((0.0, 0.08, 0.48, 0.91))
    for component, points in zip(CIRCLE, circle, strict=True):
        plot_density(component.distribution(), left, points=points, label=component.label, scale=HEIGHT)
    left.set(xlim=(-2.15, 2.55), ylim=(-1.45, 1.8))
    right = result.add_axes((0.5, 0.0, 0.49, 0.97), projection="3d")
    labels = np.repeat(np.arange(len(SPHERE)), [len(points) for points in sphere])
    plot_clusters(np.concatenate(sphere), labels, right, names=[one.label for one in SPHERE], view=VIEW)
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
