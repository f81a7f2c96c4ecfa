"""Network modules: heads that map features to distributions, a bottleneck, a contrastive loss, checkpoints."""

from powerspherical._files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from powerspherical.nn.bottleneck import SphericalBottleneck
from powerspherical.nn.heads import PowerSphericalHead, SphericalCauchyHead, SphericalHead, VonMisesFisherHead
from powerspherical.nn.losses import ProbabilisticEmbeddingLoss

__all__ = [
    "CheckpointError",
    "PowerSphericalHead",
    "ProbabilisticEmbeddingLoss",
    "SphericalBottleneck",
    "SphericalCauchyHead",
    "SphericalHead",
    "VonMisesFisherHead",
    "load_checkpoint",
    "save_checkpoint",
]
