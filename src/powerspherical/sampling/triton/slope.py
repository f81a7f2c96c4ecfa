"""d artanh(t)/dκ = (dt/dκ)/(1-t²) of draws with Triton, where it is known in closed form.

For spherical Cauchy it is 1/(1+κ). For Power Spherical it is ½ dlog G/dα at a fixed second Gamma variable, where G is
the draw's Gamma variable of shape α = κ + (d-1)/2; see ``families.power_spherical``. torch's own derivative of a Gamma
draw is right to 1e-3, but in float32 on CUDA it is NaN at large α. ``special.gamma_draw`` has the expansion that is
used instead.
"""

# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.random import standard_gamma_slope
from powerspherical.special import gamma_draw

#: Ways to a slope: as it is given, by the expansion for large shapes, by that only where the shape is large enough, or
#: that of a shift in rapidity, 1/(1+κ).
GIVEN = tl.constexpr(1)
EXPANDED = tl.constexpr(2)
EXPANDED_OR_GIVEN = tl.constexpr(3)
SHIFTED = tl.constexpr(4)

_LARGE = tl.constexpr(gamma_draw.LARGE)
_NEAR = tl.constexpr(gamma_draw.NEAR)


@triton.jit
def _log_gamma_slope(alpha, gamma):
    """dlog G/dα of a Gamma variable G = α(1+h) of a large shape α, as in ``special.gamma_draw``."""
    h = (gamma - alpha) / alpha
    near = tl.abs(h) < _NEAR
    c = tl.where(near, h, 0.0)
    series = -1 / 3 + c * (0.25 + c * (-0.2 + c * (1 / 6 + c * (-1 / 7 + c * 0.125))))
    away = tl.where(near, 1.0, h)
    direct = ((away - tl.log(gamma / alpha)) / (away * away) - 0.5) / away
    p = tl.where(near, series, direct)
    r = 0.5 + h * p
    return (1.0 - h * r + (r + p + (1 / 60) / alpha) / alpha) / alpha


@triton.jit
def rapidity_slope(KIND: tl.constexpr, given_ptr, gamma_ptr, kappa_ptr, kappa_stride, beta, row, there):
    """(dt/dκ)/(1-t²) of rows, by one of the ways above."""
    if KIND == GIVEN:
        result = tl.load(given_ptr + row, mask=there, other=0.0)
    elif KIND == SHIFTED:
        result = 1.0 / (1.0 + tl.load(kappa_ptr + row * kappa_stride, mask=there, other=1.0))
    else:
        gamma = tl.load(gamma_ptr + row, mask=there, other=1.0)
        alpha = tl.load(kappa_ptr + row * kappa_stride, mask=there, other=1.0) + beta
        slope = _log_gamma_slope(alpha, gamma)
        if KIND == EXPANDED_OR_GIVEN:
            given = tl.load(given_ptr + row, mask=there, other=0.0) / gamma
            slope = tl.where(alpha < _LARGE, given, slope)
        result = 0.5 * slope
    return result


def power_spherical_slope(gamma: Tensor, concentration: Tensor, dim: int) -> tuple[int, Tensor]:
    """The way for Power Spherical draws, and what it takes as given: dG/dα, where small shapes are possible."""
    beta = (dim - 1) / 2
    if beta >= _LARGE.value:
        return EXPANDED.value, gamma  # something has to stand there
    return EXPANDED_OR_GIVEN.value, standard_gamma_slope((concentration + beta).expand_as(gamma), gamma)
