"""Network modules: a head that maps features to distributions, a bottleneck, a contrastive loss, checkpoints."""

from powerspherical._files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from powerspherical.nn.bottleneck import SphericalBottleneck
from powerspherical.nn.heads import SphericalHead
from powerspherical.nn.losses import ProbabilisticEmbeddingLoss

__all__ = [
    "CheckpointError",
    "ProbabilisticEmbeddingLoss",
    "SphericalBottleneck",
    "SphericalHead",
    "load_checkpoint",
    "save_checkpoint",
]
