"""Train a variational auto-encoder with latents on the sphere of R³, with Lightning, in less than a minute.

It saves and loads a checkpoint, prints scores of held-out digits, and draws two maps. Needs matplotlib, scikit-learn.
"""

import argparse
import json
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, pad
from torch.utils.data import DataLoader, TensorDataset

from powerspherical.nn import SphericalBottleneck

try:
    import lightning
except ImportError as error:
    raise SystemExit("this example needs Lightning: pip install lightning") from error


class AutoEncoder(lightning.LightningModule):
    """Maps images (B, pixels) with intensities in [0, 1] to unit vectors (B, 3), and back."""

    def __init__(self, pixels: int, width: int = 128) -> None:
        super().__init__()
        self.save_hyperparameters()  # so that load_from_checkpoint needs nothing but the file
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.bottleneck = SphericalBottleneck(width, dim=3, initial=50.0)
        hidden = nn.Linear(3, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        self.decoder = nn.Sequential(*hidden, nn.Linear(width, pixels))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy of the reconstructions and the mean rate, in nats per image."""
        z, rate = self.bottleneck(self.encoder(images))
        nats = binary_cross_entropy_with_logits(self.decoder(z), images, reduction="none").sum(-1)
        return nats.mean(), rate.mean()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        nats, rate = self(batch[0])
        self.log("rate", rate, prog_bar=True)
        # With its full weight from the start, the rate vanishes before the decoder has learned to use z.
        return nats + min(1.0, 3 * self.current_epoch / self.trainer.max_epochs) * rate

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def draw_figure(latents: Tensor, labels: Tensor, decoder: nn.Module, path: Path) -> None:
    """Write two maps of the sphere: latents, coloured by class, and decoded points."""
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    # Mollweide's projection preserves areas, which are the probabilities under the uniform prior.
    left, right = figure.add_subplot(121, projection="mollweide"), figure.add_subplot(122)
    x, y, z = latents.unbind(-1)
    points = left.scatter(y.atan2(x), z.asin(), 4, labels, cmap="tab10", vmin=-0.5, vmax=9.5)
    figure.colorbar(points, ax=left, ticks=range(10), label="digit")
    left.set(xticks=[], yticks=[])
    # The map is the disc u² + v² < 1, stretched: v = sin θ, where 2θ + sin 2θ = π sin(latitude).
    v, u = torch.cartesian_prod(torch.linspace(0.9, -0.9, 10), torch.linspace(-0.95, 0.95, 20)).T
    longitude, z = torch.pi * u / (1 - v**2).sqrt(), (2 * v.asin() + (2 * v.asin()).sin()) / torch.pi
    radius = (1 - z**2).sqrt()
    decoded = decoder(torch.stack((radius * longitude.cos(), radius * longitude.sin(), z), -1)).sigmoid()
    decoded[u.hypot(v) > 1] = 0
    cells = pad(decoded.view(10, 20, 8, 8), [1] * 4).transpose(1, 2)
    right.imshow(cells.reshape(100, 200).numpy(), cmap="gray_r")
    right.set_axis_off()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Train, save and load a model. Print its test results, and write them and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="default: the current one")
    options = parser.parse_args(arguments)
    path = options.out / "lightning_training.ckpt"
    lightning.seed_everything(0, verbose=False)
    pixels, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images, split = pixels.float() / 16, len(pixels) * 4 // 5
    trainer = lightning.Trainer(max_epochs=options.epochs, logger=False, enable_checkpointing=False)
    trainer.fit(AutoEncoder(64), DataLoader(TensorDataset(images[:split]), 64, shuffle=True))
    trainer.save_checkpoint(path)
    model = AutoEncoder.load_from_checkpoint(path, map_location="cpu", weights_only=True).eval()
    with torch.no_grad():
        nats, rate = model(images[split:])
        latents = model.bottleneck.head(model.encoder(images)).mode
        draw_figure(latents, labels, model.decoder, path.with_suffix(".png"))
    same = (labels[(latents[split:] @ latents[:split].T).argmax(-1)] == labels[split:]).float()
    found = {"negative ELBO": (nats + rate).item(), "rate": rate.item(), "1-NN accuracy": same.mean().item()}
    record = {"results": found, "torch": torch.__version__, "lightning": lightning.__version__}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"Held-out digits: {found}")


if __name__ == "__main__":
    main()
