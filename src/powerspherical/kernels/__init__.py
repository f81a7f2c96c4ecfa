"""Kernels, in C for the CPU and in Triton for CUDA, for functions that the package also has as torch operations.

- ``registry``: which kernel computes what.
- ``dispatch``: ``find``, the only function that asks whether a kernel may run, and ``differentiable``, a function of
  tensors by its kernel or by torch operations.
- ``layout``: how kernels see tensors.
- ``native``: calls of the C library, whose sources are in ``c``. ``build`` compiles them when the package is installed,
  and ``library`` loads the result. The environment variable ``POWERSPHERICAL_NATIVE=0`` switches it off.
- ``triton``: the kernels for CUDA, and ``launch``, which starts them.

Formulas of rows come from ``powerspherical.formulas``; ``tools/translate.py`` prints them for both languages. Without
kernels, torch operations take their place: other random numbers, the same law and accuracy.
"""

from powerspherical.kernels import native  # registers the functions of the C library
from powerspherical.kernels.dispatch import differentiable, find
from powerspherical.kernels.registry import FAMILIES

__all__ = ["FAMILIES", "differentiable", "find", "native"]
