"""Functions of κ as tables: accuracy and derivatives with each engine, the ends of the axis, layouts, inverses.

``tests/families/test_functions.py`` and ``test_mobius.py`` compare them with mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from helpers.engines import Engine, assert_threads_change_nothing, negative_view
from helpers.examples import dtypes
from powerspherical import engines, special
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER
from powerspherical.special import (
    bessel_ratio,
    bessel_ratio_complement,
    bessel_ratio_inverse,
    bessel_ratio_slope,
    curves,
    digamma_difference,
    log_gamma_ratio,
    log_hyp0f1,
    mean_log1p,
    tables,
    trigamma_difference,
)

# inf - inf and inf·0, in Triton's interpreter
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero):RuntimeWarning")

#: Per function, at d = 5: its value and slope at κ = 0, and its value at κ = ∞.
ENDS = {
    bessel_ratio: (0.0, 1 / 5, 1.0),
    bessel_ratio_complement: (1.0, -1 / 5, 0.0),
    bessel_ratio_slope: (1 / 5, 0.0, 0.0),
    digamma_difference: (5 / 6, -13 / 36, 0.0),
    trigamma_difference: (13 / 36, -35 / 108, 0.0),
    mean_log1p: (math.log(2) - 5 / 6, 13 / 36, math.log(2)),
    SPHERICAL_CAUCHY.relative_entropy: (0.0, 0.0, math.inf),
}
functions = pytest.mark.parametrize("function", ENDS, ids=lambda function: function.__name__)

#: Functions that are one table each.
FUNCTIONS = {
    **{function.__name__: function for function in ENDS},
    "cauchy_variance": SPHERICAL_CAUCHY.variance_cosine,
    "cauchy_log_loss": lambda kappa, dim: curves.value(kappa, "spherical_cauchy", "log_loss", dim),
    "von_mises_fisher_log_loss": lambda kappa, dim: curves.value(kappa, "von_mises_fisher", "log_loss", dim),
    "power_spherical_entropy": POWER_SPHERICAL.relative_entropy,
    "von_mises_fisher_entropy": VON_MISES_FISHER.relative_entropy,
    "log_gamma_ratio": log_gamma_ratio,
    "log_hyp0f1": log_hyp0f1,
}
#: The largest relative errors of value and slope in float32, where they are not 3e-7.
ERRORS = {
    bessel_ratio_slope: (3e-7, 5e-6),
    SPHERICAL_CAUCHY.variance_cosine: (3e-7, 3e-5),
    # beyond the table, by the power of Triton's interpreter
    log_gamma_ratio: (5e-7, 3e-7),
    log_hyp0f1: (5e-7, 3e-7),
}
#: Differentiable once.
VARIANCES = (bessel_ratio_slope, trigamma_difference)
#: A bounded function, one with a slope of its own, one that grows like a logarithm, and one that grows like κ.
KINDS = (bessel_ratio, trigamma_difference, SPHERICAL_CAUCHY.relative_entropy, log_hyp0f1)
DIMS = [2, 3, 5, 30, 768, 10**6]


def value_and_slope(function: Callable, kappa: Tensor, dim: float = 5) -> tuple[Tensor, Tensor]:
    leaf = kappa.detach().clone().requires_grad_()
    value = function(leaf, dim)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach().cpu(), slope.cpu()


def floors(function: Callable, kappa: Tensor, value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the sizes below which errors of value and slope are absolute, near zeros of the functions."""
    nothing, one = torch.zeros_like(kappa), torch.full_like(kappa, 1 / dim)
    if function in (bessel_ratio_slope, SPHERICAL_CAUCHY.variance_cosine):
        return nothing, value / (dim + kappa)
    return {mean_log1p: (one, nothing), log_gamma_ratio: (kappa.clamp(max=1) / dim, one)}.get(
        function, (nothing, nothing)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
@dtypes
def test_accuracy(engine: Engine, name: str, dtype: torch.dtype) -> None:
    """Compare with torch operations in float64, whose tables are others than those of float32."""
    function = FUNCTIONS[name]
    for dim in (3, 768) if engine.is_interpreted else DIMS:
        if (dim, function) == (2, SPHERICAL_CAUCHY.variance_cosine):
            continue  # a closed form, whose square overflows
        kappa = torch.cat([torch.logspace(-6, 9, 300), torch.logspace(-1, 1, 100) * dim])
        kappa = torch.cat([kappa, torch.tensor([0.0, 1e-30, 1e15, 1e25, 1e37])]).to(engine.device, dtype)
        found = value_and_slope(function, kappa, dim)
        with engines.engine("torch"):
            exact = kappa.cpu().double()
            expected = value_and_slope(function, exact, dim)
        sizes = floors(function, exact, expected[0], dim)
        errors = ERRORS.get(function, (3e-7, 3e-7))
        for one, other, floor, error in zip(found, expected, sizes, errors, strict=True):
            assert one.dtype == dtype
            allowed = (error if dtype == torch.float32 else 2e-15) * torch.maximum(other.abs(), floor) + 1e-37
            worst = ((one - other).abs() / allowed).argmax()
            assert ((one - other).abs() <= allowed).all(), (dim, exact[worst], one[worst], other[worst])


@functions
@dtypes
def test_ends_of_the_axis(engine: Engine, function: Callable, dtype: torch.dtype) -> None:
    """Zero and subnormal κ give the limit, a negative κ counts as 0 with slope 0, infinity gives its limit, NaN NaN."""
    kappa = torch.tensor([0.0, -0.0, 1e-40, -0.5, math.inf, math.nan], dtype=dtype, device=engine.device)
    at_zero, rise, at_infinity = ENDS[function]
    value, slope = value_and_slope(function, kappa)
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-12 if dtype == torch.float64 else 1e-7}
    wanted = torch.tensor([at_zero] * 4 + [at_infinity, math.nan], dtype=dtype)
    torch.testing.assert_close(value, wanted, equal_nan=True, **tolerance)
    torch.testing.assert_close(slope[:3], torch.full((3,), rise, dtype=dtype), **tolerance)
    assert slope[3:5].tolist() == [0, 0]
    assert slope[5].isnan()


