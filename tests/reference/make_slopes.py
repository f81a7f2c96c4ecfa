"""Make slopes.json: w = d artanh(t)/dk of von Mises-Fisher at a fixed probability.

With the weight exp(k s) (z (1 - z))^b on the line of u = 2 artanh t (families.py), P the probability of a tail,
    w = +-(E[s | tail] - E s) P I / (2 weight(u)),    + for the tail above, - for the tail below,
where I is the integral of the weight. Only the smaller of the two tails is integrated. Concentrations and the smaller
one of 1 - t and 1 + t are exact in single precision.
"""

import struct

from mpmath import mp, mpf
from tables import digits, recipe, save

from families import Family

DIMS = [2, 8, 31, 64, 10**4]
KAPPAS = [0.0, 1.0, 15.5, 39.5, 40.5, 1e9]
TAILS = [(-1, 1e-7), (-1, 0.4), (1, 1e-7)]
NOTE = "near is 1 - t where sign is 1, and 1 + t where it is -1"
mp.dps = 35


def single(x: float) -> float:
    """The nearest number of single precision."""
    return struct.unpack("f", struct.pack("f", x))[0]


def place(family: Family, log_integral: mpf, side: int, probability: float) -> mpf:
    """A u with about this probability beyond it, to 20 %, by bisection."""
    low, high = (family.mode + sign * 20 * family.width for sign in (-1, 1))
    with mp.workdps(16):
        while True:
            u = (low + high) / 2
            excess = family.integrate(lambda *_: [], side, u)[0] - log_integral - mp.log(probability)
            if abs(excess) < 0.2:
                return u
            low, high = (u, high) if side * excess > 0 else (low, u)


def slope(family: Family, mean: mpf, side: int, u: mpf) -> mpf:
    log_tail, (tail_mean,) = family.integrate(lambda log_z, log_1mz, s: [s], side, u)
    return side * (tail_mean - mean) * mp.exp(log_tail - family.log_weight(u)) / 2


def make() -> None:
    rows = []
    for dim in DIMS:
        for kappa in KAPPAS:
            family = Family("von_mises_fisher", dim, mpf(kappa))
            log_integral, (mean,) = family.integrate(lambda log_z, log_1mz, s: [s])
            for side, probability in TAILS:
                u = place(family, log_integral, side, probability)
                sign, near = mp.sign(u), single(2 / (1 + mp.exp(abs(u))))
                u = sign * mp.log(2 / mpf(near) - 1)
                rows.append([dim, kappa, int(sign), near, digits(slope(family, mean, side, u))])
    columns = ["dim", "kappa", "sign", "near", "slope"]
    save("slopes.json", {"recipe": recipe(__file__, NOTE), "columns": columns, "von_mises_fisher": rows})


if __name__ == "__main__":
    make()
