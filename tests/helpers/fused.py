"""The fused kernels of functions of κ: Triton's and those of the C library."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from powerspherical import engines
from powerspherical._native import library

#: Triton's kernels run on a GPU, or else in its interpreter. The C library runs on the CPU.
ENGINES = ["triton", "native"]


class Kernels(NamedTuple):
    """A module with fused kernels, and the device of the tensors that it takes here."""

    module: ModuleType
    device: str


def kernels(engine: str, functions: str) -> Kernels:
    """Return the kernels of one of ``ENGINES`` for "bessel", "gamma" or "cauchy", or skip the test."""
    if engine == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    elif isinstance(library.loaded(), str):
        pytest.skip("no native library")
    module = importlib.import_module(f"powerspherical.special._{engine}_{functions}")
    return Kernels(module, "cuda" if engine == "triton" and torch.cuda.is_available() else "cpu")


def use(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Make the functions take the engine's kernels wherever they take any, Triton's also on the CPU."""
    monkeypatch.setattr(engines, "_chosen", {"native": "c"}.get(engine, engine))


def switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the functions run as torch operations on the CPU."""
    monkeypatch.setattr(engines, "_chosen", "torch")
