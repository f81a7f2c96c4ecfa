"""A small C library for the CPU, without torch or Python inside.

It computes draws, log-densities and the parameters of heads with their gradients, functions of the concentration κ with
their derivatives, and normals in float64. ``sampling.native``, ``special._native_curves``,
``distributions._native_density`` and ``nn._native_parameters`` call it.

``c`` has the sources, ``build`` compiles them when the package is installed, and ``library`` loads the result. Where
there is no library, the callers use torch operations: other random numbers, the same law and accuracy. The environment
variable ``POWERSPHERICAL_NATIVE=0`` switches the library off.
"""
