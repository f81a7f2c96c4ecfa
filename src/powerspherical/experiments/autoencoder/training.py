"""Training an auto-encoder on binarised images, so that it can be stopped at any moment and shared by processes.

Every epoch draws its own randomness from the seed and its number alone: a run that is killed and started again
continues after the last whole epoch with the very numbers of a run that was not. Each epoch ends with a checkpoint.
On a CUDA device the optimiser step is captured once as a CUDA graph and replayed, because its kernels are so small
that launching them takes longer than they do.
"""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from powerspherical.experiments.autoencoder.workers import Workers
from powerspherical.experiments.results import Progress, silent
from powerspherical.nn import CheckpointError, HypersphericalVAE, load_checkpoint, save_checkpoint

ALONE = Workers()
WARM_UP = 3  # steps before a capture, in which libraries set themselves up


@dataclass(frozen=True)
class Protocol:
    """How to train: the paper's way by default.

    Attributes:
        name: what the table calls it.
        epochs: how often each image is seen.
        batch: images a step.
        learning_rate: of Adam.
        cosine: whether the learning rate falls to zero along half a cosine, rather than staying.
        draws: draws of z for each image and step; more of them make the gradients less noisy.
        validation: training images held out, on which the epoch with the best ELBO is chosen; 0 keeps the last epoch.
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
    """A training that cannot go on; the message says why."""


def derived_seed(*parts: int | str) -> int:
    """A seed for one purpose, different from that for any other."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def binarised(images: Tensor, seed: int) -> Tensor:
    """Bits with the intensities as probabilities: the same for the same seed, on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.bernoulli(images.cpu(), generator=generator).to(images.device)


class NegativeElbo(nn.Module):
    """The loss as a module, which is what `DistributedDataParallel` can wrap: the sum over a batch."""

    def __init__(self, model: HypersphericalVAE, draws: int) -> None:
        super().__init__()
        self.model, self.draws = model, draws

    def forward(self, bits: Tensor) -> Tensor:
        return -self.model.elbo(bits, samples=self.draws).elbo.sum()


class Step:
    """One step of the optimiser, on this process's share of a batch of rows of `images`."""

    def __init__(
        self, loss: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, team: Workers
    ) -> None:
        self.loss, self.optimizer, self.images, self.team = loss, optimizer, images, team
        self.total = torch.zeros((), dtype=torch.float64, device=images.device)  # of the losses so far

    def __call__(self, rows: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # a captured step needs its gradients where they are
        loss = self.loss(torch.bernoulli(self.images[self.team.share(rows)]))
        # The processes' gradients are averaged; this makes them that of the mean over the whole batch.
        (loss * (self.team.size / len(rows))).backward()
        self.optimizer.step()
        self.total += loss.detach()


class CapturedStep:
    """A step replayed from a CUDA graph for batches of one size, and taken as it is for others.

    To be made and called on a stream other than the default one, which cannot be captured.
    """

    def __init__(self, step: Step, batch: int) -> None:
        self.step = step
        self.rows = torch.zeros(batch, dtype=torch.long, device=step.images.device)
        self.graph = torch.cuda.CUDAGraph()
        tensors = _tensors_of(step.optimizer)
        before = [tensor.clone() for tensor in tensors]
        for _ in range(WARM_UP):
            step(self.rows)
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            step(self.rows)
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)

    def __call__(self, rows: Tensor) -> None:
        if len(rows) != len(self.rows):
            return self.step(rows)
        self.rows.copy_(rows)
        self.graph.replay()


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All that a step changes: the parameters and what the optimiser remembers of them."""
    found: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found += [parameter, *optimizer.state[parameter].values()]
    return found


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A stream of its own for the work of a block on a CUDA device; elsewhere nothing."""
    if device.type != "cuda":
        yield
        return
    outside, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(outside)
    with torch.cuda.stream(stream):
        yield
    outside.wait_stream(stream)


def adam(model: nn.Module, device: torch.device) -> torch.optim.Adam:
    """Adam with a learning rate that can be set while steps are replayed, and with its memory laid out."""
    rate = torch.tensor(0.0, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True, capturable=device.type == "cuda")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # with zero gradients: nothing but the memory changes
    for state in optimizer.state.values():
        state["step"].zero_()
    return optimizer


@dataclass
class State:
    """All that a run needs to go on after a whole epoch."""

    epoch: int  # how many are done
    seconds: float
    history: list[dict[str, float]]  # of each epoch
    best: dict[str, Any] | None  # the epoch kept so far, where a protocol chooses one


