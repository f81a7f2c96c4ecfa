"""Make kl_pairs.json and cauchy_kl.json: KL divergences between two families with different directions.

Let theta be the angle between the directions. With D, G and KL(p || uniform) as in make_functions.py, moments of the
spherical Cauchy as in make_cauchy.py, and exp(tau) = 1 + k,
    KL(p || PS(k))     = KL(p || uniform) - k E_p log(1 + mu_q . X) + D(k),
    KL(p || vMF(k))    = KL(p || uniform) - k cos(theta) E_p t + G(k),
    KL(p || Cauchy(k)) = KL(p || uniform) + (d - 1) E_p log(cosh(tau) - mu_q . X sinh(tau)).

Let phi be the angle between X and the mean direction of p, and w the first coordinate of a uniform point on the sphere
of R^m, m = d - 1. Given phi, both logarithms have the form log(A + B w):
    A +- B = 2 cos^2((phi -+ theta) / 2) for Power Spherical,
    A -+ B = exp(-tau) + 2 sinh(tau) sin^2((phi -+ theta) / 2) for the spherical Cauchy.
With A + B w = a^2 + b^2 + 2 a b w and x the ratio of the smaller of a, b to the larger, the mean over w is
    2 log max(a, b) + h(x^2),   h(y) = -sum_{j>=1} (1 - m/2)_j / (m/2)_j y^j / j.
The mean over phi uses the tanh-sinh rule in 80-bit floats. Its panels shrink towards the mode of p and to the angle
where A - |B| is smallest.
"""

import functools
import itertools
import math
from collections.abc import Iterable

import numpy as np
from make_cauchy import moments
from make_functions import COLUMNS, power_spherical, von_mises_fisher
from mpmath import mp, mpf
from tables import recipe, save

from families import Family

OTHERS = {function.__name__: functools.cache(function) for function in (power_spherical, von_mises_fisher)}
moments = functools.cache(moments)

real = np.longdouble
assert np.finfo(real).eps < 2e-19, "needs the 80-bit floats of x86"


def to_real(x: mpf) -> real:
    """Convert an mpf to a long double, as the sum of the nearest double and the remainder."""
    return real(float(x)) + real(float(x - mpf(float(x))))


def from_real(x: real) -> mpf:
    return mpf(float(x)) + mpf(float(x - real(float(x))))


PI = to_real(mp.pi)


