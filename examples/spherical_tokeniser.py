"""Train a tokeniser of images with tokens on the sphere, and a generative model of the tokens.

An encoder turns an image into a 4×4 grid of tokens on the unit sphere of R⁸. ``SphericalBottleneck`` draws each token
from a Power Spherical distribution and returns its rate, the information in it. A decoder reconstructs the image. Then
a causal transformer learns the sequence of tokens: given the previous ones, the next token follows a mixture of Power
Spherical distributions. There is no codebook, and the densities are exact. Its draws decode to new images.

    python examples/spherical_tokeniser.py                   the small digits of scikit-learn
    python examples/spherical_tokeniser.py --data FOLDER     MNIST, from its gzipped files in FOLDER

Each takes minutes on two cores; ``--device cuda`` uses a GPU. Ctrl-C ends the training of the current model and goes on
with the next step. The script needs matplotlib, rich and scikit-learn.
"""

import argparse
import gzip
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import track
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, pad

from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical.nn import SphericalBottleneck, SphericalHead

SIDE, GRID, TOKENS, DIM = 32, 4, 16, 8  # pixels and tokens along a side, tokens, coordinates of a token
WIDTH, LAYERS, COMPONENTS, BATCH = 96, 2, 8, 64  # the first three are the prior's


def stack(conv: type[nn.Module], *channels: int) -> nn.Sequential:
    """Return convolutions that halve or double the resolution, each with an activation."""
    return nn.Sequential(*(nn.Sequential(conv(m, n, 4, 2, 1), nn.GELU()) for m, n in pairwise(channels)))


def cross_entropy(logits: Tensor, images: Tensor) -> Tensor:
    """Return the cross-entropies of the pixels, summed over each image, (B,)."""
    return binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(1).sum(1)


class Tokeniser(nn.Module):
    """An auto-encoder for images (B, 1, SIDE, SIDE)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(stack(nn.Conv2d, 1, 32, 64, 128), nn.Conv2d(128, DIM + 1, 1))
        # Tokens of length √d have coordinates of mean square 1, which suits the decoder's initial weights.
        self.bottleneck = SphericalBottleneck(None, DIM, axis=1, radius="sqrt_dim")
        upwards = stack(nn.ConvTranspose2d, 128, 64, 32), nn.ConvTranspose2d(32, 1, 4, 2, 1)
        self.decoder = nn.Sequential(nn.Conv2d(DIM, 128, 3, 1, 1), nn.GELU(), *upwards)

    def forward(self, images: Tensor) -> Tensor:
        """Return the negative ELBO under a uniform prior, in nats, (B,)."""
        z, rate = self.bottleneck(self.encoder(images))
        return cross_entropy(self.decoder(z), images) + rate.sum((1, 2))

    def posterior(self, images: Tensor) -> PowerSpherical:
        """Return the distributions of the tokens, of batch shape (B, TOKENS)."""
        q = self.bottleneck.head(self.encoder(images))
        return PowerSpherical(q.loc.flatten(1, 2), q.concentration.flatten(1), validate_args=False)

    def decode(self, tokens: Tensor) -> Tensor:
        """Return the logits of the pixels for unit vectors (B, TOKENS, DIM)."""
        return self.decoder(self.bottleneck.radius * tokens.mT.unflatten(-1, (GRID, GRID)))


class Prior(nn.Module):
    """A causal transformer over the tokens: p(z) = ∏ p(zᵢ | z₁, …, zᵢ₋₁)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(DIM, WIDTH)
        self.start = nn.Parameter(torch.zeros(1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 384, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.weights = nn.Linear(WIDTH, COMPONENTS)
        self.components = nn.Linear(WIDTH, COMPONENTS * (DIM + 1))
        self.head = SphericalHead(None, DIM)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, previous: Tensor, temperature: float = 1.0) -> MixtureSameFamily:
        """Return the distributions of the first n + 1 tokens, given the first n of them, (B, n, DIM)."""
        n = previous.shape[1] + 1
        h = torch.cat((self.start.expand(len(previous), 1, -1), self.embed(DIM**0.5 * previous)), 1)
        h = self.body(h + self.positions[:n], self.mask[:n, :n], is_causal=True)
        q = self.head(self.components(h).unflatten(-1, (COMPONENTS, DIM + 1)))
        q = PowerSpherical(q.loc, q.concentration / temperature, validate_args=False)
        return MixtureSameFamily(Categorical(logits=self.weights(h) / temperature), q, validate_args=False)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """Return the log-densities of sequences of tokens (B, TOKENS, DIM), with respect to the area: (B,)."""
        return self(tokens[:, :-1]).log_prob(tokens).sum(-1)

    def sample(self, number: int, temperature: float = 1.0) -> Tensor:
        """Return draws (number, TOKENS, DIM). A temperature below 1 favours likely tokens."""
        tokens = self.start.new_empty(number, 0, DIM)
        for _ in range(TOKENS):
            tokens = torch.cat((tokens, self(tokens, temperature).sample()[:, -1:]), 1)
        return tokens


def load(folder: Path | None) -> list[Tensor]:
    """Return the training and the test images, (n, 1, SIDE, SIDE), with intensities in [0, 1]."""
    if folder is None:
        digits = torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16
        images = pad(interpolate(digits, scale_factor=3, mode="bilinear"), [4] * 4)
        return [images[:-360], images[-360:]]
    found = []
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        pixels = np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=16)
        found.append(pad(torch.from_numpy(pixels / np.float32(255)).view(-1, 1, 28, 28), [2] * 4))
    return found