@functions
@dtypes
def test_beyond_the_table(engine: Engine, function: Callable, dtype: torch.dtype) -> None:
    """At 2^64 and beyond, functions continue without a jump, as a power or as a logarithm of κ."""
    powers = torch.tensor([63.9999, 64.0, 64.0001, 90.0, 120.0], dtype=torch.float64)
    kappa = torch.exp2(powers).to(dtype).to(engine.device)
    value = value_and_slope(function, kappa)[0].double()
    at_infinity = ENDS[function][2]
    if at_infinity == math.inf:
        expected = value[1] + 4 * math.log(2) * (powers - 64)  # (d-1) log κ
    elif at_infinity == 0:
        expected = value[1] * torch.exp2((2 if function in VARIANCES else 1) * (64 - powers))
    else:
        expected = torch.full_like(value, at_infinity)
    torch.testing.assert_close(value, expected, rtol=1e-6 if dtype == torch.float32 else 1e-10, atol=1e-37)


def test_every_engine_reads_the_table(engine: Engine) -> None:
    """Another coefficient in the table changes what torch, C and Triton return, and nothing else has to be changed."""
    dim = 17.25 + len(engine.name) + (engine.device == "cuda") / 8  # no other test has read these tables
    kappa = torch.tensor([1.0, 9.0], device=engine.device)
    exact = curves.value(kappa.double(), "von_mises_fisher", "relative_entropy", dim).float()
    tables.curves("von_mises_fisher", dim)["relative_entropy"].fit[:, 0] += 1.0
    torch.testing.assert_close(curves.value(kappa, "von_mises_fisher", "relative_entropy", dim), exact + 1)


@dtypes
def test_functions_are_monotone_across_cells(dtype: torch.dtype) -> None:
    """At the ends of the cells, neighbouring numbers step back by at most a few roundings."""
    ends = (torch.arange(8, 16, dtype=dtype) * 2.0 ** torch.arange(-12, 40, dtype=dtype)[:, None]).flatten()
    below = torch.nextafter(ends, torch.zeros_like(ends))
    for function in (bessel_ratio, SPHERICAL_CAUCHY.relative_entropy, POWER_SPHERICAL.relative_entropy):
        low, high = function(below, 6), function(ends, 6)
        assert ((high - low) >= -4 * torch.finfo(dtype).eps * high).all()
        assert ((high - low) <= 8 * torch.finfo(dtype).eps * high).all()


# Derivatives and modes of torch

#: Functions of other formulas.
DERIVED = {
    "log_bessel_i": lambda kappa, dim: special.log_bessel_i(dim / 2 - 1, kappa),
    "mean_log_boost": special.mean_log_boost,
}


@pytest.mark.parametrize("name", FUNCTIONS | DERIVED)
def test_derivatives(engine: Engine, name: str) -> None:
    """The first two, against differences of the function, in both modes and in batches."""
    if engine.name == "triton":
        pytest.skip("the kernels of Triton compute in float32")
    function = (FUNCTIONS | DERIVED)[name]
    kappa = torch.tensor([0.01, 0.7, 6.0, 55.0], dtype=torch.float64, device=engine.device).requires_grad_()
    with torch.no_grad():
        assert torch.equal(function(kappa, 5), function(kappa.detach().requires_grad_(), 5))
    # Kernels compute values and slopes, which ``test_accuracy`` compares at more dimensions.
    for dim in (2, 3, 10, 50) if engine.name == "torch" else (5,):
        close = {"rtol": 1e-6, "atol": 1e-8, "check_batched_grad": True}
        assert gradcheck(lambda k: function(k, dim), kappa, check_forward_ad=True, **close)  # noqa: B023
        if function not in VARIANCES:
            assert gradgradcheck(lambda k: function(k, dim), kappa, **close)  # noqa: B023


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compiled(engine: Engine) -> None:
    kappa = torch.tensor([0.0, 0.3, 20.0, 4000.0], device=engine.device)

    def every(kappa: Tensor, dim: int) -> Tensor:
        return sum(function(kappa, dim) for function in KINDS)

    compiled = torch.compile(every, fullgraph=True, backend="aot_eager")
    results = [value_and_slope(function, kappa) for function in (every, compiled)]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", KINDS)
