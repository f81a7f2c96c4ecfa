"""KL to the uniform and its derivative in κ, as functions that Triton kernels of other folders can call.

For each family there is a function, and one that returns its constants. Import this module only where Triton is
installed.
"""

# mypy: ignore-errors

from powerspherical.special._triton_bessel import bessel_constants, bessel_functions
from powerspherical.special._triton_cauchy import cauchy_constants, cauchy_relative_entropy
from powerspherical.special._triton_gamma import (
    gamma_constants,
    power_relative_entropy,
    power_relative_entropy_slope,
)

__all__ = [
    "bessel_constants",
    "bessel_functions",
    "cauchy_constants",
    "cauchy_relative_entropy",
    "gamma_constants",
    "power_relative_entropy",
    "power_relative_entropy_slope",
]
