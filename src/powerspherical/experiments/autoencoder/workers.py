"""The processes that share one training: one, or as many as `torchrun` started.

Under `torchrun --nproc-per-node N` every process runs the same program. Each takes its share of every batch, gradients
are averaged (gloo on the CPU, NCCL on GPUs), and the first process alone writes files.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed

from powerspherical.nn import CheckpointError


@dataclass(frozen=True)
class Workers:
    """A process among the ones that train together."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """The rows that fall to this process."""
        return rows[self.rank :: self.size]

    def sum(self, value: Tensor) -> Tensor:
        """The sum of the processes' values, in place and for each."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def agree(self, found: int, path: Path | None) -> None:
        """Raise unless all processes found the same at a path: they would wait for each other for ever."""
        everywhere = [found] * self.size
        if self.size > 1:
            distributed.all_gather_object(everywhere, found)
        if len(set(everywhere)) > 1:
            raise CheckpointError(f"not all processes found the same {path}: they need one folder in common")


@contextmanager
def workers(device: torch.device) -> Iterator[Workers]:
    """Join the processes that `torchrun` started, if it did, for the length of the block."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Workers()
        return
    if device.type == "cuda":
        _take_own_gpu()
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Workers(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()


def _take_own_gpu() -> None:
    """Make the GPU of this process's number the one that "cuda" means: NCCL refuses two processes on one."""
    number, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= there:
        raise ValueError(
            f"every process needs a GPU of its own: give torchrun --nproc-per-node {there} or less"
        )
    torch.cuda.set_device(number)
