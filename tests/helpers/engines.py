"""The implementations that the tests of kernels run over, and what all kernels must do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical import PowerSpherical
from powerspherical.engines import block_limit, engine


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
    **({"torch on CUDA": Engine("torch", "cuda")} if CUDA == "cuda" else {}),
}


@functools.cache
def is_missing(name: str) -> bool:
    """Whether one of ``ENGINES`` cannot run here: its draws are then those of torch operations."""
    wanted = ENGINES[name]
    return wanted.name != "torch" and torch.equal(_draw(wanted.name), _draw("torch"))


def _draw(name: str) -> Tensor:
    with torch.random.fork_rng(), engine(name):
        torch.manual_seed(1)
        return PowerSpherical(torch.eye(4, device=ENGINES[name].device), 1.0).sample().cpu()


def negative_view(tensor: Tensor) -> Tensor:
    """Return a view whose numbers in memory have the opposite sign."""
    view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert view.is_neg()
    return view


def assert_threads_change_nothing(compute: Callable[[], Sequence[Tensor]], block: int) -> None:
    """Check that results have the same bits with 1, 2, 3 and 7 threads, which take at least ``block`` numbers each."""
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            with block_limit(block):
                results.append(compute())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
