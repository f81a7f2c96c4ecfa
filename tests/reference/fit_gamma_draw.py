"""Fit the eight coefficients of the expansion of dlog G/dα in `formulas/slopes.py`.

G is a Gamma variable of shape α ≥ 4. With h = G/α - 1, r = (h - log(1+h))/h², p = (r - 1/2)/h and c = hp, the saddle
point gives
    α dlog G/dα = 1 - hr + (r + p)/α + R(c, 1/α)/α².
R is 1/60 at h = 0 and α = ∞. Elsewhere it is smooth, and here R = Σ_i c^i (a_i + b_i/α), i < 4, with the least maximal
error (a linear program) at probabilities from 1e-7 to 1 - 1e-7 and 4 ≤ α ≤ 160. The weight grows as α³, as the
expansion itself becomes better. The exact values are integrals over one tail of the law of log G, in float64:
    dlog G/dα = ±∫ (s + log G - ψ(α)) exp(αs - G expm1(s)) ds,    s > 0 (+) or s < 0 (-).

Run as a script, it prints the coefficients a_i and b_i, and the errors with them and with 1/60 alone.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.special import digamma, gammainccinv, gammaincinv, roots_legendre

NODES, WEIGHTS = roots_legendre(200)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2


def exact_slope(alpha, gamma):
    """dlog G/dα, by the tail whose integrand has one sign."""
    excess = np.log(gamma) - digamma(alpha)
    # Both windows end where the integrand has fallen by e^-40 at least.
    above = np.log1p(40 / gamma)
    for _ in range(60):
        above = np.log1p((40 + alpha * above) / gamma)
    window = np.where(excess > 0, above, -np.minimum((40 + gamma) / alpha, 12 / np.sqrt(alpha) + 12 / alpha))
    s = window[:, None] * NODES
    mass = np.exp(alpha[:, None] * s - gamma[:, None] * np.expm1(s)) * WEIGHTS
    return window * (mass * (s + excess[:, None])).sum(1)


def main():
    tails = np.concatenate([10.0 ** np.linspace(-7, -1, 13), np.linspace(0.15, 0.5, 8)])
    alphas = np.geomspace(4, 160, 80)
    alpha = np.repeat(alphas, 2 * len(tails))
    gamma = np.concatenate([[*gammaincinv(a, tails), *gammainccinv(a, tails)] for a in alphas])
    h = gamma / alpha - 1
    near = np.abs(h) < 0.02
    far = np.where(near, 1.0, h)
    series = sum((-1) ** (k + 1) / (k + 3) * h**k for k in range(8))
    p = np.where(near, series, ((far - np.log1p(far)) / far**2 - 0.5) / far)
    c = h * p
    r = 0.5 + c

    scaled = alpha * exact_slope(alpha, gamma)
    rest = (scaled - (1 - h * r + (r + p) / alpha)) * alpha**2
    basis = np.stack([c**i * alpha**-j for i in range(4) for j in range(2)], 1)
    size = alpha**2 * scaled  # an error in R, divided by this, is a relative error of the slope
    weight = 1e4 * (alpha / 4) ** 3 / size
    rows, one = basis * weight[:, None], np.ones((len(alpha), 1))
    program = linprog(
        [0] * 8 + [1],
        A_ub=np.block([[rows, -one], [-rows, -one]]),
        b_ub=np.concatenate([rest * weight, -rest * weight]),
        bounds=[(None, None)] * 9,
    )
    found = program.x[:8]
    for i in range(4):
        print(f"a_{i} = {found[2 * i]:.7g}, b_{i} = {found[2 * i + 1]:.7g}")
    for low, high in ((4, 5), (5, 8), (8, 16), (16, 64), (64, 161)):
        there = (alpha >= low) & (alpha < high)
        fitted, plain = (np.abs(value - rest)[there] / size[there] for value in (basis @ found, 1 / 60))
        print(f"{low} <= α < {high}: error {fitted.max():.1e}, with 1/60 {plain.max():.1e}")


if __name__ == "__main__":
    main()
