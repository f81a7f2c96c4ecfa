"""`plot_marginal`: the curves, the limits of the axes, and the legend."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from helpers.examples import comparable, families
from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.plot import plot_marginal


def flat():
    return Figure().add_subplot()


@families
@pytest.mark.parametrize("kappa", [0.0, 10.0, 1e7])
@pytest.mark.parametrize("dim", [3, 100])
def test_the_area_under_a_density_is_one(family, kappa, dim):
    q = family(torch.eye(dim)[0], comparable(family, kappa, dim))
    axes = plot_marginal(q, flat())
    t, height = axes.lines[0].get_data()
    assert np.trapezoid(height, t) == pytest.approx(1, rel=1e-2)
    assert axes.get_ylim() == pytest.approx((0, 1.05 * height.max()))
    low, high = axes.get_xlim()
    inside = (t >= low) & (t <= high)
    assert np.trapezoid(height[inside], t[inside]) > 0.98


@families
def test_curves_agree_with_the_marginal(family):
    q = family(torch.eye(5, dtype=torch.float64)[0], 3.0)
    for cdf in (False, True):
        t, height = map(torch.as_tensor, plot_marginal(q, flat(), cdf=cdf).lines[0].get_data())
        expected = q.marginal.cdf(t) if cdf else q.marginal.log_prob(t).exp()
        torch.testing.assert_close(height, expected)


def test_on_the_circle_the_axis_is_cut_where_the_density_is_infinite():
    axes = plot_marginal(VonMisesFisher(torch.eye(2)[0], torch.tensor([0.0, 1.0])), flat())
    assert axes.get_xlim() == (-1, 1)
    assert axes.get_ylim()[1] < 3


def test_batches_and_lists_give_one_curve_each():
    loc = torch.eye(3)[0]
    batch = VonMisesFisher(loc, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    axes = plot_marginal(
        [PowerSpherical(loc, 1e5), batch, SphericalCauchy(torch.eye(7)[0], 0.5).marginal], flat()
    )
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "Power Spherical, d = 3, κ = 1e+05",
        *(f"von Mises–Fisher, d = 3, κ = {kappa}" for kappa in (1, 2, 3, 4)),
        "spherical Cauchy, d = 7, κ = 0.5",
    ]
    assert len({line.get_color() for line in axes.lines}) == 6
    named = plot_marginal(batch, flat(), labels="abcd", cdf=True)
    assert [line.get_label() for line in named.lines] == list("abcd")


def test_a_new_figure(pyplot):
    axes = plot_marginal(PowerSpherical(torch.eye(3)[0], 1.0))
    assert pyplot.gcf().axes == [axes]


@pytest.mark.parametrize(
    ("q", "labels", "error", "message"),
    [
        ([], None, ValueError, "q is empty"),
        (
            PowerSpherical(torch.eye(3)[0], torch.ones(2)),
            ["a"],
            ValueError,
            "labels has 1 texts for 2 curves",
        ),
        ([3.0], None, TypeError, "got float"),
    ],
)
def test_what_cannot_be_drawn(q, labels, error, message):
    with pytest.raises(error, match=message):
        plot_marginal(q, flat(), labels=labels)
