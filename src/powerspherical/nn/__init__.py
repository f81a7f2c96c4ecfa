"""Network modules: heads that map features to distributions on the sphere, a contrastive loss, the VAE, checkpoints."""

from powerspherical._files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
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
    "SphericalCauchyHead",
    "SphericalHead",
    "VonMisesFisherHead",
    "load_checkpoint",
    "save_checkpoint",
]
