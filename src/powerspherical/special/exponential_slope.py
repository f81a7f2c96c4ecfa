"""d artanh(t)/dκ of the von Mises–Fisher distribution at a fixed probability, by algebra instead of a quadrature.

With δ = d-1 the slope w = (dt/dκ)/(1-t²) solves (1-t²)w' + (κ(1-t²) - δt)w = E t - t. ``docs/mathematics.md`` derives
two ways to w that need no integral and no Bessel function:

- ``series``: an expansion in powers of 1/R, R² = δ²+4κ², with polynomials for coefficients (``_slope_series``).
  It is for large d or large κ.
- ``recurrence``: an exact recurrence from w in dimension d+2 to w in dimension d, started far above. It is for small κ.

The cosine t is given by 1-t and 1+t, as everywhere in the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.constants import scalar_constant
from powerspherical._torch.modes import is_capturing
from powerspherical.special._slope_series import correction_sum

#: In float32 the series serves from this dimension on, and below it from this concentration on; else the recurrence.
LOW_DIM, LOW_KAPPA = 32, 40.0
#: Terms of the series in float32; from TWO_TERMS_DIM on two are enough.
TERMS, TWO_TERMS_DIM = 3, 64

#: In float64 eight terms serve from this dimension on, for every κ and t.
_DOUBLE_DIM, _DOUBLE_TERMS = 64, 8
#: Below it the recurrence serves for κ < LOW_KAPPA. In dimensions below 8 it amplifies rounding, and serves for κ < 16.
_ROUNDING_DIM, _ROUNDING_KAPPA = 8, 16.0
#: For larger κ twelve terms serve where the leading term of w is at most this: for κ ≥ 40 at any likely t.
_MOST_TERMS, _MOST_LEADING = 12, 0.018

#: Rows of a CPU tensor that are treated at a time, so that intermediate values stay in the cache. With several
#: threads there are at most _MOST_BLOCKS: threads wait for each other at the end of each operation.
_BLOCK, _MOST_BLOCKS = 1 << 14, 4


def exponential_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """w in float32, from float32 tensors of one shape.

    The relative error is below 5e-6 for κ up to 1e9, every d ≥ 2 and every t whose probability and its complement are
    at least 1e-7. NaN gives NaN.
    """
    result = torch.empty_like(one_minus_t, memory_format=torch.contiguous_format)
    for minus, plus, k, out in _blocks(one_minus_t, one_plus_t, kappa, result):
        _single_block(minus, plus, k, dim, out)
    return result


def exponential_slope_double(
    one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor | None]:
    """w in float64, from float64 tensors of one shape, and for which rows it is right: None stands for all.

    The relative error is below 1e-12 where the probability of t and its complement are at least 1e-7, and below 3e-12
    elsewhere. Rows that are left over have d < 64 and are in the far lower tail, or have d < 8 and 16 ≤ κ < 40.
    """
    result = torch.empty_like(one_minus_t, memory_format=torch.contiguous_format)
    if serves_every_row(dim):
        for _, plus, k, out in _blocks(one_minus_t, one_plus_t, kappa, result):
            out.copy_(series(plus, k, dim, _DOUBLE_TERMS))
        return result, None
    known = torch.empty_like(result, dtype=torch.bool)
    for minus, plus, k, out, mask in _blocks(one_minus_t, one_plus_t, kappa, result, known):
        _double_block(minus, plus, k, dim, out, mask)
    return result, known


def serves_every_row(dim: int) -> bool:
    """Whether ``exponential_slope_double`` leaves no row over in dimension d."""
    return dim >= _DOUBLE_DIM


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of all tensors, flat and on the CPU some at a time; views of those that are contiguous."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    size = flat[0].numel()
    if size == 0:
        return
    if not flat[0].is_cpu or size <= _BLOCK:
        yield tuple(flat)
        return
    block = _BLOCK if torch.get_num_threads() == 1 else max(size // _MOST_BLOCKS, _BLOCK)
    yield from zip(*(tensor.split(block) for tensor in flat), strict=True)


def _single_block(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int, out: Tensor) -> None:
    """Write w to ``out``; float32."""
    if dim >= LOW_DIM:
        out.copy_(series(one_plus_t, kappa, dim, 2 if dim >= TWO_TERMS_DIM else TERMS))
        return
    spread = _spread(kappa, LOW_KAPPA)
    if spread.some_low:
        start = _start(max(2 * spread.most + 10, dim + spread.most + 6), dim)
        ends = one_minus_t.double(), one_plus_t.double()
        out.copy_(recurrence(*ends, kappa.double().clamp_(max=LOW_KAPPA), dim, start))
    if spread.some_high:
        torch.where(kappa < LOW_KAPPA, out, series(one_plus_t, kappa, dim, TERMS), out=out)


def _double_block(
    one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int, out: Tensor, known: Tensor
) -> None:
    """Write w to ``out``, and whether it is right to ``known``; float64."""
    limit = LOW_KAPPA if dim >= _ROUNDING_DIM else _ROUNDING_KAPPA
    spread = _spread(kappa, limit)
    low = kappa < limit
    known.copy_(low)
    if spread.some_low:
        start = _start(max(2 * spread.most + 24, dim + spread.most + 14), dim)
        out.copy_(recurrence(one_minus_t, one_plus_t, kappa.clamp(max=limit), dim, start))
    if spread.some_high:
        _, s = _series_variables(one_plus_t, kappa, dim)
        small = s <= _MOST_LEADING * (dim - 1)
        if small.any():
            known.logical_or_(small)
            torch.where(low, out, series(one_plus_t, kappa, dim, _MOST_TERMS), out=out)


class _Spread(NamedTuple):
    """Whether some κ lie below a limit, whether some do not, and the largest κ or the limit, whichever is smaller."""

    some_low: bool
    some_high: bool
    most: float


def _spread(kappa: Tensor, limit: float) -> _Spread:
    """In a CUDA graph, which the host cannot look into, both kinds are assumed to be there. NaN is not low."""
    if is_capturing(kappa):
        return _Spread(some_low=True, some_high=True, most=limit)
    least, most = (x.item() for x in torch.aminmax(kappa))
    some_high = not most < limit  # a NaN makes both of them NaN
    return _Spread(not least >= limit, some_high, limit if some_high else max(most, 0.0))


def _start(wanted: float, dim: int) -> int:
    """The least dimension ≥ ``wanted`` at an even distance above d."""
    return dim + 2 * math.ceil((wanted - dim) / 2)


def series(one_plus_t: Tensor, kappa: Tensor, dim: int, terms: int) -> Tensor:
    """w by the series with ``terms`` corrections, in the dtype of the arguments, which are flat and of one length."""
    g, s = _series_variables(one_plus_t, kappa, dim)
    y = s - g
    # Horner's scheme in g, for the coefficients of all powers of y at once, and then in y.
    *lower, top = correction_sum(g, dim, terms).unbind(0)
    coefficients = torch.addcmul(lower.pop(), top, g)
    for coefficient in reversed(lower):
        coefficients = torch.addcmul(coefficient, coefficients, g, out=coefficients)
    *lower, total = coefficients.unbind(0)
    for coefficient in reversed(lower):
        total = torch.addcmul(coefficient, total, y, out=total)
    return total.mul_(s).add_(1).mul_(s).div_(dim - 1)


def _series_variables(one_plus_t: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """g = δ/R and s = 2δ/(R+δ+2κt), without cancellation: R+δ+2κt = δ + δ²/(R+2κ) + 2κ(1+t)."""
    delta = dim - 1
    # Twice a larger κ could overflow. Where κ is so large, w is zero in all digits but those of denormal numbers.
    twice = kappa.clamp(max=torch.finfo(kappa.dtype).max / 8).mul_(2)
    root = torch.hypot(twice, scalar_constant(float(delta), kappa.dtype))
    half_inverse = (delta / (root + twice)).add_(1).addcmul_(twice, one_plus_t, value=1 / delta)
    return delta / root, 2 / half_inverse


def recurrence(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int, start: int) -> Tensor:
    """w by the recurrence down from dimension ``start``, d plus an even number; float64.

    (d-1) w_d = 1 - A_d (t + κ(1-t²) w_{d+2}) with the Bessel ratio A_d = κ/(d + κ A_{d+2}). Without divisions it is
    w_d = X_d/((d-1) N_d), where

        N_j = N_{j+2} + κ² N_{j+4}/(j(j+2)),    X_j = N_j - κt N_{j+2}/j - κ²(1-t²) X_{j+2}/(j(j+1)).
    """
    tilt = (one_plus_t - one_minus_t).mul_(kappa).mul_(0.5)
    square = kappa * kappa
    spread = (square * one_minus_t).mul_(one_plus_t)
    above, n, x = torch.ones_like(kappa), torch.ones_like(kappa), torch.ones_like(kappa)
    for j in range(start - 2, dim - 1, -2):
        above, n = n, torch.addcmul(n, square, above, value=1 / (j * (j + 2)), out=above)
        x = torch.addcmul(n, spread, x, value=-1 / (j * (j + 1)), out=x)
        x.addcmul_(tilt, above, value=-1 / j)
    return x.div_(n).div_(dim - 1)
