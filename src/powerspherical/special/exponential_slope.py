"""The slope d artanh(t)/dκ of the von Mises–Fisher distribution at a fixed probability, without quadrature.

Let δ = d-1. The slope w = (dt/dκ)/(1-t²) solves (1-t²)w' + (κ(1-t²) - δt)w = E t - t. ``docs/mathematics.md`` derives
two methods that need no integral and no Bessel function:

- ``series``, for large d or large κ: an expansion in powers of 1/R, R² = δ²+4κ², whose coefficients are polynomials
  (``_slope_series``).
- ``recurrence``, for small κ: an exact recurrence from w in dimension d+2 to w in dimension d, started far above d.

The cosine t is passed as 1-t and 1+t, as everywhere in the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.constants import scalar_constant
from powerspherical._torch.modes import is_capturing
from powerspherical.engines import block_size
from powerspherical.special._slope_series import correction_sum

#: In float32 we use the recurrence if d < LOW_DIM and κ < LOW_KAPPA, and otherwise the series.
LOW_DIM, LOW_KAPPA = 32, 40.0
#: Terms of the series in float32. From TWO_TERMS_DIM on two terms are enough.
TERMS, TWO_TERMS_DIM = 3, 64

#: In float64, from this dimension on, we use the series with this number of terms, for every κ and t.
_DOUBLE_DIM, _DOUBLE_TERMS = 64, 8
#: In lower dimensions we use the recurrence for κ < LOW_KAPPA. Below _ROUNDING_DIM it amplifies rounding errors, and we
#: use it only for κ < _ROUNDING_KAPPA.
_ROUNDING_DIM, _ROUNDING_KAPPA = 8, 16.0
#: For larger κ we use the series with _MOST_TERMS terms for rows whose leading term of w is at most _MOST_LEADING. For
#: κ ≥ 40 this holds except in the far lower tail.
_MOST_TERMS, _MOST_LEADING = 12, 0.018

#: Rows per block of a CPU tensor. The intermediate values of a block stay in the cache. With several threads there are
#: at most _MOST_BLOCKS blocks, because the threads wait for each other at the end of each operation.
_BLOCK, _MOST_BLOCKS = 1 << 14, 4


def exponential_slope(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Return w for float32 tensors of one shape.

    The relative error is below 5e-6 for every d ≥ 2, κ up to 1e9 and every t whose two tail probabilities are at least
    1e-7. NaN gives NaN.
    """
    result = torch.empty_like(one_minus_t, memory_format=torch.contiguous_format)
    for minus, plus, k, out in _blocks(one_minus_t, one_plus_t, kappa, result):
        _float32_block(minus, plus, k, dim, out)
    return result


def exponential_slope_double(
    one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor | None]:
    """Return w for float64 tensors of one shape, and a mask of the rows for which it is valid (None: all rows).

    The relative error is below 1e-12 if both tail probabilities of t are at least 1e-7, and below 3e-12 otherwise.
    Invalid rows occur for d < 64 in the far lower tail, and for d < 8 with 16 ≤ κ < 40.
    """
    result = torch.empty_like(one_minus_t, memory_format=torch.contiguous_format)
    if serves_every_row(dim):
        for _, plus, k, out in _blocks(one_minus_t, one_plus_t, kappa, result):
            out.copy_(series(plus, k, dim, _DOUBLE_TERMS))
        return result, None
    known = torch.empty_like(result, dtype=torch.bool)
    for minus, plus, k, out, mask in _blocks(one_minus_t, one_plus_t, kappa, result, known):
        _float64_block(minus, plus, k, dim, out, mask)
    return result, known


