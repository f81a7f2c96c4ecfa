"""The functions of ``bessel`` and their derivatives as one Triton kernel, in float32.

The formulas are those of ``bessel``. The constant FORM of the kernel selects the function. The compiler
removes the arithmetic that the function does not need. The coefficients of the polynomials are in a small table that
depends only on the dimension.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import triton
import triton.language as tl
from torch import Tensor

from powerspherical.special._debye import FORMS, LONG_ROW, SHORT_ROW, kernel_table
from powerspherical.special._triton_launch import value_and_slope
from powerspherical.special.bessel import kernel_numbers
from powerspherical.special.triton_elementary import log1p

_RATIO = tl.constexpr(FORMS.index("ratio"))
_COMPLEMENT = tl.constexpr(FORMS.index("complement"))
_SLOPE = tl.constexpr(FORMS.index("slope"))
_RELATIVE_ENTROPY = tl.constexpr(FORMS.index("relative_entropy"))
_LOG_PARTITION = tl.constexpr(FORMS.index("log_partition"))
_SCALED_LOG_PARTITION = tl.constexpr(FORMS.index("scaled_log_partition"))
_ENTROPY_AND_MEAN = tl.constexpr(FORMS.index("entropy_and_mean"))

_LONG = tl.constexpr(LONG_ROW)
_SHORT = tl.constexpr(SHORT_ROW)


@triton.jit
def _polynomial(table_ptr, row, x, LENGTH: tl.constexpr):
    """Evaluate the polynomial at ``x`` whose coefficients are in row ``row`` of the table."""
    row_ptr = table_ptr + row * _LONG
    value = x * 0.0 + tl.load(row_ptr + (LENGTH - 1))
    for i in tl.static_range(2, LENGTH + 1):
        value = value * x + tl.load(row_ptr + (LENGTH - i))
    return value


@triton.jit
def _moderate(kappa, table_ptr, top, STEPS: tl.constexpr):
    """Ratio, complement, slope, curvature and relative entropy by Debye's expansion and the recurrence."""
    z = kappa / top
    low = tl.where(z > 1e9, 1.0, z)  # avoids overflow of the square; keeps NaN
    s = tl.where(z > 1e9, z, tl.sqrt(1.0 + low * low))
    p = 1.0 / s
    u, zp, main = 2.0 * p - 1.0, z * p, 1.0 / (1.0 + p)
    correction = p * _polynomial(table_ptr, 0, u, _SHORT)
    value = zp * (main + correction)
    complement = (1.0 + 1.0 / (s + z)) / (1.0 + s) - zp * correction
    slope = p * p * (main + _polynomial(table_ptr, 1, u, _SHORT)) / top
    bend = main * (1.0 + main) + _polynomial(table_ptr, 2, u, _LONG)
    curvature = -zp * p * p * p * bend / (top * top)
    q = z * (z / (1.0 + s))
    entropy = top * log1p(0.5 * q) + 0.5 * (log1p(q) - zp * zp) + q * p * _polynomial(table_ptr, 3, u, _SHORT)
    if STEPS > 0:
        top_value, top_complement = value, complement
        product = kappa * 0.0
        for i in tl.static_range(STEPS):
            twice = 2.0 * (top - i)
            scaled = kappa * value
            inverse = 1.0 / (twice + scaled)
            excess = scaled / twice
            product += excess + product * excess
            numerator = twice - kappa * (kappa * slope)
            turn = kappa * (2.0 * slope + kappa * curvature)
            growth = 2.0 * numerator * (value + kappa * slope)
            curvature = -(turn + growth * inverse) * inverse * inverse
            slope = numerator * inverse * inverse
            value = kappa * inverse
            rest = twice - kappa * complement
            complement = rest / (rest + kappa)
        gain = tl.where(value < 0.5, value - top_value, top_complement - complement)
        entropy += kappa * gain - log1p(product)
    return value, complement, slope, curvature, entropy


