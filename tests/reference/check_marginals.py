"""Check marginals.json with a second method.

At random rows: the tail by mpmath's quad in the angle phi = acos t, where the density is proportional to
exp(k s) sin(phi)^(d - 2), and its k-derivative by a central difference. Power Spherical: the cdf from the
regularised incomplete beta function, where the parameters are moderate; all entropies, from digammas.
d = 3: F = z^(k + 1), dt/dk = -2 z log(z) / (k + 1) for Power Spherical, F = expm1(k (1 + t)) / expm1(2 k) for
von Mises-Fisher.
"""

import random

from mpmath import mp, mpf
from tables import load

from families import log_beta

mp.dps = 40
STEP = mpf(10) ** -12


def exact(row: list) -> tuple[mpf, mpf]:
    """Return z = (1 + t) / 2 and 1 - z."""
    t, one_minus_t = row[2:4]
    return (1 - mpf(one_minus_t) / 2, mpf(one_minus_t) / 2) if t > 0 else ((1 + mpf(t)) / 2, (1 - mpf(t)) / 2)


def log_integral(name: str, d: int, k: mpf, phi: mpf, side: int) -> mpf:
    """Return the log of the integral of exp(k s) sin(phi)^(d - 2), from phi down (side 1, larger t) or up (-1)."""

    def log_weight(x):
        s = 2 * mp.log(mp.cos(x / 2)) if name == "power_spherical" else -2 * mp.sin(x / 2) ** 2
        return k * s + (d - 2) * mp.log(mp.sin(x))

    slope = -k * (mp.tan(phi / 2) if name == "power_spherical" else mp.sin(phi)) + (d - 2) * mp.cot(phi)
    scale = 1 / (abs(slope) + mp.sqrt(abs(k) + d - 1))
    end = mpf(0) if side > 0 else mp.pi
    edges = [phi - side * scale * 3**i * mpf(0.5) for i in range(9)]
    edges = [phi] + [x for x in edges if 0 < x < mp.pi] + [end]
    top = log_weight(phi)
    return top + mp.log(abs(mp.quad(lambda x: mp.exp(log_weight(x) - top), edges)))


def second_way(name: str, row: list) -> list[mpf]:
    """Return the log of the smaller tail, log pdf, and dt/dk."""
    d, k, side = row[0], mpf(row[1]), -1 if float(row[4]) < float(row[5]) else 1
    z, y = exact(row)
    phi = 2 * mp.atan2(mp.sqrt(y), mp.sqrt(z))

    def log_tail(kappa):
        tail, rest = (log_integral(name, d, kappa, phi, sign) for sign in (side, -side))
        return tail - max(tail, rest) - mp.log1p(mp.exp(-abs(tail - rest))), max(tail, rest)

    value, _ = log_tail(k)
    total = log_integral(name, d, k, phi, side) - value
    s = mp.log(z) if name == "power_spherical" else -2 * y
    log_density = k * s + (mpf(d - 3) / 2) * mp.log(4 * z * y) - total
    prime = (log_tail(k + STEP)[0] - log_tail(k - STEP)[0]) / (2 * STEP)
    return [value, log_density, side * prime * mp.exp(value - log_density)]


def report(label: str, errors: list) -> None:
    print(
        f"{label}: {len(errors)} values, worst relative difference {max(errors)[0]:.1e} at {max(errors)[1:]}"
    )


def compare(found: mpf, stored: str, row: list) -> tuple:
    return float(abs(found - mpf(stored)) / abs(mpf(stored))), *row[:4]


def check() -> None:
    table, rng = load("marginals.json"), random.Random(0)
    for name in ("power_spherical", "von_mises_fisher"):
        errors = {"log tail": [], "log pdf": [], "dt/dk": []}
        for row in rng.sample(table[name], 60):
            found = second_way(name, row)
            stored = [min(row[4:6], key=float), *row[6:]]
            for label, a, b in zip(errors, found, stored, strict=True):
                errors[label].append(compare(a, b, row))
        for label, values in errors.items():
            report(f"{name}, {label}", values)

    mp.dps = 100  # for z = 1 - 1e-60
    errors = []
    for row in table["power_spherical"]:
        b, k, (z, _) = mpf(row[0] - 1) / 2, mpf(row[1]), exact(row)
        if b + k < 1000:
            errors.append(compare(mp.log(mp.betainc(b + k, b, 0, z, regularized=True)), row[4], row))
    report("power_spherical, log cdf by betainc", errors)

    errors = []
    for d, kappa, stored in table["power_spherical_entropy"]:
        b, a = mpf(d - 1) / 2, mpf(d - 1) / 2 + mpf(kappa)
        digammas = (a - 1) * mp.psi(0, a) + (b - 1) * mp.psi(0, b) - (a + b - 2) * mp.psi(0, a + b)
        errors.append(compare(mp.log(2) + log_beta(a, b) - digammas, stored, [d, kappa]))
    report("power_spherical, entropy", errors)

    tails, slopes = [], []
    for row in table["power_spherical"] + table["power_spherical_extremes"]:
        if row[0] == 3:
            k, (z, _) = mpf(row[1]), exact(row)
            tails.append(compare((k + 1) * mp.log(z), row[4], row))
            slopes.append(compare(-2 * z * mp.log(z) / (k + 1), row[7], row))
    report("power_spherical, d = 3, log cdf", tails)
    report("power_spherical, d = 3, dt/dk", slopes)
    rows = [row for row in table["von_mises_fisher"] if row[0] == 3 and row[1] > 0]
    tails = []
    for row in rows:
        k, (z, _) = mpf(row[1]), exact(row)
        tails.append(compare(mp.log(mp.expm1(2 * k * z) / mp.expm1(2 * k)), row[4], row))
    report("von_mises_fisher, d = 3, log cdf", tails)


if __name__ == "__main__":
    check()
