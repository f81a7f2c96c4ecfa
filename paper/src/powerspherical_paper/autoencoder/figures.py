"""The figure of the auto-encoders: their scores against the dimension."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from powerspherical.plot import PALETTE
from powerspherical_paper import claims
from powerspherical_paper.autoencoder.runs import Row
from powerspherical_paper.autoencoder.table import PAPER, POSTERIORS, collect, deviation, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colour, marker, and a factor on d that keeps points from covering each other.
LOOKS = {
    "power_spherical": (PALETTE["green"], "o", 0.94),
    "von_mises_fisher": (PALETTE["vermilion"], "s", 0.98),
    "spherical_cauchy": (PALETTE["purple"], "D", 1.02),
    "gaussian": (PALETTE["blue"], "^", 1.06),
}
QUANTITIES = {"log_likelihood": "test log-likelihood (nats)", "elbo": "test ELBO (nats)"}


def scores(rows: Sequence[Row], *, comparable: bool) -> "Figure":
    """Both scores against d: solid lines for the paper's protocol, dotted for the tuned one, crosses for the paper.

    `comparable` tells whether the data are the paper's, so that its numbers are shown.
    """
    from matplotlib.figure import Figure

    results = collect(rows)
    dims = sorted({kind.dim for kind in results if kind.factors is None})
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (quantity, label) in zip(figure.subplots(1, 2), QUANTITIES.items(), strict=True):
        for protocol, line in ((PAPER, "-"), ("tuned", ":")):
            found = plain(results, protocol)
            for posterior, name in POSTERIORS.items():
                colour, marker, shift = LOOKS[posterior]
                values = {dim: getattr(found[q, dim], quantity) for q, dim in found if q == posterior}
                if values:
                    axes.errorbar(
                        [dim * shift for dim in values],
                        [statistics.fmean(seeds) for seeds in values.values()],
                        [deviation(seeds) if len(seeds) > 1 else 0.0 for seeds in values.values()],
                        color=colour,
                        marker=marker,
                        markerfacecolor=colour if protocol == PAPER else "white",
                        linestyle=line,
                        linewidth=1.2,
                        markersize=5,
                        capsize=2,
                        label=name if protocol == PAPER else f"{name}, tuned",
                    )
        if comparable:
            for posterior, published in claims.VAE.items():
                colour, _, shift = LOOKS[posterior]
                axes.plot(
                    [dim * shift for dim in published],
                    [getattr(score, quantity) for score in published.values()],
                    linestyle="none",
                    marker="x",
                    markersize=9,
                    markeredgewidth=1.6,
                    color=colour,
                    zorder=5,
                    label=f"{POSTERIORS[posterior]}, in the paper",
                )
        axes.set_xscale("log", base=2)
        axes.set_xticks(dims, [str(dim) for dim in dims])
        axes.minorticks_off()
        axes.set(xlabel="$d$", ylabel=label)
        axes.grid(True, color="#dddddd", linewidth=0.6)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=3, frameon=False, fontsize=8.5)
    return figure