@triton.jit
def _far(kappa, table_ptr, half, constant):
    """The same by Hankel's expansion, for large κ."""
    x = 1.0 / kappa
    complement = x * (half + x * _polynomial(table_ptr, 4, x, _SHORT))
    slope = x * x * (half + x * _polynomial(table_ptr, 5, x, _SHORT))
    curvature = -x * x * x * (2.0 * half + x * _polynomial(table_ptr, 6, x, _SHORT))
    entropy = half * tl.log(kappa) - constant + x * _polynomial(table_ptr, 7, x, _SHORT)
    return 1.0 - complement, complement, slope, curvature, entropy


@triton.jit
def bessel_functions(kappa, table_ptr, top, start, half, constant, STEPS: tl.constexpr):
    """Ratio, complement, slope, curvature and relative entropy. ``bessel_constants`` returns the other arguments."""
    if STEPS > 0:
        large = kappa >= start
        ratio, complement, slope, curvature, entropy = _moderate(
            tl.where(large, start, kappa), table_ptr, top, STEPS
        )
        if tl.max(large.to(tl.int32), 0) > 0:  # programs without a large κ skip Hankel's expansion
            far = _far(tl.where(large, kappa, start), table_ptr, half, constant)
            ratio = tl.where(large, far[0], ratio)
            complement = tl.where(large, far[1], complement)
            slope = tl.where(large, far[2], slope)
            curvature = tl.where(large, far[3], curvature)
            entropy = tl.where(large, far[4], entropy)
    else:
        ratio, complement, slope, curvature, entropy = _moderate(kappa, table_ptr, top, STEPS)
    return ratio, complement, slope, curvature, entropy


@triton.jit(do_not_specialize=["count"])
def _evaluate(
    value_ptr,
    slope_ptr,
    kappa_ptr,
    table_ptr,
    count: tl.int64,
    top: tl.float32,
    start: tl.float32,
    half: tl.float32,
    constant: tl.float32,
    FORM: tl.constexpr,
    STEPS: tl.constexpr,
    NEEDS_SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = index < count
    kappa = tl.load(kappa_ptr + index, mask=there, other=1.0)
    ratio, complement, slope, curvature, entropy = bessel_functions(
        kappa, table_ptr, top, start, half, constant, STEPS
    )
    if FORM == _RATIO:
        value, derivative = ratio, slope
    elif FORM == _COMPLEMENT:
        value, derivative = complement, -slope
    elif FORM == _SLOPE:
        value, derivative = slope, curvature
    elif FORM == _RELATIVE_ENTROPY:
        value, derivative = entropy, kappa * slope
    elif FORM == _LOG_PARTITION:
        value, derivative = kappa * ratio - entropy, ratio
    elif FORM == _SCALED_LOG_PARTITION:
        value, derivative = -kappa * complement - entropy, -complement
    else:
        tl.static_assert(FORM == _ENTROPY_AND_MEAN)
        value, derivative = entropy, -complement
    tl.store(value_ptr + index, value, mask=there)
    if NEEDS_SLOPE:
        tl.store(slope_ptr + index, derivative, mask=there)


def bessel_constants(like: Tensor, order: float) -> tuple[Tensor, int, float, float, float, float]:
    """Return the table, STEPS and the numbers of ``bessel_functions``, on the device of ``like``."""
    steps, numbers = kernel_numbers(order)
    return kernel_table(like, order, numbers[0]), steps, *numbers


def evaluate(form: str, kappa: Tensor, order: float, *, needs_slope: bool) -> tuple[Tensor, Tensor]:
    """Return a function of κ and its derivative.

    Args:
        form: one of ``_debye.FORMS``.
        kappa: κ ≥ 0, any shape, float32.
        order: ν = d/2-1.
        needs_slope: if False, the derivative is an empty tensor.
    """
    table, steps, *numbers = bessel_constants(kappa, order)
    return value_and_slope(
        _evaluate,
        kappa,
        tables=[table],
        numbers=tuple(numbers),
        constants=(FORMS.index(form), steps),
        needs_slope=needs_slope,
    )
