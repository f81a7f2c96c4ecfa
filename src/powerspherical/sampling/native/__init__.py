"""Draws and their gradients on the CPU by a small C library, without torch or Python inside; normals in float64.

``c`` has the sources, ``build`` compiles them when the package is installed, ``library`` loads the result, and
``kernel`` is what ``sampling.operator`` calls. Where there is no library, draws take the composition of torch
operations in ``sampling.operator``: other random numbers, the same law. The environment variable
``POWERSPHERICAL_NATIVE=0`` switches the library off.
"""
