"""Check functions.json with a second method: series for von Mises-Fisher, quadrature for Power Spherical.

The series have positive terms, and are summed outwards from the largest one:
    0F1(; d/2; k^2/4) = sum_n (k^2/4)^n / (n! (d/2)_n).  With n drawn by these terms, k G' = 2 E n and
    k^2 G'' + k G' = 4 var n.
    exp(k t) = exp(-k) sum_n k^n (1 + t)^n / n!, so von Mises-Fisher is a mixture of Power Spherical with
    concentrations n and weights w_n = (2k)^n / n! G(n + b) / G(n + 2b), up to a constant:
    E log(1 + t) = sum_n w_n (log 2 + psi(b + n) - psi(2b + n)); k times its k-derivative is the covariance of
    the bracket with n.
"""

from mpmath import mp, mpf
from tables import load

from families import Family, log_beta

SLOW = (3, 10**6)  # the dimensions for which the million terms at kappa = 1e9 are summed
mp.dps = 60


def sum_from(peak: int, ratio, seen: mpf, step) -> tuple[mpf, list[mpf]]:
    """Return the sum of the terms relative to that at `peak`, and the means of i, i^2, f, i f, where i = n - peak.

    term(n + 1) = term(n) ratio(n), f(peak) = seen and f(n + 1) = f(n) + step(n).
    """
    sums = [mpf(0)] * 5
    for sign in (1, -1):
        n, term, f = peak, mpf(1), seen
        if sign < 0:
            if n == 0:
                break
            n, term, f = n - 1, 1 / ratio(n - 1), seen - step(n - 1)
        while term > mpf(10) ** -50:
            i = n - peak
            sums = [a + term * x for a, x in zip(sums, (1, i, i * i, f, i * f), strict=True)]
            if sign > 0:
                term, f, n = term * ratio(n), f + step(n), n + 1
            elif n > 0:
                term, f, n = term / ratio(n - 1), f - step(n - 1), n - 1
            else:
                break
    return sums[0], [s / sums[0] for s in sums[1:]]


def von_mises_fisher(d: int, k: mpf) -> dict[str, mpf]:
    b, nu, q = mpf(d - 1) / 2, mpf(d) / 2 - 1, k * k / 4
    peak = int((mp.sqrt(nu**2 + k**2) - nu) / 2)
    total, (m, mm, _, _) = sum_from(peak, lambda n: q / ((n + 1) * (nu + 1 + n)), mpf(0), lambda n: 0)
    G = (
        mp.log(total)
        + peak * mp.log(q)
        - mp.loggamma(peak + 1)
        - mp.loggamma(nu + 1 + peak)
        + mp.loggamma(nu + 1)
    )
    mean = 2 * (peak + m) / k
    second = (4 * (mm - m * m) / k - mean) / k

    peak = int(k - b + mp.sqrt(k**2 + b**2))  # where n (n + 2b) = 2k (n + b)
    _, (m, _, f, mf) = sum_from(
        peak,
        lambda n: 2 * k * (n + b) / ((n + 1) * (n + 2 * b)),
        mp.log(2) + mp.psi(0, b + peak) - mp.psi(0, 2 * b + peak),
        lambda n: b / ((n + b) * (n + 2 * b)),
    )
    return {
        "log_normalizer": G,
        "log_normalizer_second": second,
        "kl_uniform": k * mean - G,
        "kl_uniform_prime": k * second,
        "mean": mean,
        "mean_complement": 1 - mean,
        "mean_prime": second,
        "mean_log1p": f,
        "mean_log1p_prime": (mf - m * f) / k,
    }


def power_spherical(d: int, k: mpf) -> dict[str, mpf]:
    family = Family("power_spherical", d, k)
    log_integral, (m, mm, s, sm) = family.integrate(lambda lz, _, s: [lz, lz * lz, s, s * lz])
    D = k * mp.log(2) + log_integral - log_beta(family.b, family.b)
    return {
        "log_normalizer": D,
        "log_normalizer_second": mm - m * m,
        "kl_uniform": k * (mp.log(2) + m) - D,
        "kl_uniform_prime": k * (mm - m * m),
        "mean": 1 + s,
        "mean_complement": -s,
        "mean_prime": sm - s * m,
        "mean_log1p": mp.log(2) + m,
        "mean_log1p_prime": mm - m * m,
    }


def check() -> None:
    table = load("functions.json")
    for function in (power_spherical, von_mises_fisher):
        worst: dict[str, tuple] = {}
        for row in table[function.__name__]:
            stored = dict(zip(table["columns"], row, strict=True))
            d, k = stored["dim"], mpf(stored["kappa"])
            if function is von_mises_fisher and (k == 0 or (k > 1e6 and d not in SLOW)):
                continue
            for name, value in function(d, k).items():
                expected = mpf(stored[name])
                error = abs(value - expected) / (abs(expected) or 1)
                worst[name] = max(worst.get(name, (0,)), (float(error), d, float(k)))
        for name, (error, d, k) in worst.items():
            print(
                f"{function.__name__}, {name}: largest relative difference {error:.1e} at d={d}, kappa={k:g}"
            )


if __name__ == "__main__":
    check()
