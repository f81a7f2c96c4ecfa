"""Make law.json: tails of the cosine t = mu . x, and slopes at a fixed probability, of six families with log-kernels.

In y = artanh t the log-density is h = log_kernel - (d-1) log cosh y. With I the integral of exp(h) over the line, J
that over the tail from y away from the mode, and s = d log_kernel / dk,
    log_tail = log(J / I),   hazard = exp(h(y)) / J,   slope = +-(E[s | tail] - E s) J exp(-h(y)),   + above the mode.
Points lie where h is lower than at the mode by a given amount.
"""

from collections.abc import Callable

from mpmath import mp, mpf
from tables import digits, recipe, save

from quadrature import half_line, trapezoid

mp.dps = 34
NOTE = "near is 1 - t where sign is 1, and 1 + t where it is -1"
MEMBERS = [
    (2, 0.0),
    (2, 0.015),
    (2, 11.0),
    (2, 40.0),
    (3, 1e6),
    (10, 3.0),
    (60, 1e3),
    (300, 20.0),
    (1000, 50.0),
    (1000, 1e4),
]
FALLS = [0.02, 1.0, 6.0, 20.0, 60.0]


def power_spherical(k: mpf, minus: mpf, plus: mpf, d: int) -> tuple[mpf, mpf]:
    s = mp.log(plus / 2)
    return k * s, s


def von_mises_fisher(k: mpf, minus: mpf, plus: mpf, d: int) -> tuple[mpf, mpf]:
    return -k * minus, -minus


def spherical_cauchy(k: mpf, minus: mpf, plus: mpf, d: int) -> tuple[mpf, mpf]:
    spread = minus * k * (k + 2) / 2
    return (d - 1) * (mp.log1p(k) - mp.log1p(spread)), (d - 1) * (
        1 / (1 + k) - minus * (k + 1) / (1 + spread)
    )


def squared(k: mpf, minus: mpf, plus: mpf, d: int) -> tuple[mpf, mpf]:
    return -k * minus**2, -(minus**2)


def mixed(k: mpf, minus: mpf, plus: mpf, d: int) -> tuple[mpf, mpf]:
    """A Power Spherical plus a von Mises-Fisher kernel of 3k."""
    s = mp.log(plus / 2)
    a, b = mp.exp(k * s), mp.exp(-3 * k * minus)
    return mp.log(a + b), (a * s - 3 * minus * b) / (a + b)


def pole(k: mpf, minus: mpf, plus: mpf, d: int) -> tuple[mpf, mpf]:
    """A von Mises-Fisher kernel with a pole at the antipode."""
    s, power = mp.log(plus / 2), mpf(3) / 10
    return -k * minus - power * k / (1 + k) * s, -minus - power / (1 + k) ** 2 * s


FAMILIES: list[Callable] = [power_spherical, von_mises_fisher, spherical_cauchy, squared, mixed, pole]


class Law:
    def __init__(self, family: Callable, d: int, k: mpf) -> None:
        self.family, self.d, self.k = family, d, k
        low, high = mpf(-60), mpf(60)
        for _ in range(120):  # ternary search for the mode
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (a, high) if self.height(a)[0] < self.height(b)[0] else (low, b)
        self.mode, self.width = low, self.reach(low, 1, 1)
        self.log_integral, (self.mean,) = trapezoid(self.height, self.mode, self.width)

    def height(self, y: mpf) -> tuple[mpf, list[mpf]]:
        """Return h, and d - s, whose mean is not zero."""
        e = mp.exp(-2 * abs(y))
        ends = (2 * e / (1 + e), 2 / (1 + e))
        value, score = self.family(self.k, *(ends if y > 0 else ends[::-1]), self.d)
        return value - (self.d - 1) * mp.log(mp.cosh(y)), [self.d - score]

    def reach(self, y: mpf, sign: int, fall: float) -> mpf:
        """Return how far from y, away from the mode, h has fallen by `fall`."""
        target, low, high = self.height(y)[0] - fall, mpf(0), mpf(2000)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self.height(y + sign * middle)[0] > target else (low, middle)
        return high

    def row(self, sign: int, fall: float) -> list:
        y = self.mode + sign * self.reach(self.mode, sign, fall)
        near = float(2 / (1 + mp.exp(2 * abs(y))))
        end = mp.sign(y)
        y = end * mp.log(2 / mpf(near) - 1) / 2
        log_tail, (mean,) = half_line(self.height, y, sign, self.width)
        mass = mp.exp(log_tail - self.height(y)[0])
        values = log_tail - self.log_integral, 1 / mass, sign * mass * (self.mean - mean)
        return [self.family.__name__, self.d, float(self.k), int(end), near, sign < 0, *map(digits, values)]


def make() -> None:
    rows = []
    for number, family in enumerate(FAMILIES):
        for index, (d, k) in enumerate(MEMBERS):
            rows.append(Law(family, d, mpf(k)).row((-1) ** (number + index), FALLS[(number + 2 * index) % 5]))
    columns = ["family", "dim", "kappa", "sign", "near", "below", "log_tail", "hazard", "slope"]
    save("law.json", {"recipe": recipe(__file__, NOTE), "columns": columns, "rows": rows})


if __name__ == "__main__":
    make()
