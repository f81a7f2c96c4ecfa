"""Comparing what checkpoints hold."""

from __future__ import annotations

from typing import Any

import torch


def same(first: Any, second: Any) -> bool:
    """Whether two states are equal to the last bit, in types and in values; any dict is a dict."""
    if isinstance(first, torch.Tensor):
        equal = isinstance(second, torch.Tensor) and torch.equal(first, second)
        return equal and (first.dtype, first.shape) == (second.dtype, second.shape)
    if isinstance(first, dict) and isinstance(second, dict):
        keys = list(first) == list(second) and [type(key) for key in first] == [type(key) for key in second]
        return keys and all(same(first[key], second[key]) for key in first)
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return first == second
