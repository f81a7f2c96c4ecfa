"""The two families on the unit sphere of R^d, as weights on the line.

Let t be the cosine with the mean direction, z = (1 + t) / 2 and u = log(z / (1 - z)). Under the uniform
distribution the density of t is proportional to (1 - t^2)^((d - 3) / 2), and dt = 2 z (1 - z) du, so that u
has density (z (1 - z))^b / B(b, b), b = (d - 1) / 2: analytic for |Im u| < pi, with exponential tails.

Each family multiplies this by exp(kappa * s), s = log z for Power Spherical, s = t - 1 for von Mises-Fisher.
"""

from dataclasses import dataclass

from mpmath import mp, mpf

from quadrature import half_line, trapezoid


@dataclass(frozen=True)
class Family:
    name: str
    dim: int
    kappa: mpf

    @property
    def b(self) -> mpf:
        return mpf(self.dim - 1) / 2

    def statistic(self, log_z: mpf, one_minus_t: mpf) -> mpf:
        return log_z if self.name == "power_spherical" else -one_minus_t

    def log_weight(self, u: mpf) -> mpf:
        log_z, log_1mz = logs(u)
        return self.kappa * self.statistic(log_z, 2 * mp.exp(log_1mz)) + self.b * (log_z + log_1mz)

    @property
    def mode(self) -> mpf:
        """The u where the weight is largest, from the root z of its log-derivative."""
        k, b = self.kappa, self.b
        if self.name == "power_spherical":  # (k + b)(1 - z) = b z
            return mp.log((k + b) / b)
        if k == 0:
            return mpf(0)
        y = b / (k + b + mp.sqrt(k**2 + b**2))  # 2 k z (1 - z) = b (2 z - 1), y = 1 - z
        return mp.log((1 - y) / y)

    @property
    def width(self) -> mpf:
        """An estimate of the standard deviation of u."""
        return mp.sqrt(2 / self.b)

    def integrate(self, observables, side: int = 0, u: mpf | None = None):
        """Return the log of the integral of the weight, and the means of `observables(log z, log(1 - z), t - 1)`.

        The integral is over the whole line, or below `u` (`side` = -1), or above `u` (`side` = +1).
        """

        def integrand(v):
            log_z, log_1mz = logs(v)
            one_minus_t = 2 * mp.exp(log_1mz)
            log_weight = self.kappa * self.statistic(log_z, one_minus_t) + self.b * (log_z + log_1mz)
            return log_weight, observables(log_z, log_1mz, -one_minus_t)

        if side:
            return half_line(integrand, u, side, self.width / 16)
        return trapezoid(integrand, self.mode, self.width)


def logs(u: mpf) -> tuple[mpf, mpf]:
    """Return log z and log(1 - z), where z = 1 / (1 + exp(-u))."""
    small = mp.log1p(mp.exp(-abs(u)))
    return (-small, -u - small) if u > 0 else (u - small, -small)


def log_beta(a: mpf, b: mpf) -> mpf:
    return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)
