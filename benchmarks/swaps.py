"""Time of the cases of the migration page: the authors' package, then the lines that replace it.

A case has the shapes of a public program. A step computes the outputs and their gradient in the inputs, or the outputs
alone where programs need no gradient. Arguments are checked where they are by default. Both variants take turns.

    python benchmarks/swaps.py [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from _command import NO_REFERENCE, Command, Row, summary_in, table
from torch import Tensor
from torch.distributions import Beta, kl_divergence
from torch.nn.functional import normalize, softplus

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical._selfcheck.accuracy import dtype_name
from powerspherical.nn import SphericalBottleneck
from powerspherical_paper.baselines.published import has_reference, reference_package
from powerspherical_paper.timing import Call, Effort, clock_on, measure, ratio

EFFORT = Effort(seconds=4.0, least=15, most=201)
CALLS = 20  # per turn
BEFORE, AFTER = "before", "after"
FOUR_NATS = 63.787314  # κ of four nats on S³

Outputs = Tensor | tuple[Tensor, ...]


class Swap(NamedTuple):
    """A case: shapes of the inputs, and the lines before and after the change."""

    title: str
    shapes: tuple[tuple[int, ...], ...]
    before: Callable[..., Outputs]
    after: Callable[..., Outputs]
    dtype: torch.dtype = torch.float32


def swaps(theirs: Any, device: torch.device, batch: int = 256) -> Iterator[Swap]:
    """Yield the cases. `theirs` is the authors' package. Public programs have a `batch` of about 256."""
    few = max(batch // 16, 1)

    def drawn(loc: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
        q = theirs.PowerSpherical(loc, kappa)
        return q.rsample(), kl_divergence(q, theirs.HypersphericalUniform(loc.shape[-1], device=device))

    def tokens(features: Tensor) -> Outputs:
        v, r = features.split((16, 1), dim=-1)
        z, rate = drawn(normalize(v, dim=-1), softplus(r.squeeze(-1)) + 1)
        return z * 4.0, rate

    bottleneck = SphericalBottleneck(None, 16, minimum=1.0, radius="sqrt_dim")
    yield Swap("Image tokenisers", ((batch, 256, 17),), tokens, bottleneck)

    def audio(features: Tensor) -> Outputs:
        v, r = features.transpose(1, 2).split((64, 1), dim=-1)
        z, rate = drawn(normalize(v, dim=-1), softplus(r.squeeze(-1)) + 1)
        return z.transpose(1, 2), rate

    bottleneck = SphericalBottleneck(None, 64, axis=1, minimum=1.0)
    yield Swap("Audio tokenisers", ((few, 65, 300),), audio, bottleneck)

    def half(vectors: Tensor, raw: Tensor) -> Outputs:
        z, rate = drawn(normalize(vectors.float(), dim=-1), softplus(raw.float().squeeze(-1)) + 1)
        return z.to(vectors.dtype), rate

    bottleneck, shapes = SphericalBottleneck(None, 64, minimum=1.0), ((few, 256, 64), (few, 256, 1))
    yield Swap("Tokenisers of vision-language models", shapes, half, bottleneck, torch.bfloat16)

    def images(features: Tensor) -> Outputs:
        v, r = features.movedim(1, -1).split((16, 1), dim=-1)
        z, rate = drawn(normalize(v, dim=-1), softplus(r.squeeze(-1)) + 1)
        return z.movedim(-1, 1), rate

    bottleneck = SphericalBottleneck(None, 16, axis=1, minimum=1.0)
    yield Swap("Images, channels first", ((few, 17, 32, 32),), images, bottleneck)

    words, factors = (few, 64, 32), (few, 64, 8)
    product = SphericalBottleneck(None, 4, nats=4.0, product=8)

    def fixed(outputs: Tensor) -> Outputs:
        loc = normalize(outputs.unflatten(-1, (8, 4)), dim=-1)
        kappa = torch.full(factors, FOUR_NATS, device=device)
        return theirs.PowerSpherical(loc, kappa).rsample().flatten(-2)

    yield Swap("Latents of language models, draws", (words,), fixed, lambda x: product(x)[0])

    t = 2 * Beta(1.5 + FOUR_NATS, 1.5).sample((*factors, 1)).to(device) - 1
    tangent = normalize(torch.randn(*factors, 3), dim=-1).to(device)
    noise, pole = torch.randn(*factors, 4).to(device), torch.eye(4, device=device)[0]

    def reused(outputs: Tensor) -> Outputs:
        loc = normalize(outputs.unflatten(-1, (8, 4)), dim=-1)
        y = torch.cat((t, (1 - t**2).sqrt() * tangent), dim=-1)
        u = normalize(pole - loc, dim=-1)
        return (y - 2 * (y * u).sum(-1, keepdim=True) * u).flatten(-2)

    yield Swap(
        "Latents of language models, explicit noise", (words,), reused, lambda x: product(x, noise=noise)[0]
    )

    def circles(features: Tensor) -> Outputs:
        each = features.unflatten(-1, (256, 3))
        z, rate = drawn(normalize(each[..., :2], dim=-1), softplus(each[..., 2]) + 1)
        return z.flatten(-2), rate.sum(-1)

    bottleneck = SphericalBottleneck(None, 2, minimum=1.0, product=256)
    yield Swap("Products of circles", ((few, 768),), circles, bottleneck)

    def convolutional(mean: Tensor, raw: Tensor) -> Outputs:
        loc = normalize(mean.movedim(1, -1).reshape(-1, 16), dim=-1)
        z, rate = drawn(loc, softplus(raw.reshape(-1)))
        return z.reshape(few, 100, 16).movedim(-1, 1), rate.reshape(few, 100)

    bottleneck = SphericalBottleneck(None, 16, axis=1)
    yield Swap("Convolutional heads", ((few, 16, 100), (few, 1, 100)), convolutional, bottleneck)

    def entropies(v: Tensor, r: Tensor) -> Outputs:
        q = theirs.PowerSpherical(normalize(v, dim=-1), softplus(r))
        return q.rsample(), theirs.HypersphericalUniform(16, device=device).entropy().to(device) - q.entropy()

    def divergence(v: Tensor, r: Tensor) -> Outputs:
        q = PowerSpherical(normalize(v, dim=-1), softplus(r))
        return q.rsample(), kl_divergence(q, HypersphericalUniform(16))

    yield Swap("Single cells", ((batch, 16), (batch,)), entropies, divergence)

    def clamped(features: Tensor) -> Outputs:
        return drawn(normalize(features[:, :3], dim=-1), softplus(features[:, 3]).clamp(1e-3, 1e3))

    yield Swap("Astronomy", ((batch, 4),), clamped, SphericalBottleneck(None, 3))

    x = normalize(torch.randn(batch, 512), dim=-1).to(device)

    def broadcast(v: Tensor, r: Tensor) -> Outputs:
        q = theirs.PowerSpherical(normalize(v, dim=-1).unsqueeze(1), softplus(r).unsqueeze(1))
        return q.log_prob(x)

    def matrix(v: Tensor, r: Tensor) -> Outputs:
        return PowerSpherical(normalize(v, dim=-1), softplus(r)).log_prob_matrix(x)

    yield Swap("Probabilistic embeddings", ((batch, 512), (batch,)), broadcast, matrix)

    def actor(family: Any) -> Callable[..., Outputs]:
        def act(v: Tensor, r: Tensor) -> Outputs:
            policy = family(normalize(v, dim=-1), softplus(r))
            action = policy.rsample()
            return action, policy.log_prob(action), policy.entropy()

        return act

    shapes = (batch, 2), (batch,)
    yield Swap(
        "Actors in reinforcement learning", shapes, actor(theirs.PowerSpherical), actor(PowerSpherical)
    )

    def projections() -> Outputs:
        return theirs.HypersphericalUniform(16, device=device).sample((100, 4))

    def ours() -> Outputs:
        return HypersphericalUniform(16, device=device).sample((100, 4))

    yield Swap("Sliced Wasserstein distances", (), projections, ours)

    scale = torch.tensor(2.0, device=device)

    def by_hand(v: Tensor, r: Tensor) -> Outputs:
        loc, kappa = normalize(v, dim=-1), softplus(r)
        q = theirs.PowerSpherical(loc, kappa)
        normalizer = math.log(2 * math.pi) + torch.special.i0(scale).log()
        return q.rsample(), -q.entropy() - scale * kappa / (kappa + 1) * loc[:, 0] + normalizer

    def registered(v: Tensor, r: Tensor) -> Outputs:
        q = PowerSpherical(normalize(v, dim=-1), softplus(r))
        return q.rsample(), kl_divergence(q, VonMisesFisher(torch.eye(2, device=device)[0], scale))

    yield Swap("Circadian phases", shapes, by_hand, registered)


def step(call: Callable[..., Outputs], inputs: list[Tensor]) -> Call:
    """Return a function that computes the outputs, and the gradients of random combinations of them."""
    outputs = call(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    grads = [torch.randn_like(output) for output in outputs]

    def run() -> None:
        found = call(*inputs)
        if inputs:
            torch.autograd.grad(found, inputs, grads)

    return run


def timed(swap: Swap, device: torch.device, effort: Effort) -> Row:
    """Return the times of both variants of a case, and their ratio."""
    inputs = [torch.randn(*shape).to(device, swap.dtype).requires_grad_() for shape in swap.shapes]
    steps = {BEFORE: step(swap.before, inputs), AFTER: step(swap.after, inputs)}
    seconds = measure(steps, effort, clock_on(device), CALLS)
    found = {name: summary_in("microseconds", times) for name, times in seconds.items()}
    return {
        "case": swap.title,
        "shapes": [list(shape) for shape in swap.shapes],
        "dtype": dtype_name(swap.dtype),
        **{key: {name: one[key] for name, one in found.items()} for key in ("microseconds", "quartiles")},
        "faster": ratio(seconds[BEFORE], seconds[AFTER]),
        "rounds": len(seconds[AFTER]),
    }


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `swaps.json`."""
    command = Command("swaps", __doc__, argv)
    if not has_reference():
        command.error(NO_REFERENCE)
    torch.set_num_threads(command.threads or 1)
    torch.manual_seed(0)
    effort, batch = command.effort(EFFORT), 2 if command.quick else 256
    cases = swaps(reference_package(), command.device, batch)
    rows = [timed(swap, command.device, effort) for swap in cases]
    configuration = {"calls": CALLS, "threads": torch.get_num_threads()}
    lines = (
        (
            row["case"],
            *(f"{row['microseconds'][name]:.0f}" for name in (BEFORE, AFTER)),
            f"{row['faster']:.2f}",
        )
        for row in rows
    )
    shown = table("Microseconds per step, and their ratio", ("case", BEFORE, AFTER, "times faster"), lines)
    command.finish({"configuration": configuration, "results": rows}, [shown])


if __name__ == "__main__":
    main()
