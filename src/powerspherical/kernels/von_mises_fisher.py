"""Draws from the von Mises–Fisher distribution, density ∝ e^{κt}."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from powerspherical.kernels._operator import register, relative_slope
from powerspherical.special import EXPONENTIAL_TILT

#: Candidates drawn in each further round, at least about: a small batch pays for rounds, not for candidates.
_CANDIDATES = 256

#: Rounds, and candidates a row in each, where their number must be fixed: 0.35³² < 3e-15 is left.
_BLIND_ROUNDS, _BLIND_WIDTH = 4, 8


def _propose(
    squared_length: Tensor, b: Tensor, x0: Tensor, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One candidate of Wood (1994) for each entry: 1-t, 1+t, and whether it is rejected.

    With z ~ Beta(β, β), β = (d-1)/2, the candidate is t = (1 - (1+b)z)/(1 - (1-b)z), accepted with a
    probability whose logarithm is κt + (d-1)log(1 - x0 t) - κx0 - (d-1)log(1 - x0²). In y = x0(1-2z), since
    κ(1-x0²) = (d-1)x0, this is (d-1)[r + log(1-r)], r = y/(1+y): without κ, so that nothing large cancels.

    1-2z is a coordinate of a uniform point on the sphere, n/√(n² + S), where n ~ N(0, 1) and S ~ χ²_{d-1} is
    ``squared_length``. Hence z : 1-z = S : (|n| + √(n²+S))² where n > 0, and the other way round where not.
    """
    normal = torch.randn_like(squared_length, generator=generator)
    root = (normal * normal).add_(squared_length).sqrt_()
    large = root.add_(normal.abs()).square_()
    positive = normal > 0
    z = torch.where(positive, squared_length, large)  # both up to a factor, which is of no consequence below
    rest = torch.where(positive, large, squared_length)
    scaled = b * z
    denominator = rest + scaled  # 1 - (1-b)z
    ratio = (rest - z).mul_(x0).mul_(1 + b).div_(denominator).mul_(0.5)  # 1+y = 2(1 - (1-b)z)/(1+b)
    log_acceptance = torch.log1p(-ratio).add_(ratio).mul_(dim - 1)
    # Written so that a NaN is not rejected: it would be drawn again for ever.
    rejected = log_acceptance < torch.rand_like(ratio, generator=generator).log_()
    return scaled.div_(denominator).mul_(2), rest.div_(denominator).mul_(2), rejected


def _draw(
    squared_length: Tensor, concentration: Tensor, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """1-t and 1+t by Wood's rejection, which accepts at least 65% of its candidates at any κ and d.

    dt/dκ needs no noise beside them; what is handed on in its place is of no consequence.
    """
    kappa = concentration.reshape(-1)
    degrees = dim - 1
    root = torch.hypot(2 * kappa, kappa.new_full((), degrees))  # a square of κ could overflow
    b = degrees / (2 * kappa + root)
    x0 = 2 * kappa / (root + degrees)  # (1-b)/(1+b), without the subtraction
    one_minus_t, one_plus_t, rejected = _propose(squared_length.reshape(-1), b, x0, dim, generator)
    blind = kappa.is_cuda and torch.cuda.is_current_stream_capturing()
    (_redraw_blindly if blind else _redraw)(one_minus_t, one_plus_t, rejected, b, x0, dim, generator)
    one_minus_t, one_plus_t, b = (x.view(concentration.shape) for x in (one_minus_t, one_plus_t, b))
    return one_minus_t, one_plus_t, b


def _candidates(
    b: Tensor, x0: Tensor, width: int, dim: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """1-t and 1+t of the first accepted among ``width`` fresh candidates for each row, and whether none was."""
    fresh = torch._standard_gamma(b.new_full((len(b), width), (dim - 1) / 2), generator).mul_(2)
    *ends, rejected = _propose(fresh, b.unsqueeze(-1), x0.unsqueeze(-1), dim, generator)
    first = rejected.to(torch.uint8).argmin(-1, keepdim=True)
    one_minus_t, one_plus_t, none = (x.gather(-1, first).squeeze(-1) for x in (*ends, rejected))
    return one_minus_t, one_plus_t, none


def _redraw(
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    rejected: Tensor,
    b: Tensor,
    x0: Tensor,
    dim: int,
    generator: torch.Generator | None,
) -> None:
    """Replace the rejected candidates, in place, with lengths of their own, until none is left."""
    pending = rejected.nonzero().squeeze(-1)
    while count := pending.numel():
        width = max(_CANDIDATES // count, 1)
        one_minus_t[pending], one_plus_t[pending], none = _candidates(
            b[pending], x0[pending], width, dim, generator
        )
        pending = pending[none]


def _redraw_blindly(
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    rejected: Tensor,
    b: Tensor,
    x0: Tensor,
    dim: int,
    generator: torch.Generator | None,
) -> None:
    """The same for a CUDA graph, where the host cannot learn whether a row is left: enough rounds for any."""
    for _ in range(_BLIND_ROUNDS):
        *fresh, none = _candidates(b, x0, _BLIND_WIDTH, dim, generator)
        for kept, candidate in zip((one_minus_t, one_plus_t), fresh, strict=True):
            torch.where(rejected, candidate, kept, out=kept)
        rejected.logical_and_(none)


def _derivative(
    one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, concentration: Tensor, dim: int
) -> Tensor:
    """(dt/dκ)/(1-t²) at a fixed probability. Differentiating through the rejection would be biased."""
    return relative_slope(EXPONENTIAL_TILT, one_minus_t, one_plus_t, concentration, dim)


_sample = register("von_mises_fisher", _draw, _derivative)


def von_mises_fisher(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int] | None = None,
    dim: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points x of the unit sphere with density ∝ exp(κ μᵀx), differentiable once in both arguments.

    Args:
        loc: the mean directions μ, unit vectors, of shape (…, d), of any floating dtype.
        concentration: κ ≥ 0, of shape (…), float64 where ``loc`` is, else float32; right up to 1e9 and
            beyond. NaN gives NaN.
        shape: batch shape of the draws. Default: the broadcast of ``loc.shape[:-1]`` and ``concentration.shape``.
        dim: dimension used for the law of t = μᵀx. Default: ``loc.shape[-1]``.
        generator: source of the random numbers, on the device of ``loc``. Default: torch's generator of that device.
    """
    return _sample(loc, concentration, shape, dim, generator)
