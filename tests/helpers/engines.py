"""The implementations that the tests of kernels run over."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from powerspherical import PowerSpherical
from powerspherical.engines import engine


class Engine(NamedTuple):
    """An engine of ``powerspherical.engines``, and the device of the tensors that it computes on here."""

    name: str
    device: str

    @property
    def is_interpreted(self) -> bool:
        """Whether this is Triton's interpreter, which takes milliseconds per block of rows."""
        return self.name == "triton" and self.device == "cpu"


CUDA = "cuda" if torch.cuda.is_available() else "cpu"

#: Without a GPU, Triton's kernels run in its interpreter.
ENGINES = {
    "torch": Engine("torch", "cpu"),
    "c": Engine("c", "cpu"),
    "triton": Engine("triton", CUDA),
    "torch on CUDA": Engine("torch", "cuda"),
}


@functools.cache
def is_missing(name: str) -> bool:
    """Whether one of ``ENGINES`` cannot run here: its draws are then those of torch operations."""
    wanted = ENGINES[name]
    if wanted.device == "cuda" and CUDA != "cuda":
        return True
    return wanted.name != "torch" and torch.equal(_draw(wanted.name), _draw("torch"))


def _draw(name: str) -> torch.Tensor:
    with torch.random.fork_rng(), engine(name):
        torch.manual_seed(1)
        return PowerSpherical(torch.eye(4, device=ENGINES[name].device), 1.0).sample().cpu()
