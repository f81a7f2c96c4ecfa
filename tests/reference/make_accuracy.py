"""Make the table that ships with the package, _selfcheck/accuracy.json: KL to the uniform and the log-density.

With D, G, KL and 1 - E t as in make_functions.py, the log-density at the cosine t is
    k log(1 + t) - D(k) - log A for Power Spherical,   k t - G(k) - log A for von Mises-Fisher,
where A = 2 pi^(d/2) / G(d/2) is the area of the sphere. It is taken at 1 - t = 1 - E t rounded to float32, a number
that both types hold exactly, as they do the concentrations. The values are the doubles nearest to the exact ones.
"""

import numpy as np
from make_functions import COLUMNS, power_spherical, von_mises_fisher
from mpmath import mp, mpf
from tables import recipe, save

DIMS = [2, *(a * 10**b for b in range(8) for a in (1, 3) if 3 <= a * 10**b <= 10**7)]
KAPPAS = [a * 10**b for b in range(10) for a in (1, 3) if a * 10**b <= 10**9]
PLACE = "../../src/powerspherical/_selfcheck/accuracy.json"
NOTE = "kappa and one_minus_t are exact, the others the nearest doubles"


def row(function, d: int, k: int) -> list:
    values = dict(zip(COLUMNS[2:], function(d, mpf(k)), strict=True))
    c = float(np.float32(float(values["mean_complement"])))
    t = 1 - mpf(c)
    exponent = mp.log(1 + t) if function is power_spherical else t
    log_area = mp.log(2) + mpf(d) / 2 * mp.log(mp.pi) - mp.loggamma(mpf(d) / 2)
    log_density = k * exponent - values["log_normalizer"] - log_area
    return [d, k, c, float(values["kl_uniform"]), float(log_density)]


def make() -> None:
    columns = ["dim", "kappa", "one_minus_t", "kl_uniform", "log_density"]
    table = {"recipe": recipe(__file__, NOTE), "columns": columns}
    for function in (power_spherical, von_mises_fisher):
        table[function.__name__] = [row(function, d, k) for d in DIMS for k in KAPPAS]
    save(PLACE, table)


if __name__ == "__main__":
    make()
