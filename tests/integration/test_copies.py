"""Copies of distributions: pickle, deepcopy, torch.save."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from helpers.examples import BRAIN, DOUBLE, FLOAT, directions
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    SphericalCauchy,
    SphericalCauchyMarginal,
    VonMisesFisher,
    VonMisesFisherMarginal,
)

KAPPA = torch.tensor([0.0, 5.0, 100.0], dtype=DOUBLE)

ORIGINALS: dict[str, Distribution] = {
    "PowerSpherical": PowerSpherical(directions(3, 4), KAPPA, validate_args=True),
    "VonMisesFisher, unchecked": VonMisesFisher(directions(3, 4), KAPPA, validate_args=False),
    "SphericalCauchy": SphericalCauchy(directions(3, 4), KAPPA, validate_args=True),
    "bfloat16": PowerSpherical(directions(3, 4).to(BRAIN), KAPPA.to(BRAIN), validate_args=True),
    "a number as concentration": VonMisesFisher(directions(4), 2.0, validate_args=True),
    "expanded": PowerSpherical(directions(4), 3.0, validate_args=True).expand((2, 3)),
    "uniform": HypersphericalUniform(4, validate_args=True),
    "uniform, expanded": HypersphericalUniform(4, dtype=DOUBLE, validate_args=False).expand((2, 3)),
    "PowerSphericalMarginal": PowerSphericalMarginal(4, KAPPA, validate_args=True),
    "VonMisesFisherMarginal": VonMisesFisherMarginal(4, KAPPA.to(FLOAT), validate_args=False),
    "SphericalCauchyMarginal": SphericalCauchyMarginal(4, KAPPA, validate_args=True),
    "marginal of a distribution": VonMisesFisher(directions(3, 4), KAPPA).marginal,
}


def saved(original: Any) -> Any:
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda original: pickle.loads(pickle.dumps(original)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "torch.save": saved,
}


def draw(q: Distribution) -> Tensor:
    torch.manual_seed(2)
    return q.sample((4,))


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
def test_copy(original: Distribution, copied: Callable) -> None:
    twin = copied(original)
    assert type(twin) is type(original)
    assert twin.batch_shape == original.batch_shape
    assert twin.event_shape == original.event_shape
    assert twin._validate_args == original._validate_args
    assert repr(twin) == repr(original)
    x = draw(original)
    assert torch.equal(draw(twin), x)
    assert draw(twin).dtype == x.dtype
    assert torch.equal(twin.log_prob(x), original.log_prob(x))
    assert torch.equal(twin.entropy(), original.entropy())


def test_deepcopy_shares_nothing() -> None:
    original = PowerSpherical(directions(3, 4), KAPPA.clone())
    twin = copy.deepcopy(original)
    expected = twin.entropy()
    original.concentration.fill_(7.0)
    assert torch.equal(twin.entropy(), expected)
