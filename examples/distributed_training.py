"""Train an auto-encoder with latents on the sphere in several processes, with ``DistributedDataParallel``.

    torchrun --standalone --nproc-per-node 2 examples/distributed_training.py

Each process takes its share of the images, on its own GPU with NCCL, or on the CPU with gloo. All of them start with
the same weights, and gradients are averaged, so the weights stay equal. The draws must differ: each process has its own
seed. Each process writes what it found to ``rank0.json``, ``rank1.json``, …, and the first one also writes the weights.
Needs scikit-learn.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from powerspherical.nn import SphericalBottleneck


class AutoEncoder(nn.Module):
    """Maps images (B, pixels) with intensities in [0, 1] to unit vectors (B, dim), and back."""

    def __init__(self, pixels: int = 64, dim: int = 8, width: int = 128) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.GELU())
        self.bottleneck = SphericalBottleneck(width, dim, initial=50.0)
        self.decoder = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.Linear(width, pixels))

    def forward(self, images: Tensor) -> Tensor:
        """Return the negative ELBO under a uniform prior, in nats per image, (B,)."""
        z, rate = self.bottleneck(self.encoder(images))
        return binary_cross_entropy_with_logits(self.decoder(z), images, reduction="none").sum(-1) + rate


def train(rank: int, size: int, device: torch.device, epochs: int) -> tuple[AutoEncoder, dict[str, float]]:
    """Train in all processes. Return the model, and the mean of the last batches here and in all processes."""
    images = torch.from_numpy(load_digits().data).float() / 16
    sampler = DistributedSampler(images, size, rank, drop_last=True)
    batches = DataLoader(images, batch_size=64, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = AutoEncoder().to(device)
    parallel = DistributedDataParallel(model)  # call this, not the model: it averages the gradients
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    torch.manual_seed(rank)  # with equal seeds, all processes would make the same draws
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another order of the images
        for batch in batches:
            loss = parallel(batch.to(device)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    mean = loss.detach().clone()
    distributed.all_reduce(mean)
    weights = sum(parameter.detach().double().sum() for parameter in model.parameters())
    return model, {
        "last loss here": loss.item(),
        "last loss, mean of all": mean.item() / size,
        "weights": weights.item(),
    }


def main(arguments: list[str] | None = None) -> None:
    """Join the other processes, train, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="default: the current one")
    options = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        raise SystemExit("start this example with torchrun: torchrun --standalone --nproc-per-node 2 …")
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model, found = train(rank, size, device, options.epochs)
    record = {"rank": rank, "processes": size, "device": str(device), **found}
    (options.out / f"rank{rank}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if rank == 0:
        torch.save(model.state_dict(), options.out / "weights.pt")
        print(f"negative ELBO of the last batches: {found['last loss, mean of all']:.2f} nats per image")
    distributed.barrier()  # torchrun ends the others when one process ends
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
