"""Make marginals.json: the distribution of t = mu . x, from far in one tail to far in the other.

With the weight exp(k s) (z (1 - z))^b on the line of u (families.py), I its integral, dt = 2 z (1 - z) du:
    log pdf(t) = k s + (b - 1) log(z (1 - z)) - log 2 - log I,
    dF/dk = F(t) (E[s | below t] - E s) = -(1 - F(t)) (E[s | above t] - E s),   dt/dk = -(dF/dk) / pdf(t).
Only the smaller of the two tails is integrated.
"""

import math

from mpmath import mp, mpf
from tables import digits, recipe, save

from families import Family, logs

DIMS = [2, 3, 10, 768, 10**6]
KAPPAS = [0.0, 0.1, 1.0, 10.0, 1e4, 1e6]
TAILS = [(-1, 1e-30), (-1, 1e-6), (-1, 0.5), (1, 1e-6), (1, 1e-30)]
COLUMNS = ["dim", "kappa", "t", "one_minus_t", "log_cdf", "log_sf", "log_pdf", "dt_dkappa"]
NOTE = "exact are one_minus_t where t > 0 and t elsewhere; the other of the two is rounded"
mp.dps = 40


def place(family: Family, log_integral: mpf, side: int, probability: float) -> tuple[float, float]:
    """Return t and 1 - t with about this tail probability, by Newton's method on the log of the tail in u."""
    u, excess, longest = family.mode, mpf(1), 3 * family.width
    with mp.workdps(16):
        while abs(excess) > 0.02:
            log_tail = family.integrate(lambda *_: [], side, u)[0]
            excess = log_tail - log_integral - mp.log(probability)
            step = excess * mp.exp(log_tail - family.log_weight(u))
            u += side * max(-longest, min(longest, step))
    one_minus_t = float(2 / (1 + mp.exp(u)))
    if one_minus_t < 1:
        return 1 - one_minus_t, one_minus_t
    t = max(float(mp.tanh(u / 2)), math.nextafter(-1.0, 0.0))
    return t, 1 - t


def row(family: Family, log_integral: mpf, mean: mpf, side: int, t: float, one_minus_t: float) -> list:
    u = mp.log(2 / mpf(one_minus_t) - 1) if t > 0 else mp.log((1 + mpf(t)) / (1 - mpf(t)))
    log_z, log_1mz = logs(u)
    log_density = family.log_weight(u) - log_z - log_1mz - mp.log(2) - log_integral
    log_tail, (tail_mean,) = family.integrate(lambda lz, _, s: [family.statistic(lz, -s)], side, u)
    log_tail -= log_integral
    slope = side * (tail_mean - mean) * mp.exp(log_tail - log_density)
    both = [log_tail, mp.log1p(-mp.exp(log_tail))]
    values = [*(both if side < 0 else both[::-1]), log_density, slope]
    return [family.dim, float(family.kappa), t, one_minus_t, *map(digits, values)]


def marginal(family: Family) -> tuple[mpf, list[list]]:
    """Return the differential entropy of t, and the rows."""
    log_integral, (mean, logs_mean) = family.integrate(lambda lz, l1, s: [family.statistic(lz, -s), lz + l1])
    entropy = log_integral + mp.log(2) - family.kappa * mean - (family.b - 1) * logs_mean
    rows = []
    for side, probability in TAILS:
        rows.append(row(family, log_integral, mean, side, *place(family, log_integral, side, probability)))
    return entropy, rows


def make() -> None:
    table = {
        "recipe": recipe(__file__, NOTE),
        "columns": COLUMNS,
        "entropy_columns": ["dim", "kappa", "entropy"],
    }
    for name in ("power_spherical", "von_mises_fisher"):
        table[name], table[f"{name}_entropy"] = [], []
        for d in DIMS:
            for k in KAPPAS:
                entropy, rows = marginal(Family(name, d, mpf(k)))
                table[name] += rows
                table[f"{name}_entropy"].append([d, k, digits(entropy)])
    table["power_spherical_extremes"] = []
    for k in (1e6, 1e7, 1e8):
        table["power_spherical_extremes"] += marginal(Family("power_spherical", 3, mpf(k)))[1]
    save("marginals.json", table)


if __name__ == "__main__":
    make()
