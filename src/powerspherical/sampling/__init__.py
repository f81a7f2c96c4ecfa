"""Differentiable draws on the unit sphere.

A draw combines a cosine t = μᵀx, which the family draws, with a uniform direction in the tangent space at μ (De Cao &
Aziz 2020, theorem 1). A kernel does both at once. Otherwise ``composition`` draws the direction and computes the point.
``draws`` makes the result differentiable in every mode of torch.
"""

from powerspherical.sampling.draws import draw, uniform

__all__ = ["draw", "uniform"]
