"""Differentiable draws on the unit sphere.

A draw combines a cosine t = μᵀx, which the family draws, with a uniform direction in the tangent space at μ (De Cao &
Aziz 2020, theorem 1). ``geometry`` draws the direction and computes the point, and ``operator`` wraps this in torch
operators. ``triton`` does all of it in one CUDA kernel, and ``native`` in a C library on the CPU.
"""

from powerspherical.sampling.operator import draw
from powerspherical.sampling.uniform import uniform

__all__ = ["draw", "uniform"]
