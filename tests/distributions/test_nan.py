"""NaN in, NaN out: whatever depends on an argument is NaN where that is, without validation, and only there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from helpers.examples import DOUBLE, IDS, directions, dtypes, families, family_objects
from helpers.members import DIVERGENCES, DRAWS, MOMENTS, SMOOTH, Member, members, naming
from powerspherical import HypersphericalUniform, special
from powerspherical.families import ExponentialFamily, Family, derived
from powerspherical.quadrature.cosine import Cosine

NAN, DIMS = torch.nan, (2, 3, 12, 64)
ROWS = 3  # the last of them has the NaN

#: Members that depend on ``loc``.
DIRECTED = MOMENTS | {
    "log_prob": SMOOTH["log_prob"],
    **{f"KL to {name}": DIVERGENCES[f"KL to {name}"] for name in IDS},
    "rsample": DRAWS["rsample"],
    "sample": DRAWS["sample"],
}


def assert_nan_in_last(result: Tensor | tuple[Tensor, ...], batch_axis: int = 0) -> None:
    for part in [result] if isinstance(result, Tensor) else result:
        rows = part.isnan().movedim(batch_axis, 0).reshape(ROWS, -1)
        assert rows.any(1).tolist() == [False, False, True]


def assert_members(chosen: dict[str, Member], family: type, loc: Tensor, kappa: Tensor | float) -> None:
    q = family(loc, kappa, validate_args=False)
    for name, member in chosen.items():
        with naming(f"{name}, d = {q.dim}"):
            assert_nan_in_last(member(q), 1 if name in DRAWS else 0)


def parameters(dtype: torch.dtype) -> Iterator[tuple[int, Tensor, Tensor]]:
    for dim in DIMS:
        yield dim, directions(ROWS, dim, dtype=dtype), torch.tensor([0.0, 3.0, 50.0], dtype=dtype)


@families
@dtypes
def test_parameters(family: type, dtype: torch.dtype) -> None:
    of_concentration = members(family) | DRAWS
    del of_concentration["mode"]
    for _, loc, kappa in parameters(dtype):
        kappa[-1] = NAN
        assert_members(of_concentration, family, loc, kappa)
        loc[-1, 0] = NAN
        for number in (0.0, 3.0, 1e5):
            assert_members(DIRECTED, family, loc, number)


@families
@dtypes
def test_point(family: type, dtype: torch.dtype) -> None:
    for dim, loc, kappa in parameters(dtype):
        x = directions(ROWS, dim, dtype=dtype, seed=2)
        x[-1, -1] = NAN
        uniform = HypersphericalUniform(dim, validate_args=False)
        checked = [family(loc, k, validate_args=False) for k in (kappa, 0.0)]
        for q in (*checked, uniform, uniform.expand((2, 1))):
            assert_nan_in_last(q.log_prob(x), -1)


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


@families
@dtypes
@pytest.mark.parametrize("method", ARGUMENTS)
def test_argument(family: type, dtype: torch.dtype, method: str) -> None:
    for _, loc, kappa in parameters(dtype):
        argument = torch.tensor([*ARGUMENTS[method], NAN], dtype=dtype)
        if method.startswith("from"):
            found = getattr(family, method)(loc, argument, validate_args=False)
            assert_nan_in_last(found.concentration)
            continue

        def call(kappa: Tensor, argument: Tensor, loc: Tensor = loc) -> Tensor:
            q = family(loc, kappa, validate_args=False)
            return getattr(q if method.startswith("cap") else q.marginal, method)(argument)

        assert_nan_in_last(call(kappa, argument))
        # Also at the ends, where every finite concentration gives the same.
        for end in (-1.0, 1.0) if method == "log_prob" else ARGUMENTS[method]:
            assert call(torch.full_like(kappa, NAN), torch.tensor(end, dtype=dtype)).isnan().all()


OF_AN_ORDER = {"log_bessel_i": lambda x, dim: special.log_bessel_i(dim / 2 - 1, x)}


@dtypes
@pytest.mark.parametrize("name", sorted(set(special.__all__) - {"log_sphere_area"}))
def test_special_functions(name: str, dtype: torch.dtype) -> None:
    function = OF_AN_ORDER.get(name, getattr(special, name))
    for dim in DIMS:
        assert_nan_in_last(function(torch.tensor([0.25, 0.5, NAN], dtype=dtype), dim))


#: Methods of a family that no member above calls, as functions of (family, x, d).
METHODS: dict[str, Callable[[Family, Tensor, int], Tensor]] = {
    "mean_loss": lambda f, x, d: f.mean_loss(x, d),
    "information": lambda f, x, d: derived.information(f, x, d),
    "slope of t": lambda f, x, d: x * (2 - x) * f.slope(Cosine(x, 2 - x), None, torch.ones_like(x), d),
    "slope of κ": lambda f, x, d: f.slope(
        Cosine(torch.full_like(x, 0.5), torch.full_like(x, 1.5)), None, x, d
    ),
}
OF_EXPONENTIAL_FAMILIES: dict[str, Callable[[Family, Tensor, int], Tensor]] = {
    "statistic": lambda f, x, d: f.statistic(Cosine(1 - x, 1 + x)),
    "mean_score": lambda f, x, d: derived.mean_score(f, x, d),
    "from_mean_score": lambda f, x, d: derived.from_mean_score(f, -x, d),
}


@family_objects
@dtypes
def test_families(family: Family, dtype: torch.dtype) -> None:
    exponential = isinstance(family, ExponentialFamily)
    for name, method in (METHODS | (OF_EXPONENTIAL_FAMILIES if exponential else {})).items():
        # A slope at a fixed probability takes float64.
        x = torch.tensor([0.25, 0.5, NAN], dtype=DOUBLE if "slope" in name else dtype)
        for dim in DIMS:
            with naming(f"{name}, d = {dim}"):
                assert_nan_in_last(method(family, x, dim))
