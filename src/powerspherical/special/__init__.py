"""Real functions on tensors, each accurate to a few roundings and with its derivative.

Functions of a concentration take ``kappa``, a tensor of any shape in float32 or float64 on any device, and
``dim``, the ambient dimension d, a Python number; none loops over elements.
"""

from powerspherical.special.bessel import (
    bessel_ratio,
    bessel_ratio_complement,
    bessel_ratio_inverse,
    bessel_ratio_slope,
    log_bessel_i,
    log_hyp0f1,
)
from powerspherical.special.exponential import EXPONENTIAL_TILT
from powerspherical.special.gamma import digamma_difference, log_gamma_ratio, mean_log1p, trigamma_difference
from powerspherical.special.overlap import mean_log1m_cosine, mean_log1p_cosine, misalignment
from powerspherical.special.power import POWER_TILT
from powerspherical.special.sphere import log_sphere_area
from powerspherical.special.tail import implicit_gradient, log_tails, quantile
from powerspherical.special.tilt import Tilt

__all__ = [
    "EXPONENTIAL_TILT",
    "POWER_TILT",
    "Tilt",
    "bessel_ratio",
    "bessel_ratio_complement",
    "bessel_ratio_inverse",
    "bessel_ratio_slope",
    "digamma_difference",
    "implicit_gradient",
    "log_bessel_i",
    "log_gamma_ratio",
    "log_hyp0f1",
    "log_sphere_area",
    "log_tails",
    "mean_log1m_cosine",
    "mean_log1p",
    "mean_log1p_cosine",
    "misalignment",
    "quantile",
    "trigamma_difference",
]
