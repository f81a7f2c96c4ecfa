"""Explicit noise: standard normals that determine a draw, and the map from them to a point on the sphere.

The noise of a point x in R^d is d normals (z, w). The first gives the cosine t = μᵀx by inversion: P(T ≤ t) = Φ(z). The
other d-1 give a direction in the tangent space at e₁ = (1, 0, …), which the rotation from e₁ to μ moves to that at μ.
The map from (noise, μ, κ) to x is smooth except at μ = -e₁. It calls no custom operator, so that it can be exported.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from powerspherical._torch.elementary import normal_cdf
from powerspherical._torch.precision import back, needs_float64, with_float64
from powerspherical._torch.random import check_generator, from_generator
from powerspherical._torch.vectors import computing, directions_of
from powerspherical.families import Family
from powerspherical.families.derived import quantile
from powerspherical.quadrature.cosine import Cosine, value_of

#: Bits of the coordinates of torch's Sobol points.
_BITS = SobolEngine.MAXBIT


def normals(
    sample_shape: torch.Size,
    batch_shape: torch.Size,
    event_shape: torch.Size,
    like: Tensor,
    generator: torch.Generator | None,
    *,
    sobol: bool,
) -> Tensor:
    """Draw standard normals of shape ``sample_shape + batch_shape + event_shape``, on the device of ``like``.

    They have its dtype, but at least float32. With ``sobol``, see ``_sobol_normals``.
    """
    if generator is not None:
        check_generator(generator, like.device)
    shape, dtype = sample_shape + batch_shape + event_shape, computing(like.dtype)
    if sobol and shape.numel():
        number, batch, entries = (x.numel() for x in (sample_shape, batch_shape, event_shape))
        found = _sobol_normals(number, batch, entries, like.device, generator)
        return back(found.to(dtype), like).reshape(shape)
    return torch.randn(shape, dtype=dtype, device=like.device, **from_generator(generator))


def _sobol_normals(
    number: int, batch: int, entries: int, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Return float64 normals (number, batch, entries) from one scrambled Sobol sequence of ``number`` points.

    Each element of the batch gets the points in its own random order and with its own digital shift, an exclusive or
    with random bits. So the elements are uncorrelated (Latin supercube sampling, Owen 1998).
    """
    if entries > SobolEngine.MAXDIM:
        raise ValueError(
            f"torch has Sobol sequences of at most {SobolEngine.MAXDIM} dimensions, but a draw needs {entries} "
            "normals: use sobol=False"
        )
    random = {"device": device, **from_generator(generator)}
    seed = int(torch.randint(2**31, (), **random))
    order = with_float64(torch.rand(number, batch, **random).argsort(0))
    shifts = with_float64(torch.randint(2**_BITS, (batch, entries), **random))
    points = SobolEngine(entries, scramble=True, seed=seed).draw(number, dtype=torch.float64).to(order.device)
    bits = (points * 2**_BITS).long()[order] ^ shifts
    # The mid-point of each interval of length 2^-30 is neither 0 nor 1.
    return torch.special.ndtri((bits.double() + 0.5) / 2**_BITS)


@needs_float64
def cosine(family: Family, normal: Tensor, concentration: Tensor, dim: int) -> Cosine:
    """Return the t with P(T ≤ t) = Φ(normal). Arguments broadcast; differentiable once.

    Both tails Φ(±normal) enter, so that t is as accurate near 1 as near -1.
    """
    below, above = normal_cdf(normal.double()), normal_cdf(-normal.double())
    t = quantile(family, below, above, concentration.double(), dim)
    return t.to(torch.promote_types(normal.dtype, concentration.dtype))


def point(family: Family, noise: Tensor, loc: Tensor, concentration: Tensor) -> Tensor:
    """Return the point x (…, d) for ``noise`` (…, d), μ = ``loc`` (…, d) and κ = ``concentration`` (…) of one dtype.

    Arguments broadcast. Differentiable once, tangentially in ``loc``.
    """
    t = cosine(family, noise[..., 0], concentration, noise.shape[-1])
    # The square root has an infinite slope at t = ±1, where t is constant.
    tiny = torch.finfo(noise.dtype).tiny
    sine = (t.minus * t.plus).clamp(min=tiny).sqrt().unsqueeze(-1)
    # Normalising again makes the gradient in loc tangential.
    loc = torch.nn.functional.normalize(loc, dim=-1)
    return value_of(t).unsqueeze(-1) * loc + sine * _turned(directions_of(noise[..., 1:]), loc)


def _turned(tangent: Tensor, loc: Tensor) -> Tensor:
    """Rotate (0, v), for v = ``tangent`` (…, d-1), by the rotation that takes e₁ to μ = ``loc`` (…, d) in their plane.

    With μ = (m, r), the result is (-c, v - cr/(1+m)), where c = v·r. For m < 0, 1+m = ‖r‖²/(1-m) keeps its digits.
    """
    first, rest = loc[..., :1], loc[..., 1:]
    along = (tangent * rest).sum(-1, keepdim=True)
    square = rest.square().sum(-1, keepdim=True)
    # Within rounding of -e₁, c and r vanish and any divisor will do. A tiny one would overflow in the backward pass.
    negative = first < 0
    usable = square > torch.finfo(loc.dtype).eps ** 2
    quotient = square / (1 - torch.where(negative, first, 0.0))
    divisor = torch.where(negative, torch.where(usable, quotient, 1.0), 1 + first)
    return torch.cat((-along, tangent - along / divisor * rest), -1)
