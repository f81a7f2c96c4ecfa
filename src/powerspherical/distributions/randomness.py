"""Draws from a seed of their own, among others that follow torch's generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch's generator of ``device`` starts from ``seed``; after it, it goes on from where it was.

    The distributions draw from torch's own generators, and take no other. Those of other devices are left alone, which
    ``torch.manual_seed`` would set too.
    """
    generator = (
        torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
        if device.type == "cuda"
        else torch.default_generator
    )
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
