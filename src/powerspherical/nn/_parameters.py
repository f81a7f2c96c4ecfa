"""The parameters μ and κ of a head, as a function of its outputs (v, r)."""

from __future__ import annotations

from torch import Tensor

from powerspherical._torch.operators import composite
from powerspherical._torch.vectors import computing, directions_of
from powerspherical.formulas.maps import concentration
from powerspherical.kernels import differentiable
from powerspherical.kernels.registry import SHORT, Bounds


def parameters(outputs: Tensor, dim: int, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
    """Return the directions μ = v/‖v‖ of shape (…, d) and the concentrations κ of shape (…).

    Args:
        outputs: (v, r) of shape (…, d + 1) in any floating dtype, or v of shape (…, d). κ is then None.
        dim: d ≥ 2.
        bounds: the bounds of κ, see ``formulas.maps.concentration``.

    The results are float64 for float64 outputs, otherwise float32. Their relative error is a few times the rounding
    error of that dtype. A v whose coordinates are all at most ``SHORT`` gives the first unit vector, with a finite
    gradient. Differentiable to any order.
    """
    loc, *kappa = differentiable(
        "head",
        lambda outputs, *_: tuple(_composition(outputs, dim, *bounds)),
        lambda: (dim, *bounds, SHORT),
        outputs,
        dim=dim,
    )
    return loc, kappa[0] if kappa else None


@composite("parameters", "Tensor outputs, int dim, float minimum, float maximum", "Tensor[]")
def _composition(outputs: Tensor, dim: int, minimum: float, maximum: float) -> list[Tensor]:
    """``parameters`` as torch operations: [μ] or [μ, κ]."""
    outputs = outputs.to(computing(outputs.dtype))
    if outputs.shape[-1] == dim:
        return [directions_of(outputs, SHORT)]
    vectors, raw = outputs.split((dim, 1), -1)
    kappa = concentration(raw.squeeze(-1), minimum, maximum, 1 / (maximum - minimum))
    return [directions_of(vectors, SHORT), kappa]
