"""Elementary functions for Triton kernels in float32. Import this module only where Triton is installed."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import triton
import triton.language as tl


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
