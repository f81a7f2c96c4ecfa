"""Time of a training step of a small auto-encoder, and the share of its Power Spherical layer.

The model is encoder, Power Spherical latent and decoder. The loss is the squared error plus the KL to the uniform, and
the optimiser is Adam. The step is timed with our distribution, with that of the paper's authors if it is installed, and
without a distribution: the latent is then the normalised features, and there is no KL. The share of a distribution is
its time beyond that of the last variant. All variants take turns.

    python benchmarks/training_step.py [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

import torch
from _command import NO_REFERENCE, Command, Row, clock_on, grouped, summary_in, table
from _timing import Call, Effort, measure
from torch import Tensor, nn
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical_paper.baselines.published import has_reference, reference_package
from powerspherical_paper.efficiency import ratio

WIDTH, HIDDEN = 256, 512
DIMS = (16, 64)
BATCHES = {"cpu": (1024, 8192), "cuda": (1024, 65_536)}
QUICK_BATCHES = (256,)
EFFORT, QUICK_EFFORT = Effort(seconds=4.0, least=7, most=201), Effort(seconds=0.3, least=3, most=21)
NONE = "none"

Latent = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | float]]
"""From unit vectors and concentrations to the latent and its divergence from the uniform."""


def latents(dim: int, device: torch.device) -> Iterator[tuple[str, Latent]]:
    """Yield names and latent layers."""
    yield NONE, lambda loc, kappa: (loc, 0.0)
    yield "our_ps", stochastic(PowerSpherical, HypersphericalUniform(dim))
    if has_reference():
        theirs = reference_package()
        yield (
            "reference_ps",
            stochastic(theirs.PowerSpherical, theirs.HypersphericalUniform(dim, device=device)),
        )


def stochastic(family: Any, prior: Any) -> Latent:
    """Return a latent layer: a draw of the family, and its KL to the uniform."""

    def latent(loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        posterior = family(loc, kappa, validate_args=False)
        return posterior.rsample(), kl_divergence(posterior, prior).mean()

    return latent


def training(latent: Latent, dim: int, data: Tensor) -> Call:
    """Return a function that trains a new auto-encoder for one step."""
    encoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, dim + 1)).to(data.device)
    decoder = nn.Sequential(nn.Linear(dim, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)).to(data.device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        features = encoder(data)
        kappa = nn.functional.softplus(features[..., -1]) + 1
        point, divergence = latent(nn.functional.normalize(features[..., :-1], dim=-1), kappa)
        (nn.functional.mse_loss(decoder(point), data) + divergence / WIDTH).backward()
        optimizer.step()

    return step


def timed(batch: int, dim: int, device: torch.device, effort: Effort) -> dict[str, list[float]]:
    """Return the seconds per step of every latent layer in each round."""
    data = torch.randn(batch, WIDTH).to(device)
    steps = {name: training(latent, dim, data) for name, latent in latents(dim, device)}
    return measure(steps, effort, clock_on(device))


def summary(times: dict[str, list[float]]) -> Iterator[Row]:
    """Yield one result per latent layer: its time and its share of the step."""
    for name, seconds in times.items():
        share = 1 - ratio(times[NONE], seconds)
        yield {"latent": name, **summary_in("milliseconds", seconds), "share": share}


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `training_step.json`."""
    command = Command("training_step", __doc__, argv)
    batches = QUICK_BATCHES if command.quick else BATCHES[command.device.type]
    effort = QUICK_EFFORT if command.quick else EFFORT
    torch.manual_seed(0)
    rows: list[Row] = []
    counts = command.thread_counts()
    for threads, batch, dim in product(counts, batches, DIMS):
        torch.set_num_threads(threads)
        times = timed(batch, dim, command.device, effort)
        rows += [{"threads": threads, "batch": batch, "dim": dim} | row for row in summary(times)]
    configuration = {
        "width": WIDTH,
        "hidden": HIDDEN,
        "dims": DIMS,
        "batches": batches,
        "threads": counts,
        "effort": asdict(effort),
    }
    notes = [] if has_reference() else [NO_REFERENCE]
    latents_shown = dict.fromkeys(row["latent"].replace("_", " ") for row in rows)
    shown = table(
        "Milliseconds a step (the distribution's share)",
        ("threads", "batch", "d", *latents_shown),
        grouped(
            rows,
            ("threads", "batch", "dim"),
            lambda row: f"{row['milliseconds']:.2f} ({row['share']:.0%})",
        ),
        labels=0,
    )
    command.finish({"configuration": configuration, "results": rows, "notes": notes}, [shown], notes=notes)


if __name__ == "__main__":
    main()
