"""Which kernel computes what, and the options it takes. ``dispatch.find`` asks whether it may run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: The families that the kernels know. A family's place is its number in C and in Triton.
FAMILIES = ("power_spherical", "von_mises_fisher", "spherical_cauchy")
NUMBERS = {name: number for number, name in enumerate(FAMILIES)}

#: Dtypes of kernels. Half precision is computed in float32.
EXACT, HALVES = (torch.float32, torch.float64), (torch.float16, torch.bfloat16)

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]

#: What a kernel reads of a function of κ, see ``special.curves.table``: the rows, and (first, gain, decay).
Table = tuple[Tensor, tuple[int, float, float]]

#: What slopes of draws in float64 need, for a family and the dimension of the law of t: the table of -E T, and the rule
#: of ``quadrature.law`` for rays. None for closed forms.
Quadrature = Callable[[str, int], tuple[Table, Tensor] | None]

#: Options of draws: family, dimension of the law of t, batch shape, generator, quadrature of slopes.
DrawOptions = tuple[str, int, torch.Size, torch.Generator | None, Quadrature]

#: Options of the log-density: family, the table of -Ψ (of exponential families), and the log of the area of the sphere.
DensityOptions = tuple[str, Table | None, float]

#: v counts as zero if no |vᵢ| exceeds this. The gradient of v/‖v‖ grows as 1/‖v‖.
SHORT = 1e-12

#: Options of heads: d, the bounds of κ, and ``SHORT``.
HeadOptions = tuple[int, float, float, float]


class Bounds(NamedTuple):
    """Bounds of κ, 0 ≤ minimum < maximum ≤ ∞."""

    minimum: float
    maximum: float


class Settings(NamedTuple):
    """The settings of a head that determine the distribution for its outputs.

    Attributes:
        family: name of the family, one of this package's.
        dim: d ≥ 2.
        bounds: bounds of κ.
    """

    family: str
    dim: int
    bounds: Bounds


#: Options of bottlenecks: the settings, the table of the rate as a function of κ, and the length and the dtype of z.
LatentsOptions = tuple[Settings, Table, float, torch.dtype]


def z_is_x(radius: float, dtype: torch.dtype) -> bool:
    """Whether the z = radius·x of a bottleneck equals x in float32, so that x need not be kept."""
    return radius == 1 and dtype == torch.float32


class Kernel(NamedTuple):
    """A function of tensors in an engine.

    Attributes:
        run: computes it. For ``dispatch.by_kernel`` it takes (tensors, options, needed), where ``needed`` says of which
            tensors the gradients will be needed, and returns the outputs and what the gradients need of them.
        gradients: computes the gradients. For ``dispatch.by_kernel`` it takes (gradients of the outputs, needed,
            tensors, what ``run`` kept, options), and returns the gradients in the tensors. A gradient of an output may
            be None, which means zero.
        serves: a further condition, on the family and the tensors.
        dtypes: of the last tensor.
        largest_dim: largest dimension d.
        operators: whether both call operators, which the compiler can trace.
        scales: whether a kernel of matrices takes vectors of any length.
    """

    run: Callable[..., Any]
    gradients: Callable[..., Gradients] | None = None
    serves: Callable[..., bool] | None = None
    dtypes: Collection[torch.dtype] = ()
    largest_dim: int = 1 << 62
    operators: bool = False
    scales: bool = False


#: By what is computed, and the engine.
KERNELS: dict[tuple[str, str], Kernel] = {}


def register(what: str, engine: str, *attributes: Any, **others: Any) -> None:
    """Register the kernel of an engine for ``what``. The other arguments are the attributes of ``Kernel``."""
    KERNELS[what, engine] = Kernel(*attributes, **others)


def slope_times_gradient(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, slopes: Tensors, options: Any
) -> Gradients:
    """The gradients of an elementwise function that kept its slope."""
    (grad,), (slope,) = grads, slopes
    assert grad is not None
    return (grad * slope,)


def register_curve(engine: str, evaluate: Callable[[Tensor, Table, Tensor | None], Tensor]) -> None:
    """Register functions of κ, of which ``evaluate`` returns the values and writes the slopes to its last argument."""

    def run(tensors: Tensors, tables: Sequence[Table], needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
        """Return a function of κ, and its derivative if it is needed. That may have a second, better table."""
        (kappa,) = tensors
        if any(needed) and len(tables) > 1:
            slope = evaluate(kappa, tables[1], None)
            return evaluate(kappa, tables[0], None), (slope.masked_fill_(kappa < 0, 0.0),)
        slopes = (torch.empty_like(kappa, memory_format=torch.contiguous_format),) if any(needed) else ()
        return evaluate(kappa, tables[0], *(slopes or (None,))), slopes

    register("curve", engine, run, slope_times_gradient, dtypes=EXACT)
