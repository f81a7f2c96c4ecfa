"""Network modules: heads that map features to distributions, a bottleneck, the hyperspherical VAE, checkpoints."""

from powerspherical._files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from powerspherical.nn.bottleneck import SphericalBottleneck
from powerspherical.nn.heads import PowerSphericalHead, SphericalCauchyHead, SphericalHead, VonMisesFisherHead
from powerspherical.nn.vae import HypersphericalVAE, Objective, Pass

__all__ = [
    "CheckpointError",
    "HypersphericalVAE",
    "Objective",
    "Pass",
    "PowerSphericalHead",
    "SphericalBottleneck",
    "SphericalCauchyHead",
    "SphericalHead",
    "VonMisesFisherHead",
    "load_checkpoint",
    "save_checkpoint",
]
