"""Quadrature with mpmath for smooth weights with one peak, to nearly full working precision.

The trapezoidal rule on the whole line converges geometrically for a function that is analytic in a strip
(Trefethen and Weideman, SIAM Review 56, 2014): halving the step squares the error. So if two successive steps agree
to half the digits, the second is correct to all digits.
"""

from collections.abc import Callable

from mpmath import mp, mpf

# Maps a point u of the line to the log of the weight and to the observables to average.
Integrand = Callable[[mpf], tuple[mpf, list[mpf]]]


def trapezoid(integrand: Integrand, centre: mpf, width: mpf) -> tuple[mpf, list[mpf]]:
    """Return the log of the integral of a weight over the line, and the means of the observables under it.

    `centre` and `width` are rough estimates.
    """
    cutoff = (mp.dps - 8) * mp.ln(10)
    top = integrand(centre)[0]
    left = _edge(integrand, centre, -width, top - cutoff)
    right = _edge(integrand, centre, width, top - cutoff)

    def total(points):
        values = [(mp.exp(log_weight - top), seen) for log_weight, seen in map(integrand, points)]
        return [mp.fsum(w for w, _ in values)] + [
            mp.fsum(w * seen[i] for w, seen in values) for i in range(len(values[0][1]))
        ]

    count = 48
    step = (right - left) / count
    sums = total(left + i * step for i in range(count + 1))
    previous = None
    while True:
        current = [step * sums[0]] + [s / sums[0] for s in sums[1:]]
        if previous and all(_close(a, b) for a, b in zip(previous, current, strict=True)):
            return top + mp.log(current[0]), current[1:]
        if count > 10**5:
            raise ArithmeticError("the trapezoidal rule did not converge")
        previous = current
        between = total(left + (i + mpf(1) / 2) * step for i in range(count))
        sums = [a + b for a, b in zip(sums, between, strict=True)]
        count, step = 2 * count, step / 2


def half_line(integrand: Integrand, start: mpf, sign: int, width: mpf) -> tuple[mpf, list[mpf]]:
    """Do the same as `trapezoid` over the half-line from `start` towards sign * infinity.

    We substitute u = start + sign * x with x = s exp(v - exp(-v)). On the line of v the weight falls off double
    exponentially to the left and at least exponentially to the right (Takahasi and Mori, 1974).
    """
    scale = _fall(integrand, start, sign * width)

    def stretched(v):
        x = scale * mp.exp(v - mp.exp(-v))
        log_weight, seen = integrand(start + sign * x)
        return log_weight + mp.log(x) + mp.log1p(mp.exp(-v)), seen

    return trapezoid(stretched, mpf(0), mpf(1))


def _edge(integrand, centre, step, floor):
    """Return a point beyond which the log weight stays below `floor`. It is at most a fifth too far out."""
    while integrand(centre + step)[0] > floor:
        step *= mpf(6) / 5
    while integrand(centre + step * 5 / 6)[0] < floor:
        step *= mpf(5) / 6
    return centre + step


def _fall(integrand, start, step):
    """Return roughly the distance from `start` over which the log weight falls by one."""
    first = integrand(start)[0]
    while integrand(start + step)[0] > first - 1:
        step *= 2
    while integrand(start + step / 2)[0] < first - 1:
        step /= 2
    return abs(step)


def _close(a, b):
    return abs(a - b) <= mpf(10) ** (-mp.dps // 2) * abs(b)