def serves_every_row(dim: int) -> bool:
    """Whether the result of ``exponential_slope_double`` is valid for all rows in dimension ``dim``."""
    return dim >= _DOUBLE_DIM


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same rows of all tensors, flattened, and on the CPU in blocks. Contiguous tensors are not copied."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    size = flat[0].numel()
    if size == 0:
        return
    least = block_size(_BLOCK)
    if not flat[0].is_cpu or size <= least:
        yield tuple(flat)
        return
    block = least if torch.get_num_threads() == 1 else max(size // _MOST_BLOCKS, least)
    yield from zip(*(tensor.split(block) for tensor in flat), strict=True)


def _float32_block(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int, out: Tensor) -> None:
    """Write w to ``out``, in float32."""
    if dim >= LOW_DIM:
        out.copy_(series(one_plus_t, kappa, dim, 2 if dim >= TWO_TERMS_DIM else TERMS))
        return
    found = _kappa_range(kappa, LOW_KAPPA)
    if found.some_low:
        start = _start(max(2 * found.largest + 10, dim + found.largest + 6), dim)
        ends = one_minus_t.double(), one_plus_t.double()
        out.copy_(recurrence(*ends, kappa.double().clamp_(max=LOW_KAPPA), dim, start))
    if found.some_high:
        torch.where(kappa < LOW_KAPPA, out, series(one_plus_t, kappa, dim, TERMS), out=out)


def _float64_block(
    one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int, out: Tensor, known: Tensor
) -> None:
    """Write w to ``out``, and whether it is valid to ``known``, in float64."""
    limit = LOW_KAPPA if dim >= _ROUNDING_DIM else _ROUNDING_KAPPA
    found = _kappa_range(kappa, limit)
    low = kappa < limit
    known.copy_(low)
    if found.some_low:
        start = _start(max(2 * found.largest + 24, dim + found.largest + 14), dim)
        out.copy_(recurrence(one_minus_t, one_plus_t, kappa.clamp(max=limit), dim, start))
    if found.some_high:
        _, s = _series_variables(one_plus_t, kappa, dim)
        small = s <= _MOST_LEADING * (dim - 1)
        if small.any():
            known.logical_or_(small)
            torch.where(low, out, series(one_plus_t, kappa, dim, _MOST_TERMS), out=out)


class _KappaRange(NamedTuple):
    """How some concentrations compare with a limit.

    Attributes:
        some_low: whether some κ may be below the limit.
        some_high: whether some κ may be at or above the limit, or NaN.
        largest: an upper bound of the κ below the limit.
    """

    some_low: bool
    some_high: bool
    largest: float


def _kappa_range(kappa: Tensor, limit: float) -> _KappaRange:
    """Compare ``kappa`` with ``limit``. While a CUDA graph is captured, the host cannot read it and assumes both."""
    if is_capturing(kappa):
        return _KappaRange(some_low=True, some_high=True, largest=limit)
    least, largest = (x.item() for x in torch.aminmax(kappa))  # both NaN if one κ is NaN
    some_high = not largest < limit
    return _KappaRange(not least >= limit, some_high, limit if some_high else max(largest, 0.0))


def _start(wanted: float, dim: int) -> int:
    """Return the smallest dimension ≥ ``wanted`` that differs from ``dim`` by an even number."""
    return dim + 2 * math.ceil((wanted - dim) / 2)


def series(one_plus_t: Tensor, kappa: Tensor, dim: int, terms: int) -> Tensor:
    """Return w by the series with ``terms`` terms after the leading one. The tensors are flat and of one length."""
    g, s = _series_variables(one_plus_t, kappa, dim)
    y = s - g
    # Horner's scheme in g gives the coefficients of all powers of y at once. Then Horner's scheme in y.
    *lower, top = correction_sum(g, dim, terms).unbind(0)
    coefficients = torch.addcmul(lower.pop(), top, g)
    for coefficient in reversed(lower):
        coefficients = torch.addcmul(coefficient, coefficients, g, out=coefficients)
    *lower, total = coefficients.unbind(0)
    for coefficient in reversed(lower):
        total = torch.addcmul(coefficient, total, y, out=total)
    return total.mul_(s).add_(1).mul_(s).div_(dim - 1)


def _series_variables(one_plus_t: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return g = δ/R and s = 2δ/(R+δ+2κt), without cancellation: R+δ+2κt = δ + δ²/(R+2κ) + 2κ(1+t)."""
    delta = dim - 1
    # Clamping avoids overflow of 2κ. For such a large κ, w is zero or denormal.
    twice = kappa.clamp(max=torch.finfo(kappa.dtype).max / 8).mul_(2)
    root = torch.hypot(twice, scalar_constant(float(delta), kappa.dtype))
    half_inverse = (delta / (root + twice)).add_(1).addcmul_(twice, one_plus_t, value=1 / delta)
    return delta / root, 2 / half_inverse


def recurrence(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int, start: int) -> Tensor:
    """Return w by the recurrence down from dimension ``start``, for float64 tensors. ``start`` - ``dim`` is even.

    The recurrence is (d-1) w_d = 1 - A_d (t + κ(1-t²) w_{d+2}) with the Bessel ratio A_d = κ/(d + κ A_{d+2}). To avoid
    divisions in the loop, we write w_d = X_d/((d-1) N_d), where

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
