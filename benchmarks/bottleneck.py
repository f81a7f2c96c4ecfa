"""Time of a spherical bottleneck, features to latents, rate and gradients, beside a Gaussian one and the reference.

The features are bfloat16, as under autocast. A step computes the latents z and their divergence from the prior, and the
gradient of both in the features. Ours is `nn.SphericalBottleneck`. The Gaussian one is the usual reparameterisation
with its KL to the standard normal. The reference is the package of the paper's authors, which needs float32 features.
The layers take turns in one mode after the other: eager, compiled, and on CUDA compiled with mode="reduce-overhead",
which replays CUDA graphs. The time includes the host's, which varies by a fifth from turn to turn. So there are many
rounds.

    python benchmarks/bottleneck.py [--device cpu|cuda] [--quick] [--out DIR]
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from _command import Command, Row, grouped, peers_left_out, summary_in, table
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn.functional import normalize, softplus

from powerspherical.nn import SphericalBottleneck
from powerspherical_paper.baselines.published import has_reference, reference_package
from powerspherical_paper.timing import Call, Effort, clock_on, measure, ratio

SIZES = {"cpu": ((4096, 16), (4096, 64)), "cuda": ((65_536, 16), (65_536, 64))}
QUICK_SIZES = ((64, 8),)
EFFORT = Effort(seconds=15.0, least=15, most=1001)  # per mode
CALLS = 20  # per turn
GAUSSIAN = "gaussian"

Layer = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From features to latents and their rate in nats."""


class Module(torch.nn.Module):
    """A layer as a module, like ours: a call of a compiled module takes a little longer than one of a function."""

    def __init__(self, function: Layer) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(features)


def layers(dim: int, device: torch.device) -> Iterator[tuple[str, int, Layer]]:
    """Yield names, numbers of features, and layers."""
    yield GAUSSIAN, 2 * dim, Module(gaussian)
    for family in ("power_spherical", "von_mises_fisher", "spherical_cauchy"):
        yield family, dim + 1, SphericalBottleneck(None, dim, family, minimum=1.0, radius="sqrt_dim")
    if has_reference():
        yield "reference", dim + 1, Module(reference(dim, device))


def gaussian(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return a draw of the normal distribution with the given means and log-variances, and its KL."""
    mean, log_variance = features.float().chunk(2, -1)
    z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
    rate = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
    return z.to(features.dtype), rate


def reference(dim: int, device: torch.device) -> Layer:
    """Return the layer as users of the authors' package write it."""
    theirs = reference_package()
    prior = theirs.HypersphericalUniform(dim, device=device)

    def layer(features: Tensor) -> tuple[Tensor, Tensor]:
        direction, raw = features.float().split((dim, 1), -1)
        q = theirs.PowerSpherical(normalize(direction, dim=-1), softplus(raw.squeeze(-1)) + 1)
        return (dim**0.5 * q.rsample()).to(features.dtype), kl_divergence(q, prior)

    return layer


def steps(rows: int, dim: int, device: torch.device) -> dict[str, dict[str, Call]]:
    """Return the steps by mode and layer, as functions without arguments."""
    result: dict[str, dict[str, Call]] = {}
    torch.compiler.reset()  # torch limits the number of recompilations
    for name, entries, layer in layers(dim, device):
        features = torch.randn(rows, entries).to(device, torch.bfloat16).requires_grad_()
        grads = torch.randn(rows, dim).to(device, torch.bfloat16), torch.full((rows,), 1e-3, device=device)
        modes: dict[str, Any] = {"eager": layer, "compiled": torch.compile(layer)}
        if device.type == "cuda":
            modes["CUDA graphs"] = torch.compile(layer, mode="reduce-overhead")
        for mode, run in modes.items():

            def step(run: Any = run, features: Tensor = features, grads: Any = grads) -> None:
                torch.autograd.grad(run(features), features, grads)

            step()
            result.setdefault(mode, {})[name] = step
    return result


def timed(rows: int, dim: int, device: torch.device, effort: Effort) -> Iterator[Row]:
    """Yield one result per layer and mode, with the ratio to the Gaussian layer in the same mode."""
    for mode, calls in steps(rows, dim, device).items():
        seconds = measure(calls, effort, clock_on(device), CALLS)
        for name, times in seconds.items():
            setting = {"rows": rows, "dim": dim, "layer": name, "mode": mode}
            over = ratio(times, seconds[GAUSSIAN])
            yield setting | summary_in("microseconds", times) | {"over_gaussian": over}


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `bottleneck.json`."""
    command = Command("bottleneck", __doc__, argv)
    torch.manual_seed(0)
    sizes = QUICK_SIZES if command.quick else SIZES[command.device.type]
    effort = command.effort(EFFORT)
    rows = [row for size in sizes for row in timed(*size, command.device, effort)]
    configuration = {"dtype": "bfloat16", "calls": CALLS, "threads": torch.get_num_threads()}
    shown = table(
        "Microseconds per step (times the Gaussian layer's)",
        ("rows", "d", "layer", *dict.fromkeys(row["mode"] for row in rows)),
        grouped(
            rows,
            ("rows", "dim", "layer"),
            lambda row: f"{row['microseconds']:.0f} ({row['over_gaussian']:.2f})",
        ),
        labels=3,
    )
    command.finish({"configuration": configuration, "results": rows}, [shown], notes=peers_left_out())


if __name__ == "__main__":
    main()
