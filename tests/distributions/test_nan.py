"""NaN in, NaN out: whatever depends on an argument is NaN where that is, without validation, and only there."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.examples import directions, dtypes, exponential_families, families, family_objects
from helpers.members import CLOSEST, DIVERGENCES, DRAWS, MEMBERS, MOMENTS
from powerspherical import HypersphericalUniform, PowerSpherical, special
from powerspherical.families import ExponentialFamily, Family

NAN = torch.nan
dims = pytest.mark.parametrize("dim", [2, 3, 12, 64])

#: Members that depend on ``loc``.
DIRECTED = MOMENTS | {
    "log_prob": MEMBERS["log_prob"],
    **{name: member for name, member in DIVERGENCES.items() if "uniform" not in name},
    "rsample": DRAWS["rsample"],
    "sample": DRAWS["sample"],
}

ROWS = 3  # the last of them has the NaN


def rows_with_nan(result: Tensor, batch_axis: int) -> list[bool]:
    """For each element of the batch, whether the result has a NaN there."""
    return result.isnan().movedim(batch_axis, 0).reshape(ROWS, -1).any(1).tolist()


def parameters(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return directions(ROWS, dim, dtype=dtype), torch.tensor([0.0, 3.0, 50.0], dtype=dtype)


@families
@dims
@dtypes
def test_concentration(family: type, dim: int, dtype: torch.dtype) -> None:
    loc, kappa = parameters(dim, dtype)
    kappa[-1] = NAN
    q = family(loc, kappa, validate_args=False)
    members = MEMBERS | DRAWS | (CLOSEST if family is PowerSpherical else {})
    for name, member in members.items():
        if name != "mode":
            axis = 1 if name in DRAWS else 0
            assert rows_with_nan(member(q), axis) == [False, False, True], name


@families
@dims
@dtypes
@pytest.mark.parametrize("kappa", [0.0, 3.0, 1e5])
def test_direction(family: type, dim: int, dtype: torch.dtype, kappa: float) -> None:
    loc, _ = parameters(dim, dtype)
    loc[-1, 0] = NAN
    q = family(loc, kappa, validate_args=False)
    for name, member in DIRECTED.items():
        axis = 1 if name in DRAWS else 0
        assert rows_with_nan(member(q), axis) == [False, False, True], name


@families
@dims
@dtypes
def test_point(family: type, dim: int, dtype: torch.dtype) -> None:
    loc, kappa = parameters(dim, dtype)
    x = directions(ROWS, dim, dtype=dtype, seed=2)
    x[-1, -1] = NAN
    for q in (
        family(loc, kappa, validate_args=False),
        family(loc, 0.0, validate_args=False),
        HypersphericalUniform(dim, validate_args=False),
        HypersphericalUniform(dim, validate_args=False).expand((2, 1)),
    ):
        assert rows_with_nan(q.log_prob(x), -1) == [False, False, True]


#: Methods of one argument, and where it may lie.
ARGUMENTS = {
    "log_prob": (-0.9, 0.9),
    "cdf": (-1.0, 1.0),
    "log_cdf": (-1.0, 1.0),
    "log_sf": (-1.0, 1.0),
    "icdf": (0.0, 1.0),
    "cap_probability": (0.0, math.pi),
    "cap_angle": (0.0, 1.0),
    "from_kl": (0.0, 1.0),
    "from_mean_length": (0.0, 0.9),
}


def apply(family: type, method: str, argument: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
    if method.startswith("from"):
        return getattr(family, method)(loc, argument, validate_args=False).concentration
    q = family(loc, kappa, validate_args=False)
    return getattr(q if method.startswith("cap") else q.marginal, method)(argument)


@families
@dims
@dtypes
@pytest.mark.parametrize("method", ARGUMENTS)
def test_argument(family: type, dim: int, dtype: torch.dtype, method: str) -> None:
    loc, kappa = parameters(dim, dtype)
    argument = torch.tensor([*ARGUMENTS[method], NAN], dtype=dtype)
    assert apply(family, method, argument, loc, kappa).isnan().tolist() == [False, False, True]


@families
@dims
@dtypes
@pytest.mark.parametrize("method", [name for name in ARGUMENTS if not name.startswith("from")])
def test_concentration_at_the_ends(family: type, dim: int, dtype: torch.dtype, method: str) -> None:
    """Where every finite concentration gives the same."""
    loc, kappa = parameters(dim, dtype)
    for end in (-1.0, 1.0) if method == "log_prob" else ARGUMENTS[method]:
        value = apply(family, method, torch.tensor(end, dtype=dtype), loc, torch.full_like(kappa, NAN))
        assert value.isnan().all(), end


#: The public functions of a concentration (or a length, …) and a dimension, and those of a family.
FUNCTIONS = {
    **{
        name: getattr(special, name)
        for name in (
            "bessel_ratio",
            "bessel_ratio_complement",
            "bessel_ratio_inverse",
            "bessel_ratio_slope",
            "cauchy_mean_cosine",
            "cauchy_mean_cosine_complement",
            "cauchy_mean_cosine_inverse",
            "cauchy_relative_entropy",
            "cauchy_variance_cosine",
            "digamma_difference",
            "log_gamma_ratio",
            "log_hyp0f1",
            "mean_log1p",
            "mean_log_boost",
            "mean_log_boost_inverse",
            "trigamma_difference",
        )
    },
    "log_bessel_i": lambda x, dim: special.log_bessel_i(dim / 2 - 1, x),
}
HALF = torch.full((ROWS,), 0.5)
OF_A_FAMILY = {
    "misalignment of κ": lambda family, x, dim: family.misalignment(x, torch.full_like(x, 0.3), dim),
    "misalignment of the chord": lambda family, x, dim: family.misalignment(torch.ones_like(x), x, dim),
    "log_tails of t": lambda family, x, dim: family.log_tails(x, 2 - x, torch.ones_like(x), dim),
    "log_tails of κ": lambda family, x, dim: family.log_tails(HALF.to(x), 3 * HALF.to(x), x, dim),
    "quantile of u": lambda family, x, dim: family.quantile(x, 1 - x, torch.ones_like(x), dim),
    "quantile of κ": lambda family, x, dim: family.quantile(HALF.to(x), HALF.to(x), x, dim),
    "slope of t": lambda family, x, dim: x * (2 - x) * slope(family, x, 2 - x, torch.ones_like(x), dim),
    "slope of κ": lambda family, x, dim: slope(family, HALF.to(x), 3 * HALF.to(x), x, dim),
    "log_density of κ": lambda family, x, dim: family.log_density(HALF.to(x), 3 * HALF.to(x), x, dim),
    "log_density of t": lambda family, x, dim: family.log_density(1 - x, 1 + x, torch.zeros_like(x), dim),
    **{
        name: lambda family, x, dim, n=name: getattr(family, n)(x, dim)
        for name in (
            "mean_log1m_cosine",
            "mean_log1p_cosine",
            "relative_entropy",
            "divergence_from_uniform",
            "log_partition",
            "mean_cosine",
            "mean_cosine_complement",
            "variance_cosine",
            "concentration_from_relative_entropy",
        )
    },
    "concentration_from_mean_cosine": lambda family, x, dim: family.concentration_from_mean_cosine(
        x, 1 - x, dim
    ),
}
OF_AN_EXPONENTIAL_FAMILY = {
    "mean_statistic": lambda family, x, dim: family.mean_statistic(x, dim),
    "variance_statistic": lambda family, x, dim: family.variance_statistic(x, dim),
    "statistic": lambda family, x, dim: family.statistic(1 - x, 1 + x),
    "concentration_from_mean_statistic": lambda family, x, dim: family.concentration_from_mean_statistic(
        -x, dim
    ),
}


def slope(family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """``implicit_slope``, which takes float64."""
    arguments = (x.double() for x in (one_minus_t, one_plus_t, kappa))
    return family.implicit_slope(*arguments, dim)


def test_every_special_function_is_there() -> None:
    assert set(special.__all__) - {"log_sphere_area"} == set(FUNCTIONS)


@dims
@dtypes
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions(name: str, dim: int, dtype: torch.dtype) -> None:
    x = torch.tensor([0.25, 0.5, NAN], dtype=dtype)
    assert FUNCTIONS[name](x, dim).isnan().tolist() == [False, False, True]


def assert_last_is_nan(results: Tensor | tuple[Tensor, ...]) -> None:
    for result in [results] if isinstance(results, Tensor) else results:
        assert result.isnan().tolist() == [False, False, True]


@family_objects
@dims
@dtypes
@pytest.mark.parametrize("name", OF_A_FAMILY)
def test_functions_of_a_family(family: Family, name: str, dim: int, dtype: torch.dtype) -> None:
    x = torch.tensor([0.25, 0.5, NAN], dtype=dtype)
    assert_last_is_nan(OF_A_FAMILY[name](family, x, dim))


@exponential_families
@dims
@dtypes
@pytest.mark.parametrize("name", OF_AN_EXPONENTIAL_FAMILY)
def test_functions_of_an_exponential_family(
    family: ExponentialFamily, name: str, dim: int, dtype: torch.dtype
) -> None:
    x = torch.tensor([0.25, 0.5, NAN], dtype=dtype)
    assert_last_is_nan(OF_AN_EXPONENTIAL_FAMILY[name](family, x, dim))
