"""What all plots share: colours and axes, vectors from the user as unit rows, and distributions as laws of t = μᵀx."""

from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.typing import ColorType
from mpl_toolkits.mplot3d import Axes3D
from torch import Tensor

from powerspherical._torch.rows import row_lengths
from powerspherical.distributions import Marginal, RotationallySymmetric
from powerspherical.families.derived import log_density
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special.gamma import log_sphere_area

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


def side(offset: float) -> str:
    """Return how to align a text that is written at this horizontal offset from the middle."""
    return "center" if abs(offset) < 0.1 else ("left" if offset > 0 else "right")


def unit_rows(x: Any, dim: int | None = None) -> Array:
    """Return vectors (n, d), from an array or a tensor on any device, normalised and in float64.

    Raises `ValueError` unless the shape is right and all rows are finite and not zero. `dim` is the required d.
    """
    x = x.detach().cpu().double().numpy() if isinstance(x, Tensor) else x
    rows = np.array(x, dtype=np.float64)
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] < 2 or (dim is not None and rows.shape[1] != dim):
        raise ValueError(f"points must have the shape (n, {dim or 'd'}), n ≥ 1, got {rows.shape}")
    rows /= row_lengths(rows, "the points").unsqueeze(1).numpy()
    return rows


def cosine_law(q: Any) -> Marginal:
    """Return the law of t of a distribution or marginal, in float64, with its batch flattened to shape (b,)."""
    if not isinstance(q, RotationallySymmetric | Marginal):
        raise TypeError(
            f"q must be a distribution with a mean direction, such as PowerSpherical, got {type(q).__name__}: "
            "plot the factors of a product one by one, and the uniform distribution as PowerSpherical(loc, 0.0)"
        )
    concentration = q.concentration.detach().cpu().double().flatten()
    return Marginal(q.dim, concentration, validate_args=False, family=q.family)


def angles(law: Marginal, count: int) -> Tensor:
    """Return increasing angles from the mean direction, (2·count, b), from 0 to π.

    Half of them are evenly spaced. The others are quantiles, down to tails of 1e-6: they resolve a narrow peak.
    """
    even = torch.linspace(0, torch.pi, count, dtype=torch.float64)
    logit = torch.linspace(-14, 14, count, dtype=torch.float64)[:, None]
    quantile = law.quantile(logit.sigmoid(), (-logit).sigmoid())
    likely = 2 * torch.atan2(quantile.minus.sqrt(), quantile.plus.sqrt())
    return torch.cat([even[:, None].expand(count, len(law.concentration)), likely]).sort(dim=0).values


def profile(law: Marginal, count: int) -> tuple[Array, Array]:
    """Return increasing angles from the mean direction and the densities there, (2·count,) each, for a batch of one."""
    angle = angles(law, count)
    t = Cosine(2 * (angle / 2).sin().square(), 2 * (angle / 2).cos().square())
    relative = log_density(law.family, t, law.concentration, law.dim)
    density = (relative - log_sphere_area(law.dim)).exp()
    return angle.squeeze(-1).numpy(), density.squeeze(-1).numpy()
