"""Bad arguments are refused, by errors that name the argument and the way out."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributions import Distribution

from helpers.examples import BAD_KINDS, BAD_VALUES, DOUBLE, IDS, Bad, bad, directions, families
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    SphericalCauchyMarginal,
    VonMisesFisherMarginal,
)
from powerspherical.distributions import distribution_named

marginals = pytest.mark.parametrize(
    "marginal", [PowerSphericalMarginal, VonMisesFisherMarginal, SphericalCauchyMarginal], ids=IDS
)
E1 = torch.tensor([1.0, 0.0, 0.0])


class TestParameters:
    @families
    @bad(BAD_VALUES)
    def test_values(self, family: type, case: Bad) -> None:
        """They are not looked at without validation."""
        with pytest.raises(ValueError, match=case.message):
            family(case.loc, case.concentration, validate_args=True)
        p = family(case.loc, case.concentration, validate_args=False)
        assert p.log_prob(case.loc).shape == p.batch_shape
        assert p.entropy().shape == p.batch_shape
        assert p.sample().shape == (*p.batch_shape, case.loc.shape[-1])

    @families
    @bad(BAD_KINDS)
    def test_shapes_and_types(self, family: type, case: Bad) -> None:
        for validate_args in (True, False):
            with pytest.raises(ValueError, match=case.message):
                family(case.loc, case.concentration, validate_args=validate_args)

    @families
    def test_names_of_other_packages(self, family: type) -> None:
        name = family.__name__
        with pytest.raises(
            TypeError, match=r"got scale: use concentration, or a class of powerspherical\.compat"
        ):
            family(E1, scale=1.0)
        with pytest.raises(
            TypeError, match=f"^{name} takes loc, concentration and validate_args, got kappa$"
        ):
            family(E1, kappa=1.0)
        with pytest.raises(TypeError, match=f"^{name} takes loc, concentration and validate_args$"):
            family(E1)
        assert [*inspect.signature(family).parameters.values()][1].default is inspect.Parameter.empty

    @families
    def test_distribution_functions_are_those_of_the_marginal(self, family: type) -> None:
        q = family(E1, 1.0)
        with pytest.raises(NotImplementedError, match=r"use q\.marginal\.cdf .* or q\.cap_probability"):
            q.cdf(E1)
        with pytest.raises(NotImplementedError, match=r"use q\.marginal\.icdf .* or q\.cap_angle"):
            q.icdf(E1)

    def test_arrays_and_lists_are_not_printed(self) -> None:
        """The message has their shape, or their beginning, and how to make a tensor of them."""
        with pytest.raises(ValueError, match=r"got ndarray of shape \(2, 3\): use torch.as_tensor\(loc\)$"):
            PowerSpherical(np.ones((2, 3)), 1.0)
        with pytest.raises(
            ValueError, match=r"got list: \[0.0, .*\.\.\.\]; use torch.tensor\(loc\)$"
        ) as raised:
            PowerSpherical([0.0] * 100_000, 1.0)
        assert len(str(raised.value)) < 120
        with pytest.raises(ValueError, match=r"floating-point dtype, got torch.complex64$"):
            PowerSpherical(torch.ones(3, dtype=torch.complex64), 1.0)


class TestValues:
    @families
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (2 * E1, r"value of shape \(3,\).*unit vectors.*worst norm is 2,.*normalize\(value, dim=-1\)"),
            (torch.stack([E1, 0 * E1]), r"value of shape \(2, 3\).*worst norm is 0,"),
            (E1 * math.nan, r"value.*NaN"),
        ],
        ids=["long", "zero", "NaN"],
    )
    def test_off_the_sphere(self, family: type, value, message: str) -> None:
        for p in (family(E1, 1.0, validate_args=True), HypersphericalUniform(3, validate_args=True)):
            with pytest.raises(ValueError, match=message):
                p.log_prob(value)
        for p in (family(E1, 1.0, validate_args=False), HypersphericalUniform(3, validate_args=False)):
            assert p.log_prob(value).shape == value.shape[:-1]

    @families
    @pytest.mark.parametrize("validate_args", [True, False])
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (torch.ones(5, 4), r"value.*\(…, 3\), got \(5, 4\)"),
            (torch.tensor(1.0), r"value.*\(…, 3\), got \(\)"),
            (torch.tensor([1, 0, 0]), r"value.*floating-point.*value\.float\(\)"),
            ([1.0, 0.0, 0.0], r"value must be a torch\.Tensor.*list"),
            (E1.expand(5, 3), r"value\.shape\[:-1\] \(5,\).*batch_shape \(2,\)"),
        ],
        ids=["last dimension", "scalar", "integers", "list", "batch"],
    )
    def test_shapes_and_types(self, family: type, validate_args: bool, value, message: str) -> None:
        p = family(E1.expand(2, 3), 1.0, validate_args=validate_args)
        uniform = HypersphericalUniform(3, validate_args=validate_args).expand((2,))
        for distribution in (p, uniform):
            with pytest.raises(ValueError, match=message):
                distribution.log_prob(value)


@pytest.mark.parametrize("dim", [1, -3, 2.5, 3.0, "3", None, True, torch.tensor(3)], ids=repr)
@pytest.mark.parametrize("make", [HypersphericalUniform, lambda d: PowerSphericalMarginal(d, 1.0)])
def test_dimensions(make: Callable[[Any], Distribution], dim: object) -> None:
    with pytest.raises(ValueError, match=r"dim .*ambient dimension d .*got"):
        make(dim)


def test_dtype_of_the_uniform() -> None:
    with pytest.raises(ValueError, match=r"dtype.*floating-point.*int64"):
        HypersphericalUniform(3, dtype=torch.int64)


class TestMarginal:
    @marginals
    def test_concentration(self, marginal: type) -> None:
        for kappa in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=r"concentration.*finite and ≥ 0"):
                marginal(3, torch.tensor([1.0, kappa]), validate_args=True)
            assert marginal(3, kappa, validate_args=False).batch_shape == ()
        for wrong in (torch.tensor([1, 2]), [1.0], None, "ten"):
            with pytest.raises(ValueError, match="concentration"):
                marginal(3, wrong)
        with pytest.raises(
            ValueError, match=r"^concentration = 1e\+300 overflows torch\.float32: use a float64"
        ):
            marginal(3, 1e300)

    @marginals
    @pytest.mark.parametrize("method", ["log_prob", "cdf", "log_cdf", "log_sf", "icdf"])
    def test_argument(self, marginal: type, method: str) -> None:
        """A marginal checks values if it is told to, or the distribution it belongs to is."""
        p = marginal(3, torch.tensor([1.0, 2.0]), validate_args=True)
        family = distribution_named(p.family.name)
        q = family(E1, 1.0, validate_args=True).expand((2,)).marginal
        lowest = 0 if method == "icdf" else -1
        for value in (1.5, lowest - 0.1, math.nan):
            for checked in (p, q):
                with pytest.raises(
                    ValueError, match=rf"value must lie in \[{lowest}, 1\].*such as {value:g}"
                ):
                    getattr(checked, method)(torch.tensor(value, dtype=DOUBLE))
        for value, message in (
            (0.5, "Tensor"),
            (torch.tensor(0), "floating"),
            (torch.zeros(3), r"\(3,\).*\(2,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                getattr(p, method)(value)

    @families
    @pytest.mark.parametrize("dim", [2, 3, 8])
    def test_beyond_the_ends_without_validation(self, family: type, dim: int) -> None:
        """No density, no more probability, no quantile."""
        q = family(directions(dim), torch.tensor([0.0, 0.3, 5.0], dtype=DOUBLE), validate_args=False)
        for t in (-1.5, 1.5):
            beyond = torch.tensor(t, dtype=DOUBLE)
            assert (q.marginal.log_prob(beyond) == -math.inf).all()
            assert (q.marginal.cdf(beyond) == float(t > 0)).all()
            assert (q.marginal.log_sf(beyond) == (-math.inf if t > 0 else 0.0)).all()
        assert torch.equal(q.cap_probability(-0.5), torch.zeros(3, dtype=DOUBLE))
        assert torch.equal(q.cap_probability(4.0), torch.ones(3, dtype=DOUBLE))
        for probability in (-0.5, 1.5):
            assert q.marginal.icdf(torch.tensor(probability, dtype=DOUBLE)).isnan().all()
            assert q.cap_angle(probability).isnan().all()
        assert family.from_kl(directions(dim), -0.5, validate_args=False).concentration.isnan()
        for length in (-0.5, 1.0, 1.5):
            assert family.from_mean_length(directions(dim), length, validate_args=False).concentration.isnan()


class Scalar(NamedTuple):
    """An argument of a method: its name, and values that are refused."""

    name: str
    bad: tuple[float, ...]


SCALARS = {
    "cap_probability": Scalar("angle", (-0.1, 3.5, math.nan)),
    "cap_angle": Scalar("probability", (-0.1, 1.1, math.nan)),
    "from_kl": Scalar("nats", (-0.1, math.nan, math.inf)),
    "from_mean_length": Scalar("length", (-0.1, 1.0, 1.5, math.nan)),
}


def call(family: type, method: str, argument: Any, *, loc: Any = E1, validate_args: bool = True) -> Any:
    if method.startswith("from"):
        return getattr(family, method)(loc, argument, validate_args=validate_args)
    return getattr(family(loc, 1.0, validate_args=validate_args), method)(argument)


@families
@pytest.mark.parametrize("method", SCALARS)
class TestScalarArguments:
    def test_values(self, family: type, method: str) -> None:
        name, bad = SCALARS[method]
        for value in bad:
            for argument in (value, torch.tensor([0.5, value])):
                with pytest.raises(ValueError, match=rf"^{name}.*(≥ 0|lie in \[0,).*such as"):
                    call(family, method, argument)
            call(family, method, value, validate_args=False)
        with pytest.raises(ValueError, match=rf"^{name} = 1e\+300 overflows torch\.float32: use loc\.double"):
            call(family, method, 1e300, validate_args=False)

    def test_shapes(self, family: type, method: str) -> None:
        name, loc = SCALARS[method].name, E1.expand(2, 3)
        column = rf"{name} of shape \(2, 1\).*{name}\.squeeze\(-1\).*loc\[None\]"
        for validate_args in (True, False):
            with pytest.raises(ValueError, match=rf"do not broadcast.*{name}"):
                call(family, method, torch.full((3,), 0.5), loc=loc, validate_args=validate_args)
            if method.startswith("from"):
                with pytest.raises(ValueError, match=column):
                    call(family, method, torch.full((2, 1), 0.5), loc=loc, validate_args=validate_args)

    def test_loc(self, family: type, method: str) -> None:
        for name in ("integer loc", "list as loc", "scalar loc", "loc of d = 1"):
            with pytest.raises(ValueError, match=BAD_KINDS[name].message):
                call(family, method, 0.5, loc=BAD_KINDS[name].loc)
        with pytest.raises(ValueError, match=r"loc.*normalize"):
            call(family, method, 0.5, loc=2 * E1)

    def test_device(self, family: type, method: str) -> None:
        """A scalar moves to the device of ``loc``. Other tensors must be there."""
        with pytest.raises(ValueError, match=r"loc is on cpu and \w+ on meta: move one of them"):
            call(family, method, torch.full((3,), 0.5, device="meta"), loc=torch.eye(3))
        found = call(family, method, torch.tensor(0.5), loc=E1.to("meta"), validate_args=False)
        assert getattr(found, "concentration", found).is_meta
