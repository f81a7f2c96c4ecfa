"""Train an auto-encoder on binarised images, with checkpoints.

Each epoch ends with a checkpoint, and its randomness depends only on the seed and the number of the epoch. A run that
is killed and started again therefore gives exactly the same numbers as an uninterrupted one.

On a CUDA device the training step is captured once as a CUDA graph and replayed. Its kernels are so small that
launching them one by one would take longer than running them. The graph includes the step of Adam: on an H200, an
epoch of MNIST takes 2.4 times as long if only the loss and its gradients are captured.
"""

import copy
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from powerspherical.nn import load_checkpoint, save_checkpoint
from powerspherical_paper.autoencoder.models import AutoEncoder
from powerspherical_paper.results import Progress, silent

WARM_UP = 3  # steps before a capture, for the initialisation of libraries


@dataclass(frozen=True)
class Protocol:
    """How to train. The defaults are the paper's.

    Attributes:
        name: its name in the table.
        epochs: passes over the training images.
        batch: images per step.
        learning_rate: Adam's learning rate.
        cosine: whether the learning rate decays to zero along half a cosine.
        draws: draws of z per image and step; more draws make the gradients less noisy.
        validation: training images held out to choose the epoch with the best ELBO; 0 keeps the last epoch.
    """

    name: str = "paper"
    epochs: int = 100
    batch: int = 64
    learning_rate: float = 1e-3
    cosine: bool = False
    draws: int = 1
    validation: int = 0

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        share = (1 + math.cos(math.pi * epoch / self.epochs)) / 2 if self.cosine else 1.0
        return self.learning_rate * share


class TrainingError(Exception):
    """A training cannot continue. The message says why."""


def derived_seed(*parts: int | str) -> int:
    """A seed for one purpose, unrelated to the seeds for other purposes."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def binarised(images: Tensor, seed: int) -> Tensor:
    """Random bits with the intensities as probabilities; a seed gives the same bits on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.bernoulli(images.cpu(), generator=generator).to(images.device)


class Step:
    """One optimiser step. Called with indices into `images`."""

    def __init__(
        self, model: AutoEncoder, draws: int, optimizer: torch.optim.Optimizer, images: Tensor
    ) -> None:
        self.model, self.draws, self.optimizer, self.images = model, draws, optimizer, images
        self.total = torch.zeros((), dtype=torch.float64, device=images.device)  # sum of the losses

    def __call__(self, rows: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # a captured step needs fixed gradient buffers
        loss = -self.model.elbo(torch.bernoulli(self.images[rows]), samples=self.draws).elbo.sum()
        (loss * (1 / len(rows))).backward()
        self.optimizer.step()
        self.total += loss.detach()


class CapturedStep:
    """A step replayed from a CUDA graph for batches of one size, and run eagerly for others."""

    def __init__(self, step: Step, batch: int) -> None:
        self.step = step
        self.rows = torch.zeros(batch, dtype=torch.long, device=step.images.device)
        self.graph = torch.cuda.CUDAGraph()
        states = step.optimizer.state.values()
        tensors = [*step.model.parameters(), *(tensor for state in states for tensor in state.values())]
        before = [tensor.clone() for tensor in tensors]
        stream = torch.cuda.Stream()  # the default stream cannot be captured
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(self.rows)
            with torch.cuda.graph(self.graph, stream=stream):
                step(self.rows)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)

    def __call__(self, rows: Tensor) -> None:
        if len(rows) != len(self.rows):
            return self.step(rows)
        self.rows.copy_(rows)
        self.graph.replay()


def adam(model: nn.Module, device: torch.device) -> torch.optim.Adam:
    """Adam with its state allocated, and with a learning rate that can be changed between replays."""
    rate = torch.tensor(0.0, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=device.type == "cuda")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # zero gradients: this only allocates the state
    for state in optimizer.state.values():
        state["step"].zero_()
    return optimizer


@dataclass
class State:
    """The progress of a training, at the end of an epoch."""

    epoch: int  # finished epochs
    seconds: float
    history: list[dict[str, float]]  # one entry per epoch
    best: dict[str, Any] | None  # the best epoch so far, if the protocol chooses one


def train(
    model: AutoEncoder,
    images: Tensor,
    protocol: Protocol,
    *,
    seed: int,
    path: Path | None = None,
    progress: Progress = silent,
) -> State:
    """Train a model in place, each epoch with freshly binarised images, and return its final state.

    Args:
        model: the model to train, on the device of the images.
        images: training images (N, pixels) of intensities in [0, 1].
        protocol: how to train.
        seed: the seed of all randomness.
        path: the checkpoint to write after each epoch, and to resume from if it exists.
        progress: called with the completed fraction.
    """
    if protocol.validation >= len(images):
        raise TrainingError(
            f"{protocol.validation} images cannot be held out of {len(images)}: none would be left for training"
        )
    device = images.device
    held_out = images[len(images) - protocol.validation :]
    held_out = binarised(held_out, derived_seed("validation bits"))
    images = images[: len(images) - protocol.validation]
    optimizer = adam(model, device)
    state = State(0, 0.0, [], None)
    if path is not None and path.exists():
        state = _resumed(path, model, optimizer, device)
    if state.epoch < protocol.epochs:
        eager = Step(model, protocol.draws, optimizer, images)
        step: Callable[[Tensor], None] = eager
        if device.type == "cuda":
            with torch.cuda.device(device):
                step = CapturedStep(eager, protocol.batch)
    while state.epoch < protocol.epochs:
        started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"].fill_(protocol.rate(state.epoch))
        generator = torch.Generator().manual_seed(derived_seed(seed, state.epoch, "order"))
        order = torch.randperm(len(images), generator=generator).to(device)
        torch.manual_seed(derived_seed(seed, state.epoch, "noise", 0))
        eager.total.zero_()
        batches = order.split(protocol.batch)
        for done, rows in enumerate(batches):
            step(rows)
            if done % 100 == 0 and device.type == "cpu":  # on a GPU the step is only queued
                progress((state.epoch + done / len(batches)) / protocol.epochs)
        seen = {"elbo": -eager.total.item() / len(images)}
        if protocol.validation:
            seen["validation_elbo"] = _mean_elbo(model, held_out)
        state.epoch += 1
        if not all(map(math.isfinite, seen.values())):
            where = f"epoch {state.epoch} of {protocol.epochs}"
            raise TrainingError(f"{where}: the ELBO is no longer finite ({seen})")
        state.history.append(seen)
        if protocol.validation and (state.best is None or seen["validation_elbo"] > state.best["elbo"]):
            weights = copy.deepcopy(model.state_dict())
            state.best = {"elbo": seen["validation_elbo"], "epoch": state.epoch, "model": weights}
        state.seconds += time.perf_counter() - started
        if path is not None:
            tensors = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(path, {**vars(state), **tensors})
        progress(state.epoch / protocol.epochs)
    if state.best is not None:
        model.load_state_dict(state.best["model"])
    return state


@torch.no_grad()
def _mean_elbo(model: AutoEncoder, bits: Tensor) -> float:
    total = sum(model.elbo(block).elbo.double().sum() for block in bits.split(1000))
    return float(total) / len(bits)


def _resumed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> State:
    """Restore the model and the optimiser from a checkpoint, and return its state."""
    content = load_checkpoint(path, device)
    model.load_state_dict(content.pop("model"))
    # Restore Adam's state only: its settings depend on the device, which may be another one now.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": content.pop("optimizer")["state"]})
    return State(**content)
