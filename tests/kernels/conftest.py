"""Fixtures of the tests that run over all engines."""

from __future__ import annotations

import pytest
import torch

from helpers.engines import Engine


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest, engine: Engine) -> torch.dtype:
    """A dtype that the engine computes in."""
    if engine.name == "triton" and request.param == torch.float64:
        pytest.skip("the kernels of Triton compute in float32")
    return request.param
