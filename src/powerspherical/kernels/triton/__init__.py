"""Kernels for CUDA. Importing this package, which needs Triton, registers all of them."""

from powerspherical.kernels.triton import check, curve, density, draw, latents, matrix, pull_back

__all__ = ["check", "curve", "density", "draw", "latents", "matrix", "pull_back"]
