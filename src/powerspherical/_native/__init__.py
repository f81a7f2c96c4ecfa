"""A small C library for the CPU, without torch or Python inside.

It draws points and pulls gradients back, draws normals in float64, and computes functions of the concentration κ with
their derivatives. ``c`` has the sources, ``build`` compiles them when the package is installed, and ``library`` loads
the result. ``sampling.native`` and ``special._native_launch`` call it. Where there is no library, they use torch
operations: other random numbers, the same law and accuracy. The environment variable ``POWERSPHERICAL_NATIVE=0``
switches the library off.
"""
