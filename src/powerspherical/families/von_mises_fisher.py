"""The von Mises–Fisher family, density ∝ e^{κt} (Fisher 1953; Mardia & Jupp 2000, section 9.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.elementary import hypot, log1p
from powerspherical._torch.modes import is_capturing
from powerspherical._torch.random import standard_gamma
from powerspherical.families.base import ExponentialFamily, Family, squared_length
from powerspherical.formulas.maps import LARGE_KAPPA, von_mises_fisher_ends_3
from powerspherical.formulas.slopes import von_mises_fisher_slope, von_mises_fisher_slope_3
from powerspherical.quadrature import misalignment
from powerspherical.quadrature.cosine import Cosine, dtype_of

#: After the first round, we draw about this many candidates per round even if fewer rows are left. Several candidates
#: per row save rounds, which dominate the time of a small batch.
_CANDIDATES = 256

#: Rounds and candidates per row in each round, if the host cannot see whether a row is left (CUDA graphs). The
#: probability that all candidates of a row are rejected is at most 0.35³² < 3e-15.
_BLIND_ROUNDS, _BLIND_WIDTH = 4, 8


#: From this dimension on a series gives the slope of a draw in float32, for every κ.
SERIES_DIM = 32


class VonMisesFisherFamily(ExponentialFamily):
    """The von Mises–Fisher family, with the statistic T = t-1.

    The normaliser of the marginal contains the Bessel function of order d/2-1. De Cao & Aziz (2020) print (d-1)/2.
    ``VON_MISES_FISHER`` is the only instance. ``VonMisesFisher`` states its accuracy.

    >>> VON_MISES_FISHER.mean_cosine(torch.tensor([0.0, 2.0]), 3)  # coth κ - 1/κ
    tensor([0.0000, 0.5373])
    """

    name = key = "von_mises_fisher"
    title = "von Mises–Fisher"
    peak = 1.0
    linear = True

    def statistic(self, t: Cosine) -> Tensor:
        return -t.minus

    def derivatives(self, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return kappa, torch.zeros_like(kappa)

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor:
        # tanh y = 2κ/(δ + √(δ²+4κ²)) with δ = d-1, so that e^{2y} - 1 is a sum of terms ≥ 0.
        twice, delta = 2 * kappa, float(dim - 1)
        root = hypot(twice, torch.full_like(twice, delta))
        return 0.5 * torch.log1p(2 * twice / (delta + delta * delta / (root + twice)))

    def quantile(self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Cosine:
        if dim == 3:
            return _quantile_3(squared_length(u, complement), kappa)
        return super().quantile(u, complement, kappa, dim)

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Cosine, Tensor]:
        """Draw t by inversion at d = 3, and otherwise by Wood's rejection (1994).

        The rejection accepts at least 65% of its candidates at any κ and d. Differentiating through it would be biased.
        So ``slope`` is the implicit derivative, which does not need the noise.
        """
        if dim == 3:
            return Cosine(*von_mises_fisher_ends_3(squared_length, kappa)), squared_length.clone()
        flat = kappa.reshape(-1)
        degrees = dim - 1
        root = torch.hypot(2 * flat, flat.new_full((), degrees))  # κ² could overflow
        b = degrees / (2 * flat + root)
        x0 = 2 * flat / (root + degrees)  # (1-b)/(1+b), without the subtraction
        minus, plus, rejected = _propose(squared_length.reshape(-1), b, x0, dim, generator)
        _redraw(Cosine(minus, plus), rejected, b, x0, dim, generator)
        return Cosine(minus.view(kappa.shape), plus.view(kappa.shape)), b.view(kappa.shape)

    def slope(self, t: Cosine, noise: Tensor | None, kappa: Tensor, dim: int) -> Tensor:
        """The implicit derivative d artanh(t)/dκ, with relative error 5e-6 in float32 and 1e-10 in float64.

        Computed by a closed form at d = 3, by a series in float32 from d = ``SERIES_DIM`` on, and otherwise by a
        quadrature.
        """
        if dim == 3:
            return von_mises_fisher_slope_3(*t, kappa)
        if dim < SERIES_DIM or dtype_of(t) == torch.float64:
            return super().slope(t, noise, kappa, dim)
        with torch.no_grad():
            return von_mises_fisher_slope(t.plus, kappa, float(dim - 1))

    misalignment = staticmethod(misalignment.of_von_mises_fisher)

    def losses(self, p: Family, kappa_p: Tensor, angle: Cosine, dim: int) -> tuple[Tensor, Tensor]:
        kappa_p = kappa_p.double()
        return p.mean_loss(kappa_p, dim), angle.minus * p.mean_cosine(kappa_p, dim)


def _quantile_3(squared_length: Tensor, kappa: Tensor) -> Cosine:
    """Return the t with P(T ≤ t) = u = e^{-S/2} for d = 3, given S.

    Unlike in ``von_mises_fisher_ends_3``, a small 1+t keeps its digits at any κ: κ(1+t) = log(1 + e^x) with
    x = 2κ + log u + log(1-e^{-2κ}).
    """
    one_minus_t, one_plus_t = von_mises_fisher_ends_3(squared_length, kappa)
    far = (one_minus_t > 1.5) & (kappa >= LARGE_KAPPA)
    large = torch.where(far, kappa, LARGE_KAPPA)
    exponent = 2 * large - 0.5 * squared_length + log1p(-torch.exp(-2 * large))
    tail = torch.logaddexp(exponent, torch.zeros_like(exponent)) / large
    return Cosine(one_minus_t, torch.where(far, tail, one_plus_t))


def _propose(
    squared_length: Tensor, b: Tensor, x0: Tensor, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one candidate of Wood (1994) per entry: 1-t, 1+t, and whether it is rejected.

    Let z ~ Beta(β, β) with β = (d-1)/2. The candidate is t = (1 - (1+b)z)/(1 - (1-b)z). The logarithm of its acceptance
    probability is κt + (d-1)log(1 - x0 t) - κx0 - (d-1)log(1 - x0²). With y = x0(1-2z), r = y/(1+y) and
    κ(1-x0²) = (d-1)x0 it becomes (d-1)[r + log(1-r)]. This form does not contain κ, so no large terms cancel.

    1-2z is a coordinate n/√(n² + S) of a uniform point on the sphere, where n ~ N(0, 1) and S ~ χ²_{d-1} is
    ``squared_length``. Hence z/(1-z) = S/(|n| + √(n²+S))² if n > 0, and the reciprocal otherwise.
    """
    normal = torch.empty_like(squared_length).normal_(generator=generator)
    root = (normal * normal).add_(squared_length).sqrt_()
    large = root.add_(normal.abs()).square_()
    positive = normal > 0
    z = torch.where(positive, squared_length, large)  # z and 1-z up to a common factor, which cancels below
    rest = torch.where(positive, large, squared_length)
    scaled = b * z
    denominator = rest + scaled  # 1 - (1-b)z
    ratio = (rest - z).mul_(x0).mul_(1 + b).div_(denominator).mul_(0.5)  # 1+y = 2(1 - (1-b)z)/(1+b)
    log_acceptance = torch.log1p(-ratio).add_(ratio).mul_(dim - 1)
    # The comparison is written so that NaN is not rejected. Otherwise the loop would not end.
    rejected = log_acceptance < torch.empty_like(ratio).uniform_(generator=generator).log_()
    return scaled.div_(denominator).mul_(2), rest.div_(denominator).mul_(2), rejected


