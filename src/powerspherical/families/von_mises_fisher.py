"""The von Mises–Fisher family, density ∝ e^{κt} (Fisher 1953; Mardia & Jupp 2000, section 9.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical._torch.elementary import hypot
from powerspherical._torch.modes import is_capturing
from powerspherical._torch.random import standard_gamma
from powerspherical.families import two_sphere
from powerspherical.families._precise import Arc, PreciseFamily
from powerspherical.families.base import Family, PointSums
from powerspherical.special import bessel, curves
from powerspherical.special.bessel import log_hyp0f1_gain
from powerspherical.special.exponential_slope import (
    exponential_slope,
    exponential_slope_double,
    serves_every_row,
)

#: After the first round, we draw about this many candidates per round even if fewer rows are left. Several candidates
#: per row save rounds, which dominate the time of a small batch.
_CANDIDATES = 256

#: Rounds and candidates per row in each round, if the host cannot see whether a row is left (CUDA graphs). The
#: probability that all candidates of a row are rejected is at most 0.35³² < 3e-15.
_BLIND_ROUNDS, _BLIND_WIDTH = 4, 8


class VonMisesFisherFamily(PreciseFamily):
    """The von Mises–Fisher family, with the statistic T = t-1.

    The normaliser of the marginal contains the Bessel function of order d/2-1. De Cao & Aziz (2020) print (d-1)/2.
    ``VON_MISES_FISHER`` is the only instance. ``VonMisesFisher`` states its accuracy.

    >>> VON_MISES_FISHER.mean_cosine(torch.tensor([0.0, 2.0]), 3)  # coth κ - 1/κ
    tensor([0.0000, 0.5373])
    """

    name = "von_mises_fisher"
    title = "von Mises–Fisher"
    peak = 1.0
    linear = True

    def statistic(self, one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
        return -one_minus_t

    def mean_statistic(self, kappa: Tensor, dim: int) -> Tensor:
        return -bessel.bessel_ratio_complement(kappa, dim)

    def variance_statistic(self, kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_slope(kappa, dim)

    def relative_entropy(self, kappa: Tensor, dim: int) -> Tensor:
        return bessel.exponential_relative_entropy(kappa, dim)

    def relative_entropy_and_slope(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return curves.value_and_slope(kappa, "von_mises_fisher", "entropy", dim)

    def offset_and_mean_statistic(self, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        offset, loss = curves.value_and_slope(kappa, "von_mises_fisher", "offset", dim)
        return offset, -loss

    def log_partition(self, kappa: Tensor, dim: int) -> Tensor:
        return bessel.log_hyp0f1(kappa, dim)

    def mean_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio(kappa, dim)

    def mean_cosine_complement(self, kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_complement(kappa, dim)

    def variance_cosine(self, kappa: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_slope(kappa, dim)

    def quantile_values(
        self, u: Tensor, complement: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        if dim == 3:
            return two_sphere.von_mises_fisher_quantile(u, complement, kappa)
        return super().quantile_values(u, complement, kappa, dim)

    def draw_cosine(
        self, squared_length: Tensor, kappa: Tensor, dim: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw t by inversion at d = 3, and otherwise by Wood's rejection (1994).

        The rejection accepts at least 65% of its candidates at any κ and d. Differentiating through it would be biased.
        So ``rapidity_slope`` is the implicit derivative, which does not need the noise.
        """
        if dim == 3:
            return *two_sphere.von_mises_fisher_ends(squared_length, kappa), squared_length.clone()
        flat = kappa.reshape(-1)
        degrees = dim - 1
        root = torch.hypot(2 * flat, flat.new_full((), degrees))  # κ² could overflow
        b = degrees / (2 * flat + root)
        x0 = 2 * flat / (root + degrees)  # (1-b)/(1+b), without the subtraction
        one_minus_t, one_plus_t, rejected = _propose(squared_length.reshape(-1), b, x0, dim, generator)
        redraw = _redraw_blindly if is_capturing(flat) else _redraw
        redraw((one_minus_t, one_plus_t), rejected, b, x0, dim, generator)
        return one_minus_t.view(kappa.shape), one_plus_t.view(kappa.shape), b.view(kappa.shape)

    def rapidity_slope(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, kappa: Tensor, dim: int
    ) -> Tensor:
        """The implicit derivative d artanh(t)/dκ, with relative error 5e-6 in float32 and 1e-12 in float64.

        Computed by a closed form at d = 3, and otherwise by a series or a recurrence. In float64 these do not cover all
        rows (see ``exponential_slope_double``), and the quadrature ``implicit_slope`` computes the others.
        """
        if kappa.shape != one_minus_t.shape:
            kappa = kappa.expand_as(one_minus_t)
        if dim == 3:
            return two_sphere.von_mises_fisher_slope(one_minus_t, one_plus_t, kappa)
        with torch.no_grad():
            if one_minus_t.dtype != torch.float64:
                return exponential_slope(one_minus_t, one_plus_t, kappa, dim)
            # During a capture the host cannot read which rows are left.
            if not serves_every_row(dim) and is_capturing(kappa):
                return super().rapidity_slope(one_minus_t, one_plus_t, noise, kappa, dim)
            slope, known = exponential_slope_double(one_minus_t, one_plus_t, kappa, dim)
            if known is not None and not known.all():
                left = ~known
                slope[left] = super().rapidity_slope(
                    one_minus_t[left], one_plus_t[left], noise, kappa[left], dim
                )
            return slope

    def concentration_from_mean_cosine(self, length: Tensor, complement: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_inverse(length, dim, complement)

    def concentration_from_mean_statistic(self, mean: Tensor, dim: int) -> Tensor:
        return bessel.bessel_ratio_inverse(torch.clamp(1 + mean, min=0.0), dim, torch.clamp(-mean, max=1.0))

    def concentration_guess(self, nats: Tensor, dim: int) -> Tensor:
        # KL ≈ N log1p(q/2) with q = √(1+z²) - 1, z = κ/N, N = (d-1)/2, solved for κ.
        order = (dim - 1) / 2
        q = 2 * torch.expm1(nats / order)
        return order * torch.sqrt(q * (q + 2))

    def pull_and_bend(
        self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        return torch.ones_like(one_minus_t), torch.zeros_like(one_minus_t)

    def log_offset(self, kappa: Tensor, dim: int) -> Tensor:
        return super().log_offset(kappa, dim) - kappa

    def log_densities_(
        self, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return cosines.mul_(kappa).add_(offsets), ()

    def point_sums_(self, kept: tuple[Tensor, ...], shares: Tensor, kappa: Tensor, dim: int) -> PointSums:
        count = shares.sum(1).double()
        nothing = torch.zeros_like(count)
        return PointSums(count, shares, nothing, nothing)

    def mean_loss(self, p: Family, kappa_p: Tensor, dim: int, *, single: bool = False) -> Tensor:
        return p.mean_cosine_complement(kappa_p, dim)

    def mean_misalignment(
        self, p: Family, kappa_p: Tensor, haversine: Tensor, dim: int, *, single: bool = False
    ) -> Tensor:
        return 2 * haversine * p.mean_cosine(kappa_p, dim)

    def log_shrink(self, kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
        # e(b) = exp(G(κb) + κb)
        return -(log_hyp0f1_gain(kappa, lower, gap, dim) + kappa * gap)

    def below_mean(self, one_minus_t: Tensor, deviation: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return deviation < 0  # T and t differ by a constant, so the Bessel ratio is not needed again

    def statistic_slope(self, sine: Tensor, half_tangent: Tensor) -> Tensor:
        return -sine

    def statistic_curvature(self, kappa: Tensor) -> Tensor:
        # The mean of cos over [0, φ] in the quadratic sense, (1-cos φ)/(φ²/2), is least at φ = π: 4/π² > 0.405.
        return 0.405 * kappa

    def rapidity_mode_odds(self, kappa: Tensor, dim: int) -> Tensor:
        return (dim - 1) / (2 * kappa + hypot(2 * kappa, kappa.new_full((), dim - 1)))

    def statistic_change(self, arc: Arc) -> Tensor:
        return arc.cosine_change

    def widened_window(self, window: Tensor, t: Tensor, kappa: Tensor, exponent: float) -> Tensor:
        # Past the equator the slope falls off: cut where the exponential itself has fallen by `exponent`.
        target = torch.clamp(t - exponent / torch.clamp(kappa, min=1e-30), min=-1.0)
        return torch.maximum(window, torch.acos(target) - torch.acos(t))


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
    normal = torch.randn_like(squared_length, generator=generator)
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
    rejected = log_acceptance < torch.rand_like(ratio, generator=generator).log_()
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


_Ends = tuple[Tensor, Tensor]  # 1-t and 1+t


def _redraw(
    ends: _Ends, rejected: Tensor, b: Tensor, x0: Tensor, dim: int, generator: torch.Generator | None
) -> None:
    """Replace rejected candidates in place, until all rows have an accepted one."""
    pending = rejected.nonzero().squeeze(-1)
    while count := pending.numel():
        width = max(_CANDIDATES // count, 1)
        *fresh, all_rejected = _candidates(b[pending], x0[pending], width, dim, generator)
        for kept, candidate in zip(ends, fresh, strict=True):
            kept[pending] = candidate
        pending = pending[all_rejected]


def _redraw_blindly(
    ends: _Ends, rejected: Tensor, b: Tensor, x0: Tensor, dim: int, generator: torch.Generator | None
) -> None:
    """Like ``_redraw``, with a fixed number of rounds: in a CUDA graph the host cannot see whether a row is left."""
    for _ in range(_BLIND_ROUNDS):
        *fresh, all_rejected = _candidates(b, x0, _BLIND_WIDTH, dim, generator)
        for kept, candidate in zip(ends, fresh, strict=True):
            torch.where(rejected, candidate, kept, out=kept)
        rejected.logical_and_(all_rejected)


VON_MISES_FISHER = VonMisesFisherFamily()
