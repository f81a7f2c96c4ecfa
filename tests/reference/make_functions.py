"""Make functions.json: normalisers, moments and KL to the uniform, over dimension and concentration.

Power Spherical (De Cao and Aziz, 2020), b = (d - 1) / 2, from gamma and polygamma functions alone:
    D(k) = log E_uniform (1 + t)^k = lnG(b + k) + lnG(b + 1/2) - lnG(b + k/2) - lnG(b + 1/2 + k/2)
    E log(1 + t) = D' = log 2 + psi(b + k) - psi(2b + k),  E t = k / (k + d - 1),  KL = k D' - D.
von Mises-Fisher, by quadrature (families.py):
    G(k) = log E_uniform exp(k t) = log 0F1(; d/2; k^2/4),  E t = G',  G'' = var t,  KL = k G' - G,
    d/dk E log(1 + t) = cov(log(1 + t), t).
In both, dKL/dk = k times the second derivative of the log normaliser.
"""

from mpmath import mp, mpf
from tables import digits, recipe, save

from families import Family, log_beta

DIMS = [2, 3, 5, 64, 768, 10**4, 10**6, 10**7]
KAPPAS = [0.0, 1e-6, 0.1, 0.5, 1.0, 10.0, 1e2, 1e3, 1e6, 1e9]
COLUMNS = [
    "dim",
    "kappa",
    "log_normalizer",  # relative to the uniform: D or G
    "log_normalizer_second",
    "kl_uniform",
    "kl_uniform_prime",
    "mean",
    "mean_complement",  # 1 - E t
    "mean_prime",
    "mean_log1p",  # E log(1 + t)
    "mean_log1p_prime",
]
mp.dps = 60


def power_spherical(d: int, k: mpf) -> list[mpf]:
    b = mpf(d - 1) / 2
    D = mp.loggamma(b + k) + mp.loggamma(b + 0.5) - mp.loggamma(b + k / 2) - mp.loggamma(b + 0.5 + k / 2)
    D = mp.chop(D, 1e-40)  # D(0) = D(1) = 0
    D1 = mp.log(2) + mp.psi(0, b + k) - mp.psi(0, 2 * b + k)
    D2 = mp.psi(1, b + k) - mp.psi(1, 2 * b + k)
    return [
        D,
        D2,
        k * D1 - D,
        k * D2,
        k / (k + d - 1),
        (d - 1) / (k + d - 1),
        (d - 1) / (k + d - 1) ** 2,
        D1,
        D2,
    ]


def von_mises_fisher(d: int, k: mpf) -> list[mpf]:
    family = Family("von_mises_fisher", d, k)
    log_integral, (m_s, m_ss, m_l, m_ls) = family.integrate(lambda lz, _, s: [s, s * s, lz, lz * s])
    G = k + log_integral - log_beta(family.b, family.b)
    mean, var, cov = 1 + m_s, m_ss - m_s**2, m_ls - m_l * m_s
    if k == 0:
        G, mean = mpf(0), mpf(0)
    return [G, var, k * mean - G, k * var, mean, 1 - mean, var, mp.log(2) + m_l, cov]


def make() -> None:
    table = {"recipe": recipe(__file__, "kappa is the exact double"), "columns": COLUMNS}
    for function in (power_spherical, von_mises_fisher):
        table[function.__name__] = [[d, k, *map(digits, function(d, mpf(k)))] for d in DIMS for k in KAPPAS]
    save("functions.json", table)


if __name__ == "__main__":
    make()
