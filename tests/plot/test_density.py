"""`plot_density`: the curve on the circle, the colours on the sphere, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from helpers.examples import FAMILIES, comparable, families
from powerspherical import HypersphericalUniform, PowerSpherical, ProductOfSpheres, VonMisesFisher
from powerspherical.plot import plot_density


def flat():
    return Figure().add_subplot()


def globe():
    return Figure().add_subplot(projection="3d")


@families
@pytest.mark.parametrize("kappa", [0.0, 3.0, 1e6])
def test_the_curve_is_the_density(family, kappa):
    """Its height above the circle is the density there, and it reaches the mode."""
    q = family(torch.tensor([-0.6, 0.8], dtype=torch.float64), comparable(family, kappa, 2))
    curve = plot_density(q, flat(), scale=0.5).lines[0].get_xydata()
    curve = torch.from_numpy(curve[np.isfinite(curve[:, 0])])
    radius = curve.norm(dim=-1)
    expected = q.log_prob(curve / radius[:, None]).exp()
    # Of the angle, rounding leaves 1e-15, which a narrow density multiplies by √κ.
    torch.testing.assert_close((radius - 1) / 0.5, expected, rtol=1e-6, atol=1e-12)
    assert radius.max() == pytest.approx(1 + 0.5 * q.log_prob(q.mode).exp().item(), rel=1e-9)


def test_the_default_scale_keeps_a_peak_near_the_circle():
    narrow = plot_density(VonMisesFisher(torch.tensor([1.0, 0.0]), 1e8), flat()).lines[0]
    assert np.nanmax(np.linalg.norm(narrow.get_xydata(), axis=1)) == pytest.approx(1.75)
    uniform = plot_density(VonMisesFisher(torch.tensor([1.0, 0.0]), 0.0), flat()).lines[0]
    np.testing.assert_allclose(np.linalg.norm(uniform.get_xydata(), axis=1), 1 + 1 / (2 * math.pi))


def test_bars_have_the_area_of_the_histogram():
    q = PowerSpherical(torch.tensor([0.0, 1.0]), 20.0)
    axes = plot_density(q, flat(), points=q.sample((1000,)), scale=0.5)
    (bars,) = (one for one in axes.collections if isinstance(one, PolyCollection))
    heights = [np.linalg.norm(path.vertices, axis=1).max() - 1 for path in bars.get_paths()]
    assert sum(heights) / 0.5 * 2 * math.pi / 90 == pytest.approx(1)


def test_distributions_on_one_circle_differ_in_colour():
    axes = flat()
    for x in torch.eye(2):
        assert plot_density(PowerSpherical(x, 5.0), axes) is axes
    first, second = (line.get_color() for line in axes.lines)
    assert first != second
    texts = [text.get_text() for text in axes.texts if text.get_text()]
    assert texts == ["κ = 5", "κ = 5"]


@pytest.mark.parametrize(
    ("family", "kappa"), [(PowerSpherical, 0.0), *((family, 1e6) for family in FAMILIES)]
)
def test_the_colour_bar_ends_at_the_density_of_the_mode(family, kappa):
    loc = torch.tensor([0.48, -0.6, 0.64])
    q = family(loc, comparable(family, kappa, 3))
    axes = plot_density(q, globe(), label="")
    (bar,) = (one for one in axes.figure.axes if one is not axes)
    assert bar.get_ylim() == pytest.approx((0, q.log_prob(loc).exp().item()), rel=1e-4)


def test_the_sphere_is_dark_at_a_mode():
    axes = plot_density(PowerSpherical(torch.tensor([0.48, -0.6, 0.64]), 1e6), globe())
    axes.figure.draw_without_rendering()
    lightness = axes.collections[0].get_facecolor()[:, :3].sum(1)
    assert len(lightness) > 10_000
    assert lightness.min() < 0.5 * lightness.max()


def test_points_and_label_on_the_sphere():
    q = PowerSpherical(torch.tensor([0.0, 0.0, 1.0]), 5.0)
    bare = plot_density(q, globe(), label="", colorbar=False, view=(90, 0))
    assert not bare.texts
    assert (bare.elev, bare.azim, bare.figure.axes) == (90, 0, [bare])
    full = plot_density(q, globe(), points=q.sample((100,)), label="here", view=(90, 0))
    assert [text.get_text() for text in full.texts] == ["here"]
    far, near = full.collections[1:3]
    assert len(far.get_offsets()) + len(near.get_offsets()) == 100
    assert len(near.get_offsets()) > len(far.get_offsets())


@pytest.mark.parametrize("dim", [2, 3])
def test_a_new_figure(dim, pyplot):
    axes = plot_density(PowerSpherical(torch.eye(dim, dtype=torch.bfloat16)[0].requires_grad_(), 5.0))
    assert axes is pyplot.gcf().axes[0]


@pytest.mark.parametrize(
    ("make", "ax", "error", "message"),
    [
        (lambda: PowerSpherical(torch.eye(4)[0], 1.0), None, ValueError, "got d = 4: use plot_marginal"),
        (lambda: PowerSpherical(torch.eye(3), 1.0), None, ValueError, r"batch shape \(3,\).*q\.loc\[i\]"),
        (
            lambda: ProductOfSpheres(PowerSpherical(torch.eye(3)[:2], 1.0)),
            *(None, TypeError, "got ProductOfSpheres: plot the factors"),
        ),
        (lambda: HypersphericalUniform(3), None, TypeError, r"PowerSpherical\(loc, 0\.0\)"),
        (lambda: PowerSpherical(torch.eye(3)[0], 1.0).marginal, None, TypeError, "use plot_marginal"),
        (lambda: PowerSpherical(torch.eye(3)[0], 1.0), flat, ValueError, "ax is flat"),
        (lambda: PowerSpherical(torch.eye(2)[0], 1.0), globe, ValueError, "ax is three-dimensional"),
    ],
)
def test_what_cannot_be_drawn_names_the_way_out(make, ax, error, message):
    with pytest.raises(error, match=message):
        plot_density(make(), ax and ax())


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (torch.eye(3), r"shape \(n, 2\), n ≥ 1, got \(3, 3\)"),
        (torch.zeros(0, 2), r"got \(0, 2\)"),
        ([[1.0, 0.0], [0.0, 0.0]], "row 1 of the points has only zeros"),
        ([[math.nan, 0.0]], "row 0 of the points has NaN"),
    ],
)
def test_bad_points(points, message):
    with pytest.raises(ValueError, match=message):
        plot_density(PowerSpherical(torch.eye(2)[0], 1.0), flat(), points=points)
