"""Check kl_pairs.json with independent methods.

Everywhere: the normaliser, and L_p at theta = 0 and pi, against E log(1 + t) and E log(1 - t).
At random places: the KL of the table against one with L_p from mpmath's quad, as a double integral over phi
and psi, w = cos(psi), of log(1 + cos(phi) cos(theta) + sin(phi) sin(theta) w).
"""

import math
import random

from make_kl_pairs import DIMS, FAMILIES, KAPPAS, PAIRS, THETAS, breaks, from_real, mean_log, to_real
from mpmath import mp, mpf
from tables import load

from families import Family


def check_ends() -> None:
    worst = {"normaliser": 0.0, "theta = 0": 0.0, "theta = pi": 0.0}
    for name in FAMILIES:
        for d in DIMS:
            for k in KAPPAS:
                family = Family(name, d, mpf(k))
                log_integral, (log_z, log_1mz) = family.integrate(lambda lz, l1, _: [lz, l1])
                # sin(phi)^(d-2) dphi = 2^(d-2) (z (1-z))^b du
                exact = {"normaliser": log_integral + (d - 2) * mp.log(2)}
                exact |= {"theta = 0": mp.log(2) + log_z, "theta = pi": mp.log(2) + log_1mz}
                at_zero, at_pi = mean_log(family, 0.0), mean_log(family, math.pi)
                found = {"normaliser": at_zero[1], "theta = 0": at_zero[0], "theta = pi": at_pi[0]}
                for what, error in worst.items():
                    worst[what] = max(error, abs(float(from_real(found[what]) - exact[what])))
    for what, error in worst.items():
        print(f"{what}: largest absolute difference {error:.1e}")


def double_integral(family: Family, theta: float) -> mpf:
    """Return L_p(theta) by mpmath's tanh-sinh rule in both variables."""
    d, th = family.dim, mpf(theta)
    edges = [mpf(float(x)) for x in breaks(family, to_real(mp.pi - th))]
    edges[-1] = mp.pi
    edges = [x for i, x in enumerate(edges) if i == 0 or x > edges[i - 1]]
    halves = [0, mp.pi / 2, mp.pi]
    top = family.log_weight(family.mode)

    def density(phi):
        c = mp.cos(phi / 2)
        s = 2 * mp.log(c) if family.name == "power_spherical" else mp.cos(phi) - 1
        return mp.exp(family.kappa * s + (d - 2) * mp.log(mp.sin(phi) / 2) - top)

    def inner(phi):
        f, g = 2 * mp.cos((phi + th) / 2) ** 2, 2 * mp.sin(phi) * mp.sin(th)
        if d == 2:
            return (mp.log(f + g) + mp.log(f)) / 2
        log_mean = mp.quad(lambda psi: mp.log(f + g * mp.cos(psi / 2) ** 2) * mp.sin(psi) ** (d - 3), halves)
        return log_mean / mp.beta(mpf(d - 2) / 2, mpf(1) / 2)

    def outer(phi):
        p = density(phi)
        return mpf(0) if p < mpf(10) ** -25 else p * inner(phi)

    return mp.quad(outer, edges) / mp.quad(density, edges)


def check_inside(places: list) -> None:
    table = load("kl_pairs.json")
    worst = (0.0,)
    for p, d, kp, theta in places:
        kl_uniform, family = FAMILIES[p](d, mpf(kp))[2], Family(p, d, mpf(kp))
        with mp.workdps(20):
            energy = double_integral(family, theta)
        for kq in KAPPAS:
            kl = kl_uniform - mpf(kq) * energy + FAMILIES["power_spherical"](d, mpf(kq))[0]
            stored = table["kl"][DIMS.index(d)][KAPPAS.index(kp)][KAPPAS.index(kq)][THETAS.index(theta)]
            error = abs(stored[PAIRS.index([p, "power_spherical"])] - kl) / max(1, abs(kl))
            worst = max(worst, (float(error), p, d, kp, kq, theta))
    print(f"double integral, {len(places)} places: |difference| / max(1, KL) {worst[0]:.1e} at {worst[1:]}")


if __name__ == "__main__":
    rng = random.Random(0)
    every = [(p, d, kp, th) for p in FAMILIES for d in DIMS for kp in KAPPAS for th in THETAS]
    check_ends()
    check_inside(rng.sample(every, 12))
