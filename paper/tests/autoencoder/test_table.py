"""Rows grouped over their seeds, and the figure made of them."""

import math

import pytest

from powerspherical_paper.autoencoder import figures
from powerspherical_paper.autoencoder.table import Kind, collect, deviation, plain
from results_of import vae_row

ROWS = [
    vae_row("gaussian", 10, log_likelihood=-90.0),
    vae_row(dim=10, log_likelihood=-97.0, elbo=-101.0),
    vae_row(seed=0, log_likelihood=-114.0, elbo=-118.0),
    vae_row(seed=1, log_likelihood=-116.0, elbo=-119.0),
    vae_row("von_mises_fisher", 5),
    vae_row("spherical_cauchy", 5, log_likelihood=-117.0),
    vae_row(dim=3, factors=5),
    vae_row(prior="von_mises_fisher"),
    vae_row(proposal="closest_von_mises_fisher"),
    vae_row(protocol="tuned", log_likelihood=-80.0),
]


def test_rows_that_differ_in_their_seed_alone_are_one():
    results = collect(ROWS)
    assert len(results) == len(ROWS) - 1
    posteriors = [kind.posterior for kind in results]
    assert posteriors == ["power_spherical"] * 6 + ["von_mises_fisher", "spherical_cauchy", "gaussian"]
    assert [kind.dim for kind in results][:6] == [3, 5, 5, 5, 5, 10]
    kind = Kind("power_spherical", 5, "uniform", None, None, "paper")
    assert results[kind] == ([-114.0, -116.0], [-118.0, -119.0])
    assert results[kind].means == (-115.0, -118.5)


def test_plain():
    """The paper's setting only: one sphere, the usual prior, no replaced posterior, one protocol."""
    usual = [("power_spherical", 5), ("power_spherical", 10)]
    usual += [("von_mises_fisher", 5), ("spherical_cauchy", 5), ("gaussian", 10)]
    assert list(plain(collect(ROWS))) == usual
    tuned = plain(collect(ROWS), "tuned")
    assert {key: scores.means[0] for key, scores in tuned.items()} == {("power_spherical", 5): -80.0}


def test_deviation():
    assert deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert math.isnan(deviation([1.0]))


@pytest.mark.parametrize("comparable", [True, False])
def test_figure(comparable):
    figure = figures.scores(ROWS, comparable=comparable)
    for axes, mean in zip(figure.axes, (-115.0, -118.5), strict=True):
        handles, labels = axes.get_legend_handles_labels()
        in_the_paper = ["Power Spherical, in the paper", "von Mises–Fisher, in the paper"]
        assert [label for label in labels if "paper" in label] == (in_the_paper if comparable else [])
        assert {"Power Spherical, tuned", "spherical Cauchy"} <= set(labels)
        line = handles[labels.index("Power Spherical")].lines[0]
        assert line.get_ydata()[0] == mean
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["5", "10"]
