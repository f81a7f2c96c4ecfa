"""What the tests of the kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from powerspherical.kernels import power_spherical, von_mises_fisher
from torch import Tensor

FAMILIES = {"power_spherical": power_spherical, "von_mises_fisher": von_mises_fisher}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Callable[[Tensor, Tensor], Tensor]:
    return FAMILIES[request.param]


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
    """The test runs on each device: what it makes is there, unless it says otherwise."""
    with torch.device(request.param):
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20240607)
