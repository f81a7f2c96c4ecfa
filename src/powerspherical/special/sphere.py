"""The area of the unit sphere and the density of its first coordinate."""

from __future__ import annotations

import math

from powerspherical._torch.constants import untraced


@untraced
def log_sphere_area(dim: int) -> float:
    """Return the log of the area 2π^{d/2}/Γ(d/2) of the unit sphere in R^d, where d = ``dim``.

    >>> round(math.exp(log_sphere_area(3)) / math.pi, 12)  # 4π
    4.0
    """
    return math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)


@untraced
def log_cosine_normalizer(dim: int) -> float:
    """Return log c, where c·(sin φ)^{d-2} is the density of the angle φ between a uniform point and a pole.

    c = Γ(d/2)/(Γ((d-1)/2)√π). For large d, where the difference of two lnΓ would cancel, we use an asymptotic series in
    1/x with x = (d-1)/2.
    """
    x = (dim - 1) / 2
    if dim < 60:
        return math.lgamma(x + 0.5) - math.lgamma(x) - 0.5 * math.log(math.pi)
    terms = (-1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304, 39325 / 33554432)
    series = sum(term / x**k for k, term in enumerate(terms, start=1))
    return 0.5 * math.log(x / math.pi) + math.log1p(series)
