"""Make cauchy.json: moments and KL divergences of the spherical Cauchy distribution (Kato and McCullagh, 2020).

With e^tau = 1 + k its density relative to the uniform is the power 1 - d of cosh(tau) - t sinh(tau). A uniform point
has the cosine tanh(y) with y of density sech(y)^(d - 1), and is moved to the cosine tanh(y + tau). So
    KL to the uniform = (d - 1) E log(cosh(tau) + tanh(y) sinh(tau)),    1 - t = 2 / (1 + exp(2 (y + tau))),
    log loss = -E log((1 + t) / 2) = E log(1 + exp(-2 (y + tau))).
Two members are, seen from the first, the uniform and a member at the hyperbolic distance of the two points of the ball
    cosh(tau) = cosh(tau_p) cosh(tau_q) - cos(theta) sinh(tau_p) sinh(tau_q).
Integrals use mpmath's tanh-sinh rule over panels. They follow the definitions, not the sums of the package.
"""

import itertools
import math

from mpmath import mp, mpf
from tables import digits, recipe, save

DIMS = [2, 3, 10, 10**4, 10**6]
KAPPAS = [1e-6, 0.5, 3.0, 32.0, 1e3, 1e6, 2e9]  # up to rho = 1 - 1e-9
MEMBERS = [(0.5, 0.5), (3.0, 30.0), (30.0, 2e9), (2e9, 2e9)]
ANGLES = [0.0, 1e-3, 1.0, math.pi]
mp.dps = 35


def mean(d: int, tau: mpf, function) -> mpf:
    """Return the mean of function(y) over uniform points, whose law is symmetric."""
    width = 1 / mp.sqrt(d - 1)
    ends = [width * x for x in (1, 3, 9)]
    if d < 100:
        ends += [mpf(1), mpf(6), mpf(20), mpf(80), tau / 2, tau, tau + 2, tau + 10]
    else:
        ends += [30 * width]
    points = [mpf(0), *sorted({x for x in ends if x > 0})]

    def weight(y: mpf) -> mpf:
        return mp.sech(y) ** (d - 1)

    total = mp.quad(lambda y: weight(y) * (function(y) + function(-y)), points)
    return total / (2 * mp.quad(weight, points))


def mean_log(d: int, tau: mpf) -> mpf:
    """Return E log(cosh(tau) + tanh(y) sinh(tau)), accurate also where it is small."""
    return mean(d, tau, lambda y: mp.log1p(mp.tanh(y) * mp.tanh(tau)) + mp.log(mp.cosh(tau)))


def moments(d: int, k: mpf) -> list[mpf]:
    """Return KL to the uniform, 1 - E t, the variance of t and the log loss."""
    tau = mp.log1p(k)
    scale = mp.exp(2 * tau)  # keeps integrands of order one, because mpmath controls the absolute error
    rest = mean(d, tau, lambda y: 2 * scale / (1 + mp.exp(2 * (y + tau)))) / scale
    square = mean(d, tau, lambda y: (2 * scale / (1 + mp.exp(2 * (y + tau)))) ** 2) / scale**2
    log_loss = mean(d, tau, lambda y: scale * mp.log1p(mp.exp(-2 * (y + tau)))) / scale
    return [(d - 1) * mean_log(d, tau), rest, square - rest**2, log_loss]


def divergence(d: int, k_p: mpf, k_q: mpf, theta: mpf) -> mpf:
    tau_p, tau_q = mp.log1p(k_p), mp.log1p(k_q)
    half = mp.sinh((tau_p - tau_q) / 2) ** 2 + mp.sinh(tau_p) * mp.sinh(tau_q) * mp.sin(theta / 2) ** 2
    return (d - 1) * mean_log(d, 2 * mp.asinh(mp.sqrt(half))) if half else mpf(0)


def make() -> None:
    table = {
        "recipe": recipe(__file__, "kappa and theta are the exact doubles"),
        "columns": ["dim", "kappa", "kl_uniform", "mean_complement", "variance", "log_loss"],
        "moments": [[d, k, *map(digits, moments(d, mpf(k)))] for d in DIMS for k in KAPPAS],
        "pair_columns": ["dim", "kappa_p", "kappa_q", "theta", "kl"],
        "pairs": [
            [d, k_p, k_q, theta, digits(divergence(d, mpf(k_p), mpf(k_q), mpf(theta)))]
            for d, (k_p, k_q), theta in itertools.product(DIMS, MEMBERS, ANGLES)
        ],
    }
    save("cauchy.json", table)


if __name__ == "__main__":
    make()