def fit(name: str, model: nn.Module, loss: Callable[[Tensor], Tensor], images: Tensor, steps: int) -> None:
    """Minimise the mean of loss(images), (B,), over random batches. Ctrl-C ends it early."""
    optimiser = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps, pct_start=0.1)
    try:
        for _ in track(range(steps), name):
            optimiser.zero_grad()
            loss(images[torch.randint(len(images), (BATCH,))]).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    except KeyboardInterrupt:
        print(f"{name}: stopped early")


def measure(tokeniser: Tokeniser, prior: Prior, images: Tensor) -> dict[str, float]:
    """Return means over the images. Rates, likelihoods and entropies are in nats."""
    q = tokeniser.posterior(images)
    tokens = q.sample()
    posterior, learned = q.log_prob(tokens).sum(1), prior.log_prob(tokens)
    nats = cross_entropy(tokeniser.decode(tokens), images)
    found = {
        "rate per token, uniform prior": kl_divergence(q, HypersphericalUniform(DIM)),
        "rate per token, learned prior": (posterior - learned) / TOKENS,
        "log-likelihood per token, learned prior": learned / TOKENS,
        "squared error per pixel": (tokeniser.decode(q.mode).sigmoid() - images).square(),
        "cross-entropy per image": nats,
        "negative ELBO per image": nats + posterior - learned,
    }
    return {name: values.mean().item() for name, values in found.items()}


def draw_figure(rows: dict[str, Tensor], path: Path) -> None:
    """Write a picture with two rows of images under each title."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for axes, (title, images) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
        mosaic = images.cpu().view(2, -1, SIDE, SIDE).transpose(1, 2).reshape(2 * SIDE, -1).numpy()
        axes.imshow(mosaic, cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_axis_off()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Train both models, write a picture and a JSON file, and return the numbers that it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with the files of MNIST")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="default: the current one")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    torch.manual_seed(0)
    train, test = (images.to(options.device) for images in load(options.data))
    tokeniser, prior = Tokeniser().to(options.device), Prior().to(options.device)
    fit("tokeniser", tokeniser, tokeniser, train, 20 if options.quick else 1500)
    tokeniser.requires_grad_(False)
    # Each step draws the tokens afresh: the prior then learns the distribution that the decoder was trained on.
    steps = 20 if options.quick else 2000
    fit("prior", prior, lambda images: -prior.log_prob(tokeniser.posterior(images).sample()), train, steps)
    prior.requires_grad_(False)
    found = measure(tokeniser, prior, test[:2000])
    pictures = {
        "test images": test[:32],
        "reconstructions": tokeniser.decode(tokeniser.posterior(test[:32]).mode).sigmoid(),
        "draws from the prior at temperature 0.5": tokeniser.decode(prior.sample(32, 0.5)).sigmoid(),
    }
    draw_figure(pictures, path := options.out / "spherical_tokeniser.png")
    record = {"results": found, "torch": torch.__version__, "seconds": round(time.monotonic() - start)}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(*(f"{name}: {value:.4g}" for name, value in found.items()), f"wrote {path}", sep="\n")
    return found


if __name__ == "__main__":
    main()
