"""Network modules: heads that map features to distributions, a bottleneck, the VAE, a contrastive loss, checkpoints."""

from powerspherical._files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from powerspherical.nn.bottleneck import SphericalBottleneck
from powerspherical.nn.heads import PowerSphericalHead, SphericalCauchyHead, SphericalHead, VonMisesFisherHead
from powerspherical.nn.losses import ProbabilisticEmbeddingLoss
from powerspherical.nn.vae import HypersphericalVAE, Objective, Pass

__all__ = [
    "CheckpointError",
    "HypersphericalVAE",
    "Objective",
    "Pass",
    "PowerSphericalHead",
    "ProbabilisticEmbeddingLoss",
    "SphericalBottleneck",
    "SphericalCauchyHead",
    "SphericalHead",
    "VonMisesFisherHead",
    "load_checkpoint",
    "save_checkpoint",
]
