"""The processes that share one training: a single one, or those started by `torchrun`.

Under `torchrun --nproc-per-node N`, every process runs the same program on its share of each batch. Gradients are
averaged, by gloo on the CPU and NCCL on GPUs. Only the first process writes files.
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
    """One process, `rank`, of the `size` processes that train together."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """The share of the rows that this process works on."""
        return rows[self.rank :: self.size]

    def sum(self, value: Tensor) -> Tensor:
        """Sum a value over the processes, in place, and return it."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def agree(self, found: int, path: Path | None) -> None:
        """Raise unless all processes found the same state at a path; otherwise they would deadlock."""
        everywhere = [found] * self.size
        if self.size > 1:
            distributed.all_gather_object(everywhere, found)
        if len(set(everywhere)) > 1:
            raise CheckpointError(f"the processes see different files at {path}; they need a shared folder")


@contextmanager
def workers(device: torch.device) -> Iterator[Workers]:
    """Join the process group of `torchrun`, if there is one, for the duration of the block."""
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
    """Make "cuda" mean a different GPU in each process, as NCCL requires."""
    rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if rank >= gpus:
        raise ValueError(f"each process needs its own GPU; use torchrun --nproc-per-node {gpus} or less")
    torch.cuda.set_device(rank)