def test_shapes_and_layouts(engine: Engine, function: Callable) -> None:
    kappa = 9 * torch.rand(5, 7).to(engine.device)
    views = [kappa, kappa.T, kappa[:, ::2], kappa[1, 2], kappa[:1, :1], kappa[:, :1].expand(5, 7)]
    views += [kappa.flatten()[1:18], kappa.new_empty(0), kappa.new_empty(3, 0, 2)]
    for view in (*views, negative_view(kappa)):
        leaf = view.detach().requires_grad_()
        value = function(leaf, 6)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
        expected = value_and_slope(function, view.double(), 6)
        found = value.detach().cpu().double(), slope.cpu().double()
        torch.testing.assert_close(found, expected, rtol=5e-7, atol=0)


def test_threads_do_not_change_results() -> None:
    kappa = torch.rand(30_001) * 60
    assert_threads_change_nothing(lambda: value_and_slope(bessel_ratio, kappa), 1000)


def test_first_use_of_a_dimension_inside_nested_transforms() -> None:
    """The coefficients are cached at the first use, and must outlive the transforms in which it happened."""
    dim = 13.37  # used nowhere else
    kappa = torch.tensor(2.0, dtype=torch.float64)
    first = torch.func.jacfwd(lambda k: log_hyp0f1(k, dim))
    torch.testing.assert_close(torch.func.jacfwd(first)(kappa), bessel_ratio_slope(kappa, dim))
    torch.testing.assert_close(first(kappa), bessel_ratio(kappa, dim))


# Inverses and dimensions


@pytest.mark.parametrize("dim", [2, 3, 4, 10, 41, 64, 768, 10**4, 10**6])
def test_inverse(dim: int) -> None:
    """κ → E t → κ over the whole axis, from 1 - E t where that is the accurate number."""
    kappa = torch.logspace(-9, 12, 400, dtype=torch.float64) * dim
    ratio, complement = bessel_ratio(kappa, dim), bessel_ratio_complement(kappa, dim)
    torch.testing.assert_close(bessel_ratio_inverse(ratio, dim, complement), kappa, rtol=4e-15, atol=0)
    single = ratio.float(), dim, complement.float()
    exact = bessel_ratio_inverse(ratio.float().double(), dim, complement.float().double())
    assert torch.equal(bessel_ratio_inverse(*single), exact.float())
    zero = torch.zeros(1, dtype=torch.float64)
    assert value_and_slope(bessel_ratio_inverse, zero, dim) == (0, pytest.approx(dim, rel=1e-14))
    assert SPHERICAL_CAUCHY.from_mean_cosine(zero, 1 - zero, dim) == 0


def test_real_dimensions() -> None:
    """d need not be an integer: I_ν of a real order ν = d/2 - 1 obeys the recurrence A_d = κ/(d + κ A_{d+2})."""
    kappa = torch.logspace(-3, 3, 50, dtype=torch.float64)
    expected = kappa / (4.6 + kappa * bessel_ratio(kappa, 6.6))
    torch.testing.assert_close(bessel_ratio(kappa, 4.6), expected, rtol=2e-15, atol=0)


def test_mean_log_loss_of_von_mises_fisher() -> None:
    """E log(1+t) is the derivative of log E_U (1+t)^a e^{κt} at a = 0: a ratio of Gamma functions times ₁F₁."""
    kappa = torch.tensor([0.0, 1e-3, 0.7, 9.0, 150.0], dtype=torch.float64)
    for dim in (2, 3, 16, 300):
        found = curves.value(kappa, "von_mises_fisher", "log_loss", dim)
        with mpmath.workdps(60):
            beta, step = mpmath.mpf(dim - 1) / 2, mpmath.mpf(10) ** -20
            for k, value in zip(kappa.tolist(), found.tolist(), strict=True):
                below, above = (
                    mpmath.loggamma(beta + a)
                    - mpmath.loggamma(2 * beta + a)
                    + mpmath.log(mpmath.hyp1f1(beta + a, 2 * beta + a, 2 * k))
                    for a in (-step, step)
                )
                assert value == pytest.approx(float((below - above) / (2 * step)), rel=1e-15)