def train(
    model: HypersphericalVAE,
    images: Tensor,
    protocol: Protocol,
    *,
    seed: int,
    path: Path | None = None,
    identity: dict[str, Any] | None = None,
    team: Workers = ALONE,
    progress: Progress = silent,
) -> State:
    """Train on images (N, pixels) of intensities in [0, 1], each epoch with fresh bits, and return what is known.

    Args:
        model: what is trained, in place; on the device of the images.
        images: the training images.
        protocol: how.
        seed: of all that is random, with the epoch.
        path: the checkpoint to write after each epoch, and to go on from if it is there.
        identity: what the checkpoint must say it was made by.
        team: the processes that share the work.
        progress: called with the fraction done.
    """
    with own_stream(images.device):
        return _train(model, images, protocol, seed, path, identity or {}, team, progress)


def _train(
    model: HypersphericalVAE,
    images: Tensor,
    protocol: Protocol,
    seed: int,
    path: Path | None,
    identity: dict[str, Any],
    team: Workers,
    progress: Progress,
) -> State:
    if protocol.validation >= len(images):
        raise TrainingError(
            f"{protocol.validation} images cannot be held out of {len(images)}: nothing would be left to train on"
        )
    device = images.device
    held_out = images[len(images) - protocol.validation :]
    held_out = team.share(binarised(held_out, derived_seed("validation bits")))
    images = images[: len(images) - protocol.validation]
    optimizer = adam(model, device)
    state = State(0, 0.0, [], None)
    if path is not None and path.exists():
        state = _resumed(path, model, optimizer, identity, device)
    team.agree(state.epoch, path)
    if state.epoch < protocol.epochs:
        loss: nn.Module = NegativeElbo(model, protocol.draws)
        if team.size > 1:
            loss = DistributedDataParallel(loss)
        step: Callable[[Tensor], None] = (eager := Step(loss, optimizer, images, team))
        if device.type == "cuda" and team.size == 1:
            step = CapturedStep(eager, protocol.batch)
    while state.epoch < protocol.epochs:
        started = time.perf_counter()
        _set_rate(optimizer, protocol.rate(state.epoch))
        generator = torch.Generator().manual_seed(derived_seed(seed, state.epoch, "order"))
        order = torch.randperm(len(images), generator=generator).to(device)
        torch.manual_seed(derived_seed(seed, state.epoch, "noise", team.rank))
        eager.total.zero_()
        batches = order.split(protocol.batch)
        with _named_epoch(state.epoch + 1, protocol.epochs):
            for done, rows in enumerate(batches):
                step(rows)
                if done % 100 == 0 and device.type == "cpu":  # elsewhere a step has only been asked for
                    progress((state.epoch + done / len(batches)) / protocol.epochs)
            seen = {"elbo": -team.sum(eager.total).item() / len(images)}
            if protocol.validation:
                seen["validation_elbo"] = _mean_elbo(model, held_out, team)
            if not all(math.isfinite(value) for value in seen.values()):
                raise ValueError(f"the ELBO is no longer finite ({seen})")
        state.history.append(seen)
        state.epoch += 1
        if protocol.validation and (state.best is None or seen["validation_elbo"] > state.best["elbo"]):
            weights = copy.deepcopy(model.state_dict())
            state.best = {"elbo": seen["validation_elbo"], "epoch": state.epoch, "model": weights}
        state.seconds += time.perf_counter() - started
        if path is not None and team.first:
            _save(path, state, model, optimizer, identity)
        progress(state.epoch / protocol.epochs)
    if state.best is not None:
        model.load_state_dict(state.best["model"])
    return state


@contextmanager
def _named_epoch(epoch: int, epochs: int) -> Iterator[None]:
    """Say in which epoch a value went wrong: torch's distributions refuse NaN, in many lines."""
    try:
        yield
    except ValueError as error:
        raise TrainingError(f"epoch {epoch} of {epochs}: {str(error).splitlines()[0]}") from error


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


@torch.no_grad()
def _mean_elbo(model: HypersphericalVAE, bits: Tensor, team: Workers) -> float:
    sums = torch.zeros(2, dtype=torch.float64, device=bits.device)
    for block in bits.split(1000):
        sums += torch.stack([model.elbo(block).elbo.double().sum(), sums.new_tensor(len(block))])
    total, count = team.sum(sums).tolist()
    return total / count


def _save(
    path: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any]
) -> None:
    content = {**vars(state), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_checkpoint(path, {"identity": identity, **content})


def _resumed(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
    device: torch.device,
) -> State:
    content = load_checkpoint(path, device)
    made_by = content.pop("identity", None)
    if made_by != identity:
        told = made_by if isinstance(made_by, dict) else {}
        other = [
            f"{key} {told.get(key)}, not {identity[key]}"
            for key in identity
            if told.get(key) != identity[key]
        ]
        raise CheckpointError(
            f"the checkpoint {path} was made with {'; '.join(other) or told}; delete it, or write elsewhere"
        )
    model.load_state_dict(content.pop("model"))
    # What Adam remembers; its settings are this run's own, which may be on another device.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": content.pop("optimizer")["state"]})
    return State(**content)
