"""Kernels that compiled code launches: ``torch.compile`` copies them and what they use, by name, into one file."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from powerspherical.nn import _triton_latents  # noqa: E402
from powerspherical.sampling.triton import draw, pull_back  # noqa: E402

KERNELS = [
    draw._von_mises_fisher_cosines,
    draw._draw,
    pull_back._pull_back,
    pull_back._pull_back_long,
    pull_back._add_parts,
    _triton_latents._draw_latents,
    _triton_latents._pull_back_latents,
]


def used(kernel: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the names of all global functions and constants of a kernel and of the functions that it calls."""
    if id(kernel) in seen:
        return
    seen.add(id(kernel))
    for instruction in dis.get_instructions(kernel.fn):
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval in kernel.fn.__globals__:
            value = kernel.fn.__globals__[instruction.argval]
            yield instruction.argval, value
            if hasattr(value, "fn"):
                yield from used(value, seen)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.fn.__name__)
def test_every_name_means_one_thing(kernel: Any) -> None:
    meanings: dict[str, Any] = {kernel.fn.__name__: kernel}
    for name, value in used(kernel, set()):
        if isinstance(value, types.ModuleType):
            assert value is triton.language, f"{name} is a module"
            continue
        assert meanings.setdefault(name, value) is value, f"{name} has two meanings"
        if hasattr(value, "fn"):
            assert value.fn.__name__ == name, f"{value.fn.__name__} is used under the name {name}"
