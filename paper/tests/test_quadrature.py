"""The independent quadrature against closed forms evaluated with SciPy."""

import math

import numpy as np
import pytest
from scipy import special

from powerspherical_paper._quadrature import Symmetric, log_sphere_area, stationary_point

GRID = [(d, k) for d in (2, 3, 10, 64) for k in (0.5, 5.0, 50.0, 500.0)]


def test_sphere_areas():
    areas = [math.exp(log_sphere_area(d)) for d in (1, 2, 3)]
    assert areas == pytest.approx([2, 2 * math.pi, 4 * math.pi], rel=1e-14)


@pytest.mark.parametrize(("dim", "kappa"), GRID)
def test_power_spherical(dim, kappa):
    b = (dim - 1) / 2
    a = b + kappa
    log_n = (a + b) * math.log(2) + b * math.log(math.pi) + special.gammaln(a) - special.gammaln(a + b)
    exact = Symmetric.power_spherical(dim, kappa)
    assert exact.log_normalizer == pytest.approx(log_n, rel=1e-11, abs=1e-11)
    assert exact.mean(np.cos) == pytest.approx(kappa / (kappa + dim - 1), rel=1e-11)
    log1p = exact.mean(lambda angle: np.log1p(np.cos(angle)))
    assert log1p == pytest.approx(math.log(2) + special.psi(a) - special.psi(a + b), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("dim", "kappa"), GRID)
def test_von_mises_fisher(dim, kappa):
    order = dim / 2 - 1
    log_bessel = math.log(special.ive(order, kappa)) + kappa
    log_c = dim / 2 * math.log(2 * math.pi) - order * math.log(kappa) + log_bessel
    exact = Symmetric.von_mises_fisher(dim, kappa)
    assert exact.log_normalizer == pytest.approx(log_c, rel=1e-11, abs=1e-11)
    ratio = special.ive(order + 1, kappa) / special.ive(order, kappa)
    assert exact.mean(np.cos) == pytest.approx(ratio, rel=1e-11)


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_stationary_point(dim):
    loc = np.random.default_rng(dim).standard_normal(dim)
    loc /= np.linalg.norm(loc)
    assert stationary_point(loc, 2.5) == pytest.approx(loc, abs=1e-12)
