"""Choosing a mixture: the split, the numbers, that the truth is found, and the figure."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from helpers.clusters import clustered
from helpers.examples import directions
from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.mixture import PowerSphericalMixture, VonMisesFisherMixture, compare, plot_comparison

X, _ = clustered(600)
LAZY = da.from_array(X)


def test_held_out_rows_are_not_seen() -> None:
    """Other rows in their place change the score, and nothing of the fit."""
    test = np.zeros(len(X), dtype=bool)
    test[np.random.RandomState(4).choice(len(X), 150, replace=False)] = True
    others = np.where(test[:, None], -X, X)
    for choice, again in zip(
        *(compare(x, [2, 3], held_out=0.25, random_state=4) for x in (X, others)), strict=True
    ):
        np.testing.assert_array_equal(choice.mixture.mean_directions_, again.mixture.mean_directions_)
        assert choice.training == again.training
        assert choice.held_out > again.held_out + 1
        assert choice.training == pytest.approx(choice.mixture.score(X[~test]), rel=1e-12)
        assert choice.held_out == pytest.approx(choice.mixture.score(X[test]), rel=1e-12)
        assert choice.bic == pytest.approx(choice.mixture.bic(X[~test]), rel=1e-12)


def test_both_criteria_find_the_number_of_components() -> None:
    choices = compare(X, range(1, 7), random_state=0)
    assert [(c.model, c.n_components) for c in choices[5:7]] == [
        ("Power Spherical, tied", 6),
        ("von Mises–Fisher, tied", 1),
    ]
    assert min(choices, key=lambda choice: choice.bic).n_components == 3
    gain = {c.n_components: c.held_out for c in choices if c.model.startswith("von")}
    assert gain[3] > gain[2] + 0.1
    assert all(gain[k] < gain[3] + 0.05 for k in (4, 5, 6))


@pytest.mark.parametrize("family", [PowerSpherical, VonMisesFisher, SphericalCauchy])
def test_the_true_family_wins(family: type) -> None:
    torch.manual_seed(1)
    rows = family(directions(3), 3.0).sample((8000,))
    best = max(compare(rows, [1], random_state=0), key=lambda choice: choice.held_out)
    assert best.mixture.distribution is family


@pytest.mark.parametrize(
    "kind",
    [da.from_array, torch.from_numpy, csr_array, np.ndarray.tolist],
    ids=["Dask", "torch", "sparse", "list"],
)
def test_rows_of_every_kind(kind) -> None:
    for a, b in zip(*(compare(x, [3], random_state=0) for x in (X, kind(X))), strict=True):
        assert (b.held_out, b.bic) == pytest.approx((a.held_out, a.bic), rel=1e-9)


def test_models_bring_their_settings() -> None:
    models = {
        "free": PowerSphericalMixture(concentration_type="free"),
        "loose": VonMisesFisherMixture(tol=1e-3),
    }
    free, loose = compare(X, [3], models=models, random_state=0)
    assert (free.model, free.mixture.concentration_type) == ("free", "free")
    assert (loose.model, loose.mixture.tol) == ("loose", 1e-3)
    assert not hasattr(models["free"], "weights_")
    assert models["free"].n_components == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"components": [0]}, "components == 0, must be >= 1"),
        ({"components": []}, "at least one"),
        ({"components": [2], "models": {}}, "at least one"),
        ({"components": [2], "held_out": 1.0}, "held_out must be a fraction"),
        ({"components": [500]}, "of 600 rows, held_out=0.2 leaves 480 to fit 500 components"),
        ({"components": [1], "held_out": 1e-4}, "and 0 to score"),
        (
            {"components": [1], "X": LAZY[LAZY[:, 0] > 0]},
            "rows of X is unknown: call X.compute_chunk_sizes",
        ),
    ],
)
def test_bad_input(arguments, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compare(**{"X": X} | arguments)


def test_the_figure_shows_every_choice(tmp_path) -> None:
    choices = compare(X, [2, 3, 4], random_state=0)
    figure = plot_comparison(choices)
    figure.savefig(tmp_path / "choice.png")
    left, right = figure.axes
    for axes, member, best in ((left, "held_out", max), (right, "bic", min)):
        *lines, mark = axes.lines
        for line, shown in zip(lines, (choices[:3], choices[3:6], choices[6:]), strict=True):
            assert line.get_label() == shown[0].model
            np.testing.assert_array_equal(line.get_xdata(), [2, 3, 4])
            np.testing.assert_array_equal(line.get_ydata(), [getattr(choice, member) for choice in shown])
        assert mark.get_ydata()[0] == best(getattr(choice, member) for choice in choices)
    with pytest.raises(ValueError, match="got none"):
        plot_comparison([])
