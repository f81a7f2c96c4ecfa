"""Parts of networks: heads that turn features into distributions on spheres, and the hyperspherical VAE."""

from powerspherical.nn.heads import PowerSphericalHead, SphericalHead, VonMisesFisherHead
from powerspherical.nn.vae import HypersphericalVAE, Objective, Pass

__all__ = [
    "HypersphericalVAE",
    "Objective",
    "Pass",
    "PowerSphericalHead",
    "SphericalHead",
    "VonMisesFisherHead",
]
