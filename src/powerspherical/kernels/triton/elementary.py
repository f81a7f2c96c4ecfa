"""Elementary functions for Triton kernels in float32, also the operations of ``powerspherical.formulas.ops``.

Import this module only where Triton is installed.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import triton
import triton.language as tl


@triton.jit
def at_least(x, bound):
    """Return x, or ``bound`` if that is larger. NaN stays NaN, unlike with ``tl.maximum``."""
    return tl.where(x < bound, bound, x)


@triton.jit
def at_most(x, bound):
    """Return x, or ``bound`` if that is smaller. NaN stays NaN."""
    return tl.where(x > bound, bound, x)


@triton.jit
def hypot(x, y):
    """√(x² + y²) of positive numbers, without overflow of the squares."""
    longer = tl.where(x > y, x, y)
    ratio = tl.where(x > y, y, x) / longer
    return longer * tl.sqrt(1.0 + ratio * ratio)


@triton.jit
def log1p(x):
    """log(1+x), accurate also for small x (Kahan) and for x = inf."""
    y = 1.0 + x
    safe = tl.where(y == 1.0, 2.0, y)
    correction = tl.where(y > 1e8, 1.0, x / (safe - 1.0))
    return tl.where(y == 1.0, x, tl.log(safe) * correction)


@triton.jit
def expm1(x):
    """e^x - 1, by its power series for |x| < ½."""
    near = tl.abs(x) < 0.5
    s = tl.where(near, x, 0.0)
    series = 1 / 120 + s * (1 / 720 + s * (1 / 5040 + s * (1 / 40320 + s * (1 / 362880))))
    series = s * (1.0 + s * (0.5 + s * (1 / 6 + s * (1 / 24 + s * series))))
    return tl.where(near, series, tl.exp(x) - 1.0)


#: log₂ e, and what its rounding to float32 leaves.
_LOG2_E = tl.constexpr(1.44269502162933349609375)
_LOG2_E_REST = tl.constexpr(1.9259629911266175e-08)
_LOG_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def exp(x):
    """e^x with a relative error of a few ulp. That of ``tl.exp``, which rounds x·log₂ e, grows with |x|."""
    product = x * _LOG2_E
    rest = tl.fma(x, tl.full(x.shape, _LOG2_E, tl.float32), -product) + x * _LOG2_E_REST
    value = tl.exp2(product)
    return tl.where(tl.abs(x) < 88.0, value + value * (_LOG_2 * rest), value)
