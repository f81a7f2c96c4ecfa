"""Make kl_pairs.json: KL divergences between Power Spherical and von Mises-Fisher with different directions.

With KL(p || uniform), D, G and E_p t as in make_functions.py, and theta the angle between the directions,
    KL(p || PS(k))  = KL(p || uniform) - k L_p(theta) + D(k),   L_p(theta) = E_p log(1 + mu_q . X),
    KL(p || vMF(k)) = KL(p || uniform) - k cos(theta) E_p t + G(k).
Only L_p is new. If t = cos(phi), m = d - 1 and w is the first coordinate of a uniform point on the sphere of R^m,
    1 + mu_q . X = 1 + cos(phi) cos(theta) + sin(phi) sin(theta) w = 2 (a^2 + b^2 + 2 a b w),
    a = cos(phi/2) cos(theta/2),  b = sin(phi/2) sin(theta/2).
If x is the ratio of the smaller of a, b to the larger, the mean over w is
    log 2 + 2 log max(a, b) + h(x^2),   h(y) = -sum_{j>=1} (1 - m/2)_j / (m/2)_j y^j / j,
and the integral over phi is done by the tanh-sinh rule in 80-bit floats, in panels that end at pi - theta,
where a = b, and around the mode.
"""

import functools
import itertools
import math

import numpy as np
from make_functions import COLUMNS, power_spherical, von_mises_fisher
from mpmath import mp, mpf
from tables import recipe, save

from families import Family

DIMS = [2, 3, 4, 5, 10, 64, 768]
KAPPAS = [0.1, 1.0, 10.0, 100.0, 1e3, 1e4]
THETAS = [0.0, 1e-3, 0.5, 1.5, 3.0, math.pi]
FAMILIES = {"power_spherical": power_spherical, "von_mises_fisher": von_mises_fisher}
PAIRS = [[p, q] for p in FAMILIES for q in FAMILIES]

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


def breaks(family: Family, split: real) -> list[real]:
    """Return 0, pi, the split, and points around the mode."""
    kappa, d = family.kappa, family.dim
    mode = 2 * mp.atan(mp.exp(-family.mode / 2))  # of the weight on the line, which is close enough
    width = 1 / mp.sqrt((kappa if family.name == "von_mises_fisher" else kappa / 2) + d - 1)
    around = [to_real(mode + i * width) for i in (-40, -16, -6, -2, 0, 2, 6, 16, 40)]
    return sorted([real(0), split, PI] + [x for x in around if 0 < x < PI])


def mean_log(family: Family, theta: float) -> tuple[real, real]:
    """Return L_p(theta) and the log of the integral over phi of the unnormalised density."""
    d, kappa = family.dim, real(float(family.kappa))
    split = to_real(mp.pi - mpf(theta))
    cos_half, sin_half = to_real(mp.cos(mpf(theta) / 2)), to_real(mp.sin(mpf(theta) / 2))
    phi, rest, gap, weight = nodes(breaks(family, split), split)

    sin_phi2, cos_phi2 = np.sin(phi / 2), np.sin(rest / 2)
    log_cos2 = np.where(phi < 1, np.log1p(-(np.minimum(sin_phi2, real(0.5)) ** 2)) / 2, np.log(cos_phi2))
    log_sin = np.log(2 * sin_phi2) + log_cos2
    s = 2 * log_cos2 if family.name == "power_spherical" else -2 * sin_phi2**2
    density = weight * np.exp(kappa * s + (d - 2) * (log_sin - log_sin.max()))

    a, b = cos_phi2 * cos_half, sin_phi2 * sin_half
    top = np.maximum(a, b)
    one_minus_x = np.abs(np.sin(gap / 2)) / top  # a - b = cos((phi + theta) / 2) = sin(gap / 2)
    inner = np.log(real(2)) + 2 * np.log(top) + mean_over_w(d - 1, np.minimum(a, b) / top, one_minus_x)

    total = density.sum()
    return (density * inner).sum() / total, np.log(total) + (d - 2) * log_sin.max()


def divergences(d: int) -> list:
    """Return KL by kappa_p, kappa_q, theta and pair."""
    rows = {(name, k): function(d, mpf(k)) for name, function in FAMILIES.items() for k in KAPPAS}
    logs = {}
    for name in FAMILIES:
        for k in KAPPAS:
            logs[name, k, 0.0] = rows[name, k][COLUMNS.index("mean_log1p") - 2]
            for theta in THETAS[1:]:
                value, _ = mean_log(Family(name, d, mpf(k)), theta)
                logs[name, k, theta] = from_real(value)

    def divergence(p, kp, q, kq, theta):
        _, _, kl, _, mean = rows[p, kp][:5]
        energy = logs[p, kp, theta] if q == "power_spherical" else mp.cos(mpf(theta)) * mean
        return mp.chop(kl - mpf(kq) * energy + rows[q, kq][0], 1e-40)

    return [
        [[[float(divergence(p, kp, q, kq, th)) for p, q in PAIRS] for th in THETAS] for kq in KAPPAS]
        for kp in KAPPAS
    ]


def make() -> None:
    note = "L_p by tanh-sinh in 80-bit floats; kappa and theta are the exact doubles"
    table = {
        "recipe": recipe(__file__, note),
        "dims": DIMS,
        "kappas": KAPPAS,
        "thetas": THETAS,
        "pairs": PAIRS,
    }
    table["axes"] = ["dims", "kappas (of p)", "kappas (of q)", "thetas", "pairs (p, q): KL(p || q)"]
    table["kl"] = [divergences(d) for d in DIMS]
    save("kl_pairs.json", table)


if __name__ == "__main__":
    make()
