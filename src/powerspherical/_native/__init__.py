"""A small C library for the CPU, without torch or Python inside: draws and log-densities with their gradients, and
normals in float64.

``c`` has the sources, ``build`` compiles them when the package is installed, and ``library`` loads the result. Where
there is no library, the callers use torch operations: other random numbers, the same law. The environment variable
``POWERSPHERICAL_NATIVE=0`` switches the library off.
"""
