"""The entry to the fused Triton kernels: which draws they support, and calls with the memory layout that they need.

They support CUDA tensors in float32 and half precision, and CPU tensors in Triton's interpreter. Other draws, such as
float64, use the composition of torch operations in ``sampling.operator``, with the same law but different random
numbers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.memory import empty, readable
from powerspherical._torch.triton import triton_takes
from powerspherical.sampling import layout

if TYPE_CHECKING:
    from powerspherical.sampling.operator import Draws

#: The families that have a branch in the kernels, with their numbers in ``triton.draw``.
FAMILIES = {"power_spherical": 0, "von_mises_fisher": 1, "spherical_cauchy": 2}

#: Largest supported dimension. A program holds whole rows in registers, and longer rows have not been tested.
MOST_DIM = 1 << 16


def covers(name: str, loc: Tensor, concentration: Tensor, shape: Sequence[int]) -> bool:
    """Whether the fused kernels can draw from the family ``name`` with these parameters and batch ``shape``."""
    return (
        triton_takes(concentration)
        and name in FAMILIES
        and loc.shape[-1] <= MOST_DIM
        and 0 not in shape  # a launch needs at least one program
    )


def draw(
    name: str,
    loc: Tensor,
    concentration: Tensor,
    shape: torch.Size,
    dim: int,
    generator: torch.Generator | None,
    needs_scalars: bool,
) -> Draws:
    """Run the operator ``draw`` of ``sampling.operator``. Scalars that are not needed are None."""
    directions, kappa = layout.directions(loc, shape), layout.concentrations(concentration, shape)
    x = empty(loc, (*shape, loc.shape[-1]), loc.dtype)
    scalars = empty(loc, (3, *shape), kappa.dtype) if needs_scalars else None
    seed = random_seed(loc.device, generator)
    _kernels().draw.draw(x, scalars, directions, kappa, seed, FAMILIES[name], dim)
    return x, scalars


class _Kernels(NamedTuple):
    """The modules that need Triton."""

    draw: ModuleType
    pull_back: ModuleType
    slope: ModuleType


@functools.cache
def _kernels() -> _Kernels:
    from powerspherical.sampling.triton import draw, pull_back, slope

    return _Kernels(draw, pull_back, slope)


def random_seed(device: torch.device, generator: torch.Generator | None = None) -> Tensor | int:
    """Return a random 63-bit integer from ``generator``, and advance it. Default: torch's generator for the device."""
    if device.type == "cpu":  # Triton's interpreter
        return int(torch.randint(2**63 - 1, (), generator=generator))
    if torch.cuda.is_current_stream_capturing():
        # The seed must be a tensor, so that each replay of the graph draws a new one.
        return torch.randint(2**63 - 1, (), device=device, generator=generator)
    if generator is None:
        generator = torch.cuda.default_generators[device.index]
    with _ADVANCING:
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # CUDA generators count in fours
    # torch's kernels use the generator's seed as their Philox key. A step of SplitMix64 gives us a different key.
    mixed = (generator.initial_seed() + (offset + 1) * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return (mixed ^ (mixed >> 31)) >> 1


_WORD = 2**64 - 1

#: Without this lock, two threads that share a generator could read the same offset and draw the same numbers.
_ADVANCING = threading.Lock()


def pull_back(
    name: str,
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    concentration: Tensor,
    dim: int,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients in ``loc`` and in κ, each None if it is not needed.

    The gradient in ``loc`` has its shape. The gradient in κ has one number per row, or if all rows share one direction
    and one κ, it is the sum in the shape of ``concentration``. x and the scalars must be contiguous, as ``draw``
    returns them. One kernel computes the gradients. If many rows share few directions, a second one sums them.
    """
    kernels = _kernels()
    shape = scalars.shape[1:]
    directions, kappa = layout.directions(loc, shape), layout.concentrations(concentration, shape)
    slope = kernels.slope.slope_method(name, dim) if needs_concentration else None
    grad_loc, grad_concentration = kernels.pull_back.pull_back(
        readable(grad), x, directions, scalars, kappa, slope, dim, needs_loc=needs_loc
    )
    if grad_loc is not None and grad_loc.shape != loc.shape:
        grad_loc = grad_loc.sum_to_size(loc.shape)
    return grad_loc, grad_concentration
