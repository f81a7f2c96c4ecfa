"""The registries of example distributions and of bad parameters, over which the generic tests run."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from helpers.directions import unit
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER

FLOAT, DOUBLE, BRAIN = torch.float32, torch.float64, torch.bfloat16

FAMILIES = [PowerSpherical, VonMisesFisher, SphericalCauchy]
IDS = ["PS", "vMF", "Cauchy"]
families = pytest.mark.parametrize("family", FAMILIES, ids=IDS)
family_objects = pytest.mark.parametrize("family", [cls.family for cls in FAMILIES], ids=IDS)
exponential_families = pytest.mark.parametrize("family", [POWER_SPHERICAL, VON_MISES_FISHER], ids=IDS[:2])
dtypes = pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=["float32", "float64"])

#: Random unit vectors, the same on every call.
directions = partial(unit, seed=1)


def comparable(family: type, kappa: float, dim: int) -> float:
    """Return a concentration at which ``family`` is about as wide as von Mises–Fisher at κ.

    The spherical Cauchy has a density ≈ e^{κ(d-1)t} for small κ and angles of about 2/κ for large κ.
    """
    return (1 + 2 * kappa / (dim - 1)) ** 0.5 - 1 if family is SphericalCauchy else kappa


class Example(NamedTuple):
    """A distribution with its expected shapes and dtype."""

    make: Callable[..., Distribution]  # takes ``device``
    batch_shape: tuple[int, ...]
    dim: int
    dtype: torch.dtype


class _Parameters(NamedTuple):
    loc: Tensor
    concentration: Tensor | float
    batch_shape: tuple[int, ...]

    def build(self, family: type, device: str = "cpu") -> Distribution:
        kappa = self.concentration
        kappa = kappa.to(device) if isinstance(kappa, Tensor) else kappa
        return family(self.loc.to(device), kappa, validate_args=True)


_PARAMETERS = {
    "number": _Parameters(directions(3), 2.0, ()),
    "zero": _Parameters(directions(2, 3), 0.0, (2,)),
    "scalar κ, batch of loc": _Parameters(directions(4, 3, dtype=FLOAT), torch.tensor(5.0), (4,)),
    "batch of κ, one loc": _Parameters(directions(5), torch.tensor([0.0, 0.3, 4.0, 1e3], dtype=DOUBLE), (4,)),
    "(B,1) κ, (1,B,d) loc": _Parameters(
        directions(1, 3, 4, dtype=FLOAT), torch.tensor([[0.5], [3.0], [40.0]]), (3, 3)
    ),
    "(1,1) κ, (1,d) loc": _Parameters(directions(1, 4), torch.tensor([[0.5]], dtype=DOUBLE), (1, 1)),
    "(2,1) loc, (3,) κ": _Parameters(
        directions(2, 1, 3), torch.tensor([1.0, 2.0, 50.0], dtype=DOUBLE), (2, 3)
    ),
    "circle": _Parameters(directions(3, 2), torch.tensor([0.2, 1.0, 30.0], dtype=DOUBLE), (3,)),
    "circle in float32": _Parameters(directions(2, 2, dtype=FLOAT), torch.tensor([0.0, 7.0]), (2,)),
    "d = 64": _Parameters(directions(2, 64), torch.tensor([10.0, 300.0], dtype=DOUBLE), (2,)),
    "large κ": _Parameters(directions(3), torch.tensor([1e6], dtype=DOUBLE), (1,)),
    "large κ in float32": _Parameters(directions(2, 3, dtype=FLOAT), 1e5, (2,)),
    "on the axes": _Parameters(torch.cat([torch.eye(3), -torch.eye(3)]), 4.0, (6,)),
    "float64 κ, float32 loc": _Parameters(
        directions(2, 3, dtype=FLOAT), torch.tensor([1.0, 9.0], dtype=DOUBLE), (2,)
    ),
    "bfloat16": _Parameters(directions(2, 8, dtype=BRAIN), torch.tensor([1.0, 20.0], dtype=BRAIN), (2,)),
}

_RESULT_DTYPES = {"float64 κ, float32 loc": DOUBLE}

_UNIFORMS = {
    "circle": ({"dim": 2, "dtype": DOUBLE}, ()),
    "sphere": ({"dim": 3}, (2, 3)),
    "d = 64": ({"dim": 64, "dtype": FLOAT}, (4,)),
    "bfloat16": ({"dim": 8, "dtype": BRAIN}, (2,)),
}


def _uniform(options: dict[str, Any], batch_shape: tuple[int, ...], device: str = "cpu") -> Distribution:
    return HypersphericalUniform(**options, device=device, validate_args=True).expand(batch_shape)


def _registry() -> dict[str, Example]:
    found = {}
    for family in FAMILIES:
        for name, parameters in _PARAMETERS.items():
            make = partial(parameters.build, family)
            dtype = _RESULT_DTYPES.get(name, parameters.loc.dtype)
            example = Example(make, parameters.batch_shape, parameters.loc.shape[-1], dtype)
            found[f"{family.__name__}: {name}"] = example
    for name, (options, batch_shape) in _UNIFORMS.items():
        make, dtype = partial(_uniform, options, batch_shape), options.get("dtype", FLOAT)
        found[f"Uniform: {name}"] = Example(make, batch_shape, options["dim"], dtype)
    return found


EXAMPLES = _registry()


def examples(*, uniform: bool = True, half: bool = True):
    """Parametrise a test over all examples, optionally without the uniform ones or without half precision."""
    chosen = {
        name: example
        for name, example in EXAMPLES.items()
        if (uniform or not name.startswith("Uniform")) and (half or example.dtype != BRAIN)
    }
    return pytest.mark.parametrize("example", chosen.values(), ids=chosen.keys())


class Bad(NamedTuple):
    """Parameters that must be rejected, and a pattern that the message must match."""

    loc: Any
    concentration: Any
    message: str


_E1 = torch.tensor([1.0, 0.0, 0.0])
_TWO = torch.stack([_E1, 2 * _E1])

#: Rejected only if values are checked.
BAD_VALUES = {
    "negative κ": Bad(
        _E1, torch.tensor([1.0, -0.5]), r"concentration of shape \(2,\).*≥ 0.*such as -0.5.*softplus"
    ),
    "negative number": Bad(_E1, -1.0, r"concentration.*≥ 0.*such as -1.*softplus"),
    "NaN κ": Bad(_E1, torch.tensor([math.nan, 1.0]), r"concentration.*finite.*such as nan"),
    "infinite κ": Bad(_E1, torch.tensor(math.inf), r"concentration.*finite.*such as inf"),
    "long loc": Bad(
        _TWO, 1.0, r"loc of shape \(2, 3\).*unit vectors.*worst norm is 2,.*normalize\(loc, dim=-1\)"
    ),
    "zero loc": Bad(torch.zeros(3), 1.0, r"loc.*worst norm is 0,.*normalize"),
    "NaN loc": Bad(torch.stack([_E1, _E1 * math.nan]), 1.0, r"loc of shape \(2, 3\).*NaN.*1 row"),
    "infinite loc": Bad(torch.tensor([math.inf, 0.0]), 1.0, r"loc.*unit vectors.*worst norm is inf"),
    "scalar κ that overflows the dtype of loc": Bad(
        _E1,
        torch.tensor(1e300, dtype=DOUBLE),
        r"^concentration = 1e\+300 overflows torch\.float32: use loc\.double",
    ),
    "both": Bad(2 * _E1, -1.0, r"loc.*normalize"),
}

#: Always rejected.
BAD_KINDS = {
    "integer loc": Bad(torch.tensor([1, 0, 0]), 1.0, r"loc.*floating-point.*torch\.int64.*loc\.float\(\)"),
    "list as loc": Bad([1.0, 0.0, 0.0], 1.0, r"loc must be a torch\.Tensor.*list"),
    "scalar loc": Bad(torch.tensor(1.0), 1.0, r"loc.*shape \(…, d\).*scalar"),
    "loc of d = 1": Bad(torch.ones(5, 1), 1.0, r"loc.*≥ 2"),
    "mismatched batches": Bad(
        _E1.expand(4, 3), torch.ones(3), r"loc\.shape\[:-1\] \(4,\).*concentration\.shape \(3,\)"
    ),
    "mismatched batches of more axes": Bad(
        _E1.expand(4, 3), torch.ones(2, 1, 3), r"do not broadcast.*concentration\.shape"
    ),
    "column of κ": Bad(
        _E1.expand(4, 3),
        torch.ones(4, 1),
        r"concentration of shape \(4, 1\).*loc of shape \(4, 3\).*concentration\.squeeze\(-1\).*loc\[None\]",
    ),
    "column of κ over several axes": Bad(
        _E1.expand(4, 2, 3), torch.ones(4, 2, 1), r"concentration of shape \(4, 2, 1\).*squeeze\(-1\)"
    ),
    "column of no κ": Bad(_E1.expand(0, 3), torch.ones(0, 1), r"concentration.*squeeze\(-1\)"),
    "number that overflows the dtype of loc": Bad(
        _E1, 1e300, r"^concentration = 1e\+300 overflows torch\.float32: use loc\.double\(\)"
    ),
    "integer κ": Bad(_E1, torch.tensor([1, 2]), r"concentration.*floating-point.*concentration\.float\(\)"),
    "list as κ": Bad(_E1, [1.0, 2.0], r"concentration.*number.*list"),
    "text as κ": Bad(_E1, "ten", r"concentration.*number.*ten"),
}


def bad(registry: dict[str, Bad]):
    """Parametrise a test over a registry of bad parameters."""
    return pytest.mark.parametrize("case", registry.values(), ids=registry.keys())
