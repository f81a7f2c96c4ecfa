"""Which draws the fused Triton kernels take, and how these are laid out for them.

They take CUDA tensors in float32 and half precision. Everything else, float64 above all, takes the composition in
``sampling.operator``: other random numbers, the same law.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.triton import triton_takes
from powerspherical.sampling import layout

if TYPE_CHECKING:
    from powerspherical.sampling.operator import Draws

#: The families with a branch in the kernels, as ``draw`` numbers them.
FAMILIES = {"power_spherical": 0, "von_mises_fisher": 1, "spherical_cauchy": 2}

#: The types of devices that the kernels run on.
DEVICES = frozenset({"cuda"})

#: A program holds whole rows in its registers; this is the longest that was run.
MOST_DIM = 1 << 16


def covers(name: str, loc: Tensor, concentration: Tensor, shape: Sequence[int]) -> bool:
    """Whether the fused kernels draw from the family of this name with these parameters."""
    return (
        triton_takes(concentration)
        and name in FAMILIES
        and loc.shape[-1] <= MOST_DIM
        and 0 not in shape  # nothing to launch for
    )


def draw(
    name: str,
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    seed: Tensor | None,
    dim: int,
    generator: torch.Generator | None,
) -> Draws:
    """What the operator of the family returns."""
    directions, kappa = layout.directions(loc, shape), layout.concentrations(concentration, shape)
    x = _empty((*shape, loc.shape[-1]), directions)
    noise = _empty(shape, kappa)
    scalars = torch.empty_like(noise), torch.empty_like(noise), noise
    key = _seed(loc.device, generator) if seed is None else seed
    _kernels().draw.draw(x, scalars, directions, kappa, key, FAMILIES[name], dim)
    return x, *scalars


def _empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory for a contiguous tensor; the most usual case, that of the same shape, takes half the time."""
    return torch.empty_like(like) if like.shape == shape else like.new_empty(shape)


class _Kernels(NamedTuple):
    """The modules that need Triton."""

    draw: ModuleType
    pull_back: ModuleType
    slope: ModuleType


@functools.cache
def _kernels() -> _Kernels:
    from powerspherical.sampling.triton import draw, pull_back, slope

    return _Kernels(draw, pull_back, slope)


def _seed(device: torch.device, generator: torch.Generator | None) -> Tensor | int:
    """A random 63-bit integer from the generator, by default torch's for the device; it advances as by a kernel."""
    if torch.cuda.is_current_stream_capturing():
        # A tensor: each replay of the graph draws it anew.
        return torch.randint(2**63 - 1, (), device=device, generator=generator)
    if generator is None:
        generator = torch.cuda.default_generators[device.index]
    with _ADVANCING:
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # CUDA generators count in fours
    # Torch's kernels have the generator's seed itself as their key: ours is another, by a step of SplitMix64.
    mixed = (generator.initial_seed() + (offset + 1) * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return (mixed ^ (mixed >> 31)) >> 1


_WORD = 2**64 - 1

#: Without it, two threads that share a generator could read the same offset, and draw the same numbers.
_ADVANCING = threading.Lock()


def pull_back(
    name: str,
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    noise: Tensor,
    concentration: Tensor,
    dim: int,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in ``loc``, in its shape, and in κ, of each row or summed, where they are needed.

    x and the three scalars a row are contiguous, as ``draw`` made them.

    One kernel computes them, and a second one sums where many rows share few directions.
    """
    kernels = _kernels()
    shape = noise.shape
    kappa = layout.concentrations(concentration, shape)
    slope = kernels.slope.slope_method(name, dim) if needs_concentration else None
    grad_loc, grad_concentration = kernels.pull_back.pull_back(
        grad.contiguous(),
        x,
        layout.directions(loc, shape),
        one_minus_t,
        one_plus_t,
        noise,
        kappa,
        slope,
        dim,
        needs_loc=needs_loc,
    )
    if grad_loc is not None and grad_loc.shape != loc.shape:
        grad_loc = grad_loc.sum_to_size(loc.shape)
    return grad_loc, grad_concentration
