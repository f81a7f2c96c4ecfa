"""Densities and cdfs of the cosine t = μᵀx."""

from collections.abc import Iterable, Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from powerspherical.distributions import Marginal, RotationallySymmetric
from powerspherical.plot._shared import angles, cosine_law, distinct_colours, plane_axes


def plot_marginal(
    q: RotationallySymmetric | Marginal | Iterable[RotationallySymmetric | Marginal],
    ax: Axes | None = None,
    *,
    cdf: bool = False,
    labels: Sequence[str] | None = None,
) -> Axes:
    """Plot the density, or the cdf, of the cosine t between x and the mean direction, and return the axes.

    Args:
        q: one distribution or several, of any family and dimension. A batch gives one curve per element.
        ax: the axes to draw on. Default: those of a new pyplot figure.
        cdf: whether to plot P(T ≤ t) instead of the density.
        labels: one text per curve for the legend. Default: family, d and κ.

    The horizontal axis covers all but the outer 0.1 % on either side of each law. On the circle (d = 2) densities are
    infinite at t = ±1: the vertical axis ends at twice the density at the median. To compare distributions, pass all of
    them at once: limits and colours are those of one call.

    >>> import torch
    >>> from powerspherical import PowerSpherical, VonMisesFisher
    >>> loc = torch.eye(64)[0]
    >>> ax = plot_marginal([PowerSpherical(loc, 100.0), VonMisesFisher(loc, torch.tensor([50.0, 100.0]))])
    >>> [line.get_label() for line in ax.lines][:2]
    ['Power Spherical, d = 64, κ = 100', 'von Mises–Fisher, d = 64, κ = 50']
    """
    laws = [cosine_law(one) for one in ([q] if isinstance(q, RotationallySymmetric | Marginal) else q)]
    count = sum(len(law.concentration) for law in laws)
    if not count:
        raise ValueError("q is empty: pass at least one distribution")
    if labels is None:
        titles = ((f"{law.family.title}, d = {law.dim}", law.concentration.tolist()) for law in laws)
        labels = [f"{title}, κ = {kappa:.3g}" for title, kappas in titles for kappa in kappas]
    if len(labels) != count:
        raise ValueError(f"labels has {len(labels)} texts for {count} curves: pass one label per curve")

    axes = plane_axes(ax, (6, 3.6))
    curves = [curve for law in laws for curve in _curves(law, cdf)]
    for label, colour, (t, height, _) in zip(labels, distinct_colours(count), curves, strict=True):
        axes.plot(t, height, color=colour, linewidth=1.8, label=label)
        if not cdf:
            axes.fill_between(t, height, color=colour, alpha=0.1, linewidth=0)
    highest = 1.05 * max(float(top) for _, _, top in curves)
    axes.set(xlim=_range(laws), ylim=(0, highest), xlabel="$t = \\mu^\\top x$")
    axes.set_ylabel("$P(T \\leq t)$" if cdf else "density of $t$")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return axes


def _curves(law: Marginal, cdf: bool) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Return t, the height of the curve and the height to show, for each element of the batch."""
    t = angles(law, 400).cos().flip(0)
    height = law.cdf(t) if cdf else law.log_prob(t).exp()
    top = height.max(dim=0).values
    if law.dim == 2 and not cdf:  # infinite at t = ±1
        top = 2 * law.log_prob(law.icdf(torch.tensor(0.5, dtype=torch.float64))).exp()
    return zip(t.T, torch.where(height.isfinite(), height, torch.nan).T, top, strict=True)


def _range(laws: Sequence[Marginal]) -> tuple[float, float]:
    """Return limits for t that hold 99.8 % of each law, and a margin inside of [-1, 1]."""
    tails = torch.tensor([[0.001], [0.999]], dtype=torch.float64)
    low, high = (torch.cat([law.icdf(tails)[end] for law in laws]) for end in (0, 1))
    margin = 0.05 * float(high.max() - low.min())
    return max(-1.0, float(low.min()) - margin), min(1.0, float(high.max()) + margin)
