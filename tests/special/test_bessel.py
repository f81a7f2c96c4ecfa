"""log I_ν of any real order against mpmath, and bounds of the ratio of consecutive orders."""

from __future__ import annotations

import functools
import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerspherical.special import bessel_ratio, bessel_ratio_complement, log_bessel_i

ORDERS = [0, 0.3, 0.5, 1, 7.25, 50, 999.5, 1e5]
ARGUMENTS = [1e-8, 1e-3, 0.5, 1.0, 5.0, 19.9, 41.0, 300.0, 1e3, 1e5]

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@functools.cache
def reference(order: float, x: float) -> tuple[float, float]:
    """Return log I_ν(x) and its derivative ν/x + I_{ν+1}(x)/I_ν(x), by the power series in 40 digits."""
    with mpmath.workdps(40):
        x, order = mpmath.mpf(x), mpmath.mpf(order)
        series, above = (mpmath.hyp0f1(order + i, x * x / 4, maxterms=10**6) for i in (1, 2))
        log_value = order * mpmath.log(x / 2) - mpmath.loggamma(order + 1) + mpmath.log(series)
        return float(log_value), float(order / x + x / (2 * (order + 1)) * above / series)


@dtypes
@pytest.mark.parametrize("order", ORDERS)
def test_log_bessel_i_agrees_with_mpmath(order: float, dtype: torch.dtype) -> None:
    x = torch.tensor(ARGUMENTS, dtype=dtype, requires_grad=True)
    value = log_bessel_i(order, x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert value.dtype == slope.dtype == dtype
    for i, argument in enumerate(x.tolist()):
        expected, expected_slope = reference(order, argument)
        # The terms ν log(x/2), lnΓ(ν+1) and x may cancel, which leaves their rounding errors.
        scale = max(abs(order * math.log(argument / 2)), math.lgamma(order + 1), argument)
        eps = torch.finfo(dtype).eps
        assert abs(value[i].item() - expected) <= 3 * eps * scale, f"at x = {argument}"
        assert abs(slope[i].item() - expected_slope) <= 4 * eps * abs(expected_slope), (
            f"slope at x = {argument}"
        )


@dtypes
def test_log_bessel_i_at_zero(dtype: torch.dtype) -> None:
    x = torch.zeros(2, dtype=dtype, requires_grad=True)
    value = log_bessel_i(0, x)
    assert value.tolist() == [0, 0]
    assert torch.autograd.grad(value.sum(), x)[0].tolist() == [0, 0]
    assert log_bessel_i(0.5, x).tolist() == [-math.inf, -math.inf]


def test_log_bessel_i_does_not_overflow() -> None:
    x = torch.tensor([1e4, 1e9], dtype=torch.float64)
    expected = x - 0.5 * torch.log(2 * math.pi * x) + torch.log1p(-torch.exp(-2 * x))  # I_½ = √(2/πx) sinh x
    torch.testing.assert_close(log_bessel_i(0.5, x), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("order", [-0.5, -1, math.nan])
def test_log_bessel_i_refuses_a_negative_order(order: float) -> None:
    with pytest.raises(ValueError, match="order must be a number ≥ 0"):
        log_bessel_i(order, torch.ones(3))


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(
    dim=st.one_of(st.integers(2, 60), st.sampled_from([100, 768, 10**4, 10**6])),
    kappa=st.floats(-6, 9).map(lambda exponent: 10**exponent),
)
def test_bessel_ratio_keeps_the_bounds_of_amos(dim: int, kappa: float) -> None:
    """κ/(b + √(κ² + (b+1)²)) ≤ A ≤ κ/(b + √(κ² + b²)), b = (d-1)/2 (Math. Comp. 28, 1974); 1-A likewise."""
    b, rounding = (dim - 1) / 2, 1e-14
    x = torch.tensor(kappa, dtype=torch.float64)
    ratio, complement = bessel_ratio(x, dim).item(), bessel_ratio_complement(x, dim).item()
    low, high = (b + math.hypot(kappa, b + 1), b + math.hypot(kappa, b))
    assert kappa / low * (1 - rounding) <= ratio <= kappa / high * (1 + rounding)
    # √(κ²+a²) - κ = a²/(√(κ²+a²) + κ)
    least, most = (
        (b + a * a / (math.hypot(kappa, a) + kappa)) / (b + math.hypot(kappa, a)) for a in (b, b + 1)
    )
    assert least * (1 - rounding) <= complement <= most * (1 + rounding)
