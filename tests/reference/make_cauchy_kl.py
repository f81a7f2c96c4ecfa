"""Make cauchy_kl.json: KL divergences between the spherical Cauchy and the other two families, in both directions.

Let theta be the angle between the mean directions and exp(tau) = 1 + k for the spherical Cauchy. Then
    KL(p || Cauchy(k)) = KL(p || uniform) + (d - 1) E_p log(cosh(tau) - mu_q . X sinh(tau)),
    KL(Cauchy || PS(k)) = KL(Cauchy || uniform) - k E log(1 + mu_q . X) + D(k),
    KL(Cauchy || vMF(k)) = KL(Cauchy || uniform) - k cos(theta) E t + G(k).
D, G and KL(p || uniform) come from make_functions.py, and the moments of the spherical Cauchy from make_cauchy.py.

Let phi be the angle between X and the mean direction of p, and w the first coordinate of a uniform point on the sphere
of R^(d - 1). Given phi, both logarithms have the form log(A + B w):
    A -+ B = exp(-tau) + 2 sinh(tau) sin^2((phi -+ theta) / 2) for the spherical Cauchy,
    A +- B = 2 cos^2((phi -+ theta) / 2) for Power Spherical.
The mean over w is the series of make_kl_pairs.py. The mean over phi uses the tanh-sinh rule in 80-bit floats. Its
panels shrink towards the mean direction of p and towards the angle where A - |B| is smallest.
"""

import functools
import itertools
import math
from collections.abc import Iterable

import numpy as np
from make_cauchy import moments
from make_functions import COLUMNS, power_spherical, von_mises_fisher
from make_kl_pairs import PI, from_real, mean_over_w, nodes, real, to_real
from make_kl_pairs import breaks as breaks_of_others
from mpmath import mp, mpf
from tables import recipe, save

from families import Family

DIMS = [2, 3, 64]
KAPPAS = [0.1, 3.0, 100.0]
THETAS = [0.0, 1e-3, 1.5, math.pi]
CONCENTRATED = [(1e3, 1e6), (1e6, 1e3), (1e6, 1e6), (1e-2, 1e3), (1.0, 1e6)]
OPPOSITE = [(1e-2, 1e3), (1.0, 1e3), (30.0, 1e3)]  # the peak of the spherical Cauchy is near the antipode
OTHERS = {function.__name__: functools.cache(function) for function in (power_spherical, von_mises_fisher)}
PAIRS = [[p, "spherical_cauchy"] for p in OTHERS] + [["spherical_cauchy", q] for q in OTHERS]
moments = functools.cache(moments)


def breaks(k: float, centre: real) -> list[real]:
    """Return 0, pi, the centre, and points around it at distances that grow geometrically from 1 / (16 (1 + k))."""
    steps = [real(4) ** i / (1 + real(k)) for i in range(-2, 12)]
    return [real(0), PI, centre, *(centre + s for s in steps), *(centre - s for s in steps)]


def law(p: str, d: int, k_p: float, k_q: float, peak: real) -> tuple[np.ndarray, ...]:
    """Return phi, peak - phi and the probabilities of phi, for functions with a peak of width 1 / k_q."""
    of_p = breaks_of_others(Family(p, d, mpf(k_p)), peak) if p in OTHERS else breaks(k_p, real(0))
    points = sorted({x for x in breaks(k_q, peak) + of_p if 0 <= x <= PI})
    phi, rest, gap, weight = nodes(points, peak)
    sin_half, cos_half, k = np.sin(phi / 2), np.sin(rest / 2), real(k_p)
    log_density = {
        "power_spherical": lambda: 2 * k * np.log(cos_half),
        "von_mises_fisher": lambda: -2 * k * sin_half**2,
        "spherical_cauchy": lambda: (1 - d) * np.log1p(k * (k + 2) * sin_half**2),
    }[p]() + (d - 2) * np.log(2 * sin_half * cos_half)
    density = weight * np.exp(log_density - log_density.max())
    return phi, gap, density / density.sum()


def mean_log(d: int, probability: np.ndarray, larger: np.ndarray, smaller: np.ndarray) -> mpf:
    """Return the mean of log(A + B w) over w and phi, from A + |B| and A - |B| at each phi."""
    a, b = (np.sqrt(larger) + np.sqrt(smaller)) / 2, (np.sqrt(larger) - np.sqrt(smaller)) / 2
    inner = 2 * np.log(a) + mean_over_w(d - 1, b / a, np.sqrt(smaller) / a)
    return from_real((probability * inner).sum())


def divergence(d: int, k_p: float, k_q: float, theta: float, p: str, q: str) -> mpf:
    """Return KL(p || q), where exactly one of the two is the spherical Cauchy."""
    angle = real(theta)
    if q == "spherical_cauchy":
        phi, gap, probability = law(p, d, k_p, k_q, angle)
        k = real(k_q)
        least, twice_sinh = 1 / (1 + k), k * (k + 2) / (1 + k)
        ends = (least + twice_sinh * np.sin(x / 2) ** 2 for x in (phi + angle, gap))
        kl_uniform = OTHERS[p](d, mpf(k_p))[COLUMNS.index("kl_uniform") - 2]
        return kl_uniform + (d - 1) * mean_log(d, probability, *ends)
    kl_uniform, rest, *_ = moments(d, mpf(k_p))
    log_partition = OTHERS[q](d, mpf(k_q))[0]
    if q == "von_mises_fisher":
        return kl_uniform - mpf(k_q) * mp.cos(mpf(theta)) * (1 - rest) + log_partition
    phi, gap, probability = law(p, d, k_p, k_q, to_real(mp.pi - mpf(theta)))
    energy = mean_log(d, probability, 2 * np.cos((phi - angle) / 2) ** 2, 2 * np.sin(gap / 2) ** 2)
    return kl_uniform - mpf(k_q) * energy + log_partition


def rows(kappas: Iterable[tuple[float, float]], thetas: list[float]) -> list[list[float]]:
    cells = [(d, *pair, theta) for d, pair, theta in itertools.product(DIMS, kappas, thetas)]
    return [[*cell, *(float(divergence(*cell, *pair)) for pair in PAIRS)] for cell in cells]


def make() -> None:
    table = {
        "recipe": recipe(__file__, "means over phi in 80-bit floats; kappa and theta are the exact doubles"),
        "columns": ["dim", "kappa_p", "kappa_q", "theta", *(f"{p} || {q}" for p, q in PAIRS)],
        "kl": rows(itertools.product(KAPPAS, KAPPAS), THETAS),
        "concentrated": rows(CONCENTRATED, THETAS[:2]),
        "opposite": rows(OPPOSITE, [math.pi - 2e-3, math.pi - 1.5e-3, math.pi]),
    }
    save("cauchy_kl.json", table)


if __name__ == "__main__":
    make()
