"""Differentiable draws on the unit sphere.

A draw combines a cosine t = μᵀx, which the family draws, with a uniform direction in the tangent space at μ (De Cao &
Aziz 2020, theorem 1). ``geometry`` draws the direction and computes the point, ``operator`` wraps this in torch
operators, and ``triton`` does all of it in one CUDA kernel.
"""

from powerspherical.sampling.operator import draw
from powerspherical.sampling.uniform import uniform

__all__ = ["draw", "uniform"]
