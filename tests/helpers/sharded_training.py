"""A short training around a bottleneck. As a script for ``torchrun``, data-parallel with whole and sharded weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from powerspherical.nn import SphericalBottleneck


def trained(wrap: str, rank: int = 0, size: int = 1) -> list[Tensor]:
    """The weights after three steps on one share of the batch per process. The loss does not depend on the draws."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), SphericalBottleneck(7, 4, radius="sqrt_dim"))
    if wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif wrap == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).chunk(size)[rank]
    for _ in range(3):
        z, rate = model(x)
        (z.square().sum(-1).mean() + (rate - 2).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = model.state_dict().values()
    return [weight.full_tensor() for weight in weights] if wrap == "fsdp" else list(weights)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    results = {wrap: trained(wrap, rank, size) for wrap in ("ddp", "fsdp")}
    torch.save(results, Path(sys.argv[1]) / f"rank{rank}.pt")
    distributed.barrier()  # torchrun ends the other process if one fails while it shuts down
    distributed.destroy_process_group()