def _candidates(
    b: Tensor, x0: Tensor, width: int, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """1-t and 1+t of the first accepted among ``width`` new candidates for each row, and whether all were rejected."""
    squared_length = standard_gamma(b.new_full((len(b), width), (dim - 1) / 2), generator).mul_(2)
    *ends, rejected = _propose(squared_length, b.unsqueeze(-1), x0.unsqueeze(-1), dim, generator)
    first = rejected.to(torch.uint8).argmin(-1, keepdim=True)
    one_minus_t, one_plus_t, all_rejected = (x.gather(-1, first).squeeze(-1) for x in (*ends, rejected))
    return one_minus_t, one_plus_t, all_rejected


def _redraw(
    t: Cosine, rejected: Tensor, b: Tensor, x0: Tensor, dim: int, generator: torch.Generator | None
) -> None:
    """Replace rejected candidates in place, until all rows have an accepted one."""
    if is_capturing(b):  # the host cannot see whether a row is left
        for _ in range(_BLIND_ROUNDS):
            *fresh, all_rejected = _candidates(b, x0, _BLIND_WIDTH, dim, generator)
            for kept, candidate in zip(t, fresh, strict=True):
                torch.where(rejected, candidate, kept, out=kept)
            rejected.logical_and_(all_rejected)
        return
    pending = rejected.nonzero().squeeze(-1)
    while count := pending.numel():
        width = max(_CANDIDATES // count, 1)
        *fresh, all_rejected = _candidates(b[pending], x0[pending], width, dim, generator)
        for kept, candidate in zip(t, fresh, strict=True):
            kept[pending] = candidate
        pending = pending[all_rejected]


VON_MISES_FISHER = VonMisesFisherFamily()
