"""Kernels, in C for the CPU and in Triton for CUDA, for functions that the package also has as torch operations.

``registry`` says which kernel computes what, and ``dispatch`` whether it may run. ``native`` calls the C library, whose
sources are in ``c``, and ``launch`` starts the kernels in ``triton``.

Formulas of rows come from ``powerspherical.formulas``; ``tools/translate.py`` prints them for both languages. Without
kernels, torch operations take their place: other random numbers, the same law and accuracy.
"""

from powerspherical.kernels import native  # registers the functions of the C library
from powerspherical.kernels.dispatch import differentiable, find
from powerspherical.kernels.registry import FAMILIES

__all__ = ["FAMILIES", "differentiable", "find", "native"]
