"""The variance of averages over draws from explicit noise: antithetic pairs and Sobol sequences against random noise.

Each setting estimates a mean from n draws, many times over, and compares the variances of the estimates. The means are
integrals over the sphere, of an odd, an even and a smooth function, and the reconstruction term of the ELBO of a small
auto-encoder of scikit-learn's digits. The factor is the variance with random noise divided by that of the method: how
many times as many random draws the same variance takes.

    python benchmarks/quasi_monte_carlo.py [--threads N] [--quick] [--out DIR]
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from _command import Command, Row, table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from powerspherical import PowerSpherical, RotationallySymmetric, VonMisesFisher
from powerspherical.nn import SphericalBottleneck

NUMBERS = (64, 256, 1024)
DIMS, COSINE = (3, 16), 0.6
BLOCK, REPLICATES, QUICK_REPLICATES = 10, 400, 10
# The variances of the reconstruction are averaged over images, so that fewer replicates are enough.
IMAGES, LATENT_DIM, IMAGE_REPLICATES, EPOCHS, QUICK_EPOCHS = 8, 8, 100, 60, 1

#: Noise of n samples for a distribution.
METHODS: dict[str, Callable[[RotationallySymmetric, int, torch.Generator], Tensor]] = {
    "random": lambda q, n, generator: q.noise(n, generator=generator),
    "antithetic": lambda q, n, generator: mirrored(q.noise(n // 2, generator=generator)),
    "Sobol": lambda q, n, generator: q.noise(n, generator=generator, sobol=True),
}

#: Functions of the cosine of x with a fixed direction.
INTEGRANDS: dict[str, Callable[[Tensor], Tensor]] = {
    "aᵀx": lambda cosine: cosine,
    "(aᵀx)²": lambda cosine: cosine.square(),
    "exp(2aᵀx)": lambda cosine: (2 * cosine).exp(),
}


def mirrored(noise: Tensor) -> Tensor:
    """Return the noise and its antithetic partner."""
    return torch.cat((noise, -noise))


def variances(
    q: RotationallySymmetric, number: int, values: Callable[[Tensor], Tensor], replicates: int
) -> dict[str, Tensor]:
    """Return for each method the variance over replicates of the mean of ``values`` over ``number`` draws.

    ``values`` maps draws (n, block, …, d) to numbers (n, block, …). The variances have the shape (…). Replicates are
    computed in blocks, which bounds the memory. Each block has its own scrambled Sobol sequence.
    """
    wide = q.expand(torch.Size((BLOCK, *q.batch_shape)))
    found = {}
    for method, noise in METHODS.items():
        generator = torch.Generator().manual_seed(number)
        means = [
            values(wide.sample(noise=noise(wide, number, generator))).mean(0)
            for _ in range(replicates // BLOCK)
        ]
        found[method] = torch.cat(means).var(0)
    return found


def integrals(family: type[RotationallySymmetric], dim: int, number: int, replicates: int) -> Iterator[Row]:
    """Measure the integrals over the sphere. The mean direction and ``a`` are at 60°."""
    axes = torch.eye(dim, dtype=torch.float64)
    q = family.from_mean_length(0.5 * axes[0] + 0.75**0.5 * axes[1], COSINE)

    def values(x: Tensor) -> Tensor:
        return torch.stack([function(x[..., 0]) for function in INTEGRANDS.values()], -1)

    found = variances(q, number, values, replicates)
    for i, integrand in enumerate(INTEGRANDS):
        of = {method: variance[i].item() for method, variance in found.items()}
        yield row(f"E {integrand}", family, dim, number, of)


def row(
    quantity: str, family: type[RotationallySymmetric], dim: int, number: int, of: dict[str, float]
) -> Row:
    """Return one row of the results, from the variance of each method."""
    factors = {method: of["random"] / variance for method, variance in of.items() if method != "random"}
    setting = {"quantity": quantity, "family": family.family.title, "dim": dim, "draws": number}
    return {**setting, "variance": of, "factor": factors}


def trained(epochs: int) -> tuple[nn.Sequential, SphericalBottleneck, nn.Sequential, Tensor]:
    """Train an auto-encoder of 8 × 8 digits. Return encoder, bottleneck, decoder and the images left out."""
    torch.manual_seed(0)
    images = torch.as_tensor(load_digits().data, dtype=torch.float32) / 16
    images = images[torch.randperm(len(images))]
    held_out, images = images[:IMAGES], images[IMAGES:]
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
    bottleneck = SphericalBottleneck(128, LATENT_DIM, PowerSpherical, initial=10.0)
    decoder = nn.Sequential(nn.Linear(LATENT_DIM, 128), nn.ReLU(), nn.Linear(128, 64))
    modules = nn.ModuleList((encoder, bottleneck, decoder))
    optimizer = torch.optim.Adam(modules.parameters(), 2e-3)
    for _ in range(epochs):
        for batch in images[torch.randperm(len(images))].split(128):
            z, rate = bottleneck(encoder(batch))
            loss = (rate - log_likelihood(decoder(z), batch)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return encoder, bottleneck, decoder, held_out


def log_likelihood(logits: Tensor, images: Tensor) -> Tensor:
    """Return the Bernoulli log-likelihood (…) of images (…, pixels)."""
    loss = nn.functional.binary_cross_entropy_with_logits(logits, images.expand_as(logits), reduction="none")
    return -loss.sum(-1)


def reconstructions(replicates: int, epochs: int) -> Iterator[Row]:
    """Measure the reconstruction term: its variance, averaged over held-out images."""
    encoder, bottleneck, decoder, images = trained(epochs)
    with torch.no_grad():
        q = bottleneck.head(encoder(images))

    @torch.no_grad()
    def values(z: Tensor) -> Tensor:
        return log_likelihood(decoder(z), images)

    for number in NUMBERS:
        found = variances(q, number, values, replicates)
        of = {method: variance.mean().item() for method, variance in found.items()}
        yield row("reconstruction", PowerSpherical, LATENT_DIM, number, of)


def results(replicates: int, image_replicates: int, epochs: int) -> Iterator[Row]:
    """Measure all settings."""
    for family, dim, number in itertools.product((PowerSpherical, VonMisesFisher), DIMS, NUMBERS):
        yield from integrals(family, dim, number, replicates)
    yield from reconstructions(image_replicates, epochs)


HEADINGS = ("quantity", "family", "d", "antithetic", *(f"Sobol, {number} draws" for number in NUMBERS))


def lines(rows: list[Row]) -> Iterator[list[str]]:
    """Yield the lines of the table: the factor of antithetic pairs at the most draws, and of Sobol noise at each n."""
    settings: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        settings.setdefault((row["quantity"], row["family"], row["dim"]), []).append(row)
    for (quantity, family, dim), group in settings.items():
        factors = [group[-1]["factor"]["antithetic"], *(row["factor"]["Sobol"] for row in group)]
        yield [quantity, family, str(dim), *(f"{x:.0f}" if x >= 10 else f"{x:.1f}" for x in factors)]


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `quasi_monte_carlo.json`."""
    command = Command("quasi_monte_carlo", __doc__, argv, cpu_only=True)
    effort = {"replicates": REPLICATES, "image_replicates": IMAGE_REPLICATES, "epochs": EPOCHS}
    if command.quick:
        effort = {
            "replicates": QUICK_REPLICATES,
            "image_replicates": QUICK_REPLICATES,
            "epochs": QUICK_EPOCHS,
        }
    rows = list(results(**effort))
    configuration = {"mean_cosine": COSINE, "images": IMAGES, **effort}
    shown = table("Variance with random noise over that of the method", HEADINGS, lines(rows), labels=2)
    command.finish({"configuration": configuration, "results": rows}, [shown])


if __name__ == "__main__":
    main()
