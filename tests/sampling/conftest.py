"""Fixtures of the sampling tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from powerspherical.families import Family, family_named, family_names
from powerspherical.sampling import draw


@pytest.fixture(params=family_names())
def family(request: pytest.FixtureRequest) -> Family:
    return family_named(request.param)


@pytest.fixture
def draws(family: Family) -> Callable[..., Tensor]:
    """``draw`` for the family, as a function of ``loc``, ``concentration`` and the other arguments."""
    return functools.partial(draw, family)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(
    params=[
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
    ]
)
def _devices(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test on each device, which is the default for new tensors."""
    with torch.device(request.param):
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20240607)
