"""Drawing on the unit sphere, differentiably: from a cosine to a point.

A draw is a cosine t = μᵀx, which the family draws, and a uniform direction in the tangent space at μ (De Cao & Aziz
2020, theorem 1). ``geometry`` draws directions and puts the point together, ``operator`` makes torch operators of it,
``triton`` does all of it in one kernel on CUDA, and ``native`` in a C library on the CPU.
"""

from powerspherical.sampling.operator import draw
from powerspherical.sampling.uniform import uniform

__all__ = ["draw", "uniform"]