@functools.cache
def tanh_sinh(count: int = 160) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distances of the nodes from 0 and from 1, and the weights, on [0, 1]."""
    v = np.arange(-count, count + 1, dtype=real) * (real(5) / count)
    e = np.exp(-PI * np.sinh(v))
    right, left = e / (1 + e), 1 / (1 + e)
    return left, right, left * right * PI * np.cosh(v) * (real(5) / count)


def nodes(breaks: list[real], split: real) -> tuple[np.ndarray, ...]:
    """Return phi, pi - phi, split - phi and weights on the panels between the breaks, without cancellation."""
    left, right, weight = tanh_sinh()
    panels = [(a, c) for a, c in itertools.pairwise(breaks) if c > a]
    phi = [a + (c - a) * left for a, c in panels]
    rest = [(PI - c) + (c - a) * right for a, c in panels]
    gap = [(split - c) + (c - a) * right if c <= split else (split - a) - (c - a) * left for a, c in panels]
    weights = [(c - a) * weight for a, c in panels]
    return tuple(np.concatenate(x) for x in (phi, rest, gap, weights))


@functools.cache
def coefficients(m: int) -> np.ndarray:
    """Return the coefficients of h until they vanish or are negligible (the j-th is of order j^-m)."""
    terms, ratio = [], mpf(1)
    for j in range(1, 500):
        ratio *= (j - mpf(m) / 2) / (j - 1 + mpf(m) / 2)
        terms.append(to_real(-ratio / j))
        if abs(ratio) < 1e-25:
            break
    return np.array(terms, dtype=real)


def mean_over_w(m: int, x: np.ndarray, one_minus_x: np.ndarray) -> np.ndarray:
    """Return h(x^2) for x in [0, 1]."""
    if m == 1:
        return np.log1p(x) + np.log(one_minus_x)
    if m == 3:  # w is uniform on [-1, 1]; this closed form cancels for small x, where the series is used
        big = np.maximum(x, real(0.5))
        small = np.minimum(one_minus_x, real(0.5))
        closed = ((1 + big) ** 2 * np.log1p(big) - small**2 * np.log(small)) / (2 * big) - 1
        x = np.minimum(x, real(0.5))
    y = x * x
    series = np.zeros_like(y)
    for c in coefficients(m)[::-1]:
        series = (series + c) * y
    return np.where(one_minus_x < 0.5, closed, series) if m == 3 else series


def breaks(p: str, d: int, k_p: float, k_q: float, peak: real) -> list[real]:
    """Return 0, pi, the peak, and points around it and the mode of p, mostly at geometric distances."""
    centres = [(peak, k_q)]
    points = [real(0), PI, peak]
    if p in OTHERS:
        family = Family(p, d, mpf(k_p))
        mode = 2 * mp.atan(mp.exp(-family.mode / 2))  # of the weight on the line, which is close enough
        width = 1 / mp.sqrt((k_p if p == "von_mises_fisher" else mpf(k_p) / 2) + d - 1)
        points += [to_real(mode + i * width) for i in (-40, -16, -6, -2, 0, 2, 6, 16, 40)]
    else:
        centres.append((real(0), k_p))
    for centre, k in centres:
        steps = [real(4) ** i / (1 + real(k)) for i in range(-2, 12)]
        points += [centre + sign * step for sign in (-1, 1) for step in steps]
    return sorted({x for x in points if 0 <= x <= PI})


def law(p: str, d: int, k_p: float, k_q: float, peak: real) -> tuple[np.ndarray, ...]:
    """Return phi, peak - phi and the probabilities of phi, for functions with a peak of width 1 / k_q."""
    phi, rest, gap, weight = nodes(breaks(p, d, k_p, k_q, peak), peak)
    sin_half, cos_half, k = np.sin(phi / 2), np.sin(rest / 2), real(k_p)
    log_cos = np.where(phi < 1, np.log1p(-(np.minimum(sin_half, real(0.5)) ** 2)) / 2, np.log(cos_half))
    log_density = {
        "power_spherical": lambda: 2 * k * log_cos,
        "von_mises_fisher": lambda: -2 * k * sin_half**2,
        "spherical_cauchy": lambda: (1 - d) * np.log1p(k * (k + 2) * sin_half**2),
    }[p]() + (d - 2) * (np.log(2 * sin_half) + log_cos)
    density = weight * np.exp(log_density - log_density.max())
    return phi, gap, density / density.sum()


def mean_log(d: int, probability: np.ndarray, larger: np.ndarray, smaller: np.ndarray) -> mpf:
    """Return the mean of log(A + B w) over w and phi, from A + |B| and A - |B| at each phi."""
    a, b = (np.sqrt(larger) + np.sqrt(smaller)) / 2, (np.sqrt(larger) - np.sqrt(smaller)) / 2
    inner = 2 * np.log(a) + mean_over_w(d - 1, b / a, np.sqrt(smaller) / a)
    return from_real((probability * inner).sum())


@functools.cache
def energy(d: int, k_p: float, k_q: float, theta: float, p: str) -> mpf:
    """Return E_p log(1 + mu_q . X)."""
    if theta == 0 and p in OTHERS:
        return OTHERS[p](d, mpf(k_p))[COLUMNS.index("mean_log1p") - 2]
    phi, gap, probability = law(p, d, k_p, k_q, to_real(mp.pi - mpf(theta)))
    return mean_log(d, probability, 2 * np.cos((phi - real(theta)) / 2) ** 2, 2 * np.sin(gap / 2) ** 2)


def divergence(d: int, k_p: float, k_q: float, theta: float, p: str, q: str) -> mpf:
    """Return KL(p || q)."""
    if p in OTHERS:
        _, _, kl_uniform, _, mean, *_ = OTHERS[p](d, mpf(k_p))
    else:
        kl_uniform, rest, *_ = moments(d, mpf(k_p))
        mean = 1 - rest
    if q == "spherical_cauchy":
        phi, gap, probability = law(p, d, k_p, k_q, real(theta))
        k = real(k_q)
        least, twice_sinh = 1 / (1 + k), k * (k + 2) / (1 + k)
        ends = (least + twice_sinh * np.sin(x / 2) ** 2 for x in (phi + real(theta), gap))
        return kl_uniform + (d - 1) * mean_log(d, probability, *ends)
    cosine = mp.cos(mpf(theta)) * mean if q == "von_mises_fisher" else energy(d, k_p, k_q, theta, p)
    return mp.chop(kl_uniform - mpf(k_q) * cosine + OTHERS[q](d, mpf(k_q))[0], 1e-40)


def make_pairs() -> None:
    """Between Power Spherical and von Mises-Fisher."""
    dims, kappas, thetas = (
        [2, 3, 4, 5, 10, 64, 768],
        [0.1, 1.0, 10.0, 100.0, 1e3, 1e4],
        [0.0, 1e-3, 0.5, 1.5, 3.0, math.pi],
    )
    pairs = list(itertools.product(OTHERS, repeat=2))
    table = {
        "recipe": recipe(__file__, "means over phi in 80-bit floats; kappa and theta are the exact doubles"),
        "dims": dims,
        "kappas": kappas,
        "thetas": thetas,
        "pairs": pairs,
        "axes": ["dims", "kappas (of p)", "kappas (of q)", "thetas", "pairs (p, q): KL(p || q)"],
    }
    cells = [
        divergence(*cell, *pair) for *cell, pair in itertools.product(dims, kappas, kappas, thetas, pairs)
    ]
    table["kl"] = np.array(cells, float).reshape(*map(len, (dims, kappas, kappas, thetas, pairs))).tolist()
    save("kl_pairs.json", table)


def make_with_cauchy() -> None:
    """Between the spherical Cauchy and the other two. Opposite ones have its peak near the antipode."""
    pairs = [(p, "spherical_cauchy") for p in OTHERS] + [("spherical_cauchy", q) for q in OTHERS]
    thetas = [0.0, 1e-3, 1.5, math.pi]

    def rows(kappas: Iterable[tuple[float, float]], thetas: list[float]) -> list[list[float]]:
        cells = [(d, *pair, theta) for d, pair, theta in itertools.product([2, 3, 64], kappas, thetas)]
        return [[*cell, *(float(divergence(*cell, *pair)) for pair in pairs)] for cell in cells]

    concentrated = [(1e3, 1e6), (1e6, 1e3), (1e6, 1e6), (1e-2, 1e3), (1.0, 1e6)]
    opposite = [(1e-2, 1e3), (1.0, 1e3), (30.0, 1e3)]
    table = {
        "recipe": recipe(__file__, "means over phi in 80-bit floats; kappa and theta are the exact doubles"),
        "columns": ["dim", "kappa_p", "kappa_q", "theta", *(f"{p} || {q}" for p, q in pairs)],
        "kl": rows(itertools.product([0.1, 3.0, 100.0], repeat=2), thetas),
        "concentrated": rows(concentrated, thetas[:2]),
        "opposite": rows(opposite, [math.pi - 2e-3, math.pi - 1.5e-3, math.pi]),
    }
    save("cauchy_kl.json", table)


if __name__ == "__main__":
    make_pairs()
    make_with_cauchy()
