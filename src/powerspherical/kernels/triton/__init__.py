"""Kernels for CUDA. Importing this package, which needs Triton, registers all of them."""

from powerspherical.kernels.triton import curve, density, draw, head, latents, matrix, pull_back

__all__ = ["curve", "density", "draw", "head", "latents", "matrix", "pull_back"]
