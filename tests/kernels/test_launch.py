"""Launches of Triton kernels, and that the compiler takes kernels which the interpreter runs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from powerspherical.kernels.launch import blocks, description, launch, missing, runs_on

CPU = torch.device("cpu")


class Kernel:
    """Takes the place of a jitted function and of what it compiles to. It keeps the launches."""

    def __init__(self) -> None:
        self.fn = object()
        self.first: list[tuple[Any, ...]] = []
        self.later: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            if not options:
                self.later.append((grid, *arguments))
                return None
            self.first.append((grid, *arguments, options))
            return self

        return run


def test_only_the_first_launch_inspects_its_arguments() -> None:
    kernel, out = Kernel(), torch.zeros(8)
    for rows in (8, 4, 1):
        launch(kernel, (rows, 1), (out, None), (rows, 0.5), ("cauchy", True), num_warps=2)
    assert kernel.first == [
        ((8, 1), out, out, 8, 0.5, "cauchy", True, {"num_warps": 2, "enable_fp_fusion": True})
    ]
    address = out.data_ptr()
    assert kernel.later == [((n, 1, 1), address, address, n, 0.5, "cauchy", True) for n in (4, 1)]


@pytest.mark.parametrize("change", ["dtype", "constant", "warps", "alignment"])
def test_other_variants_are_inspected(change: str) -> None:
    kernel, out = Kernel(), torch.zeros(8)
    launch(kernel, (1, 1), (out,), (1,), (True,))
    other = {"dtype": out.half(), "alignment": out[1:]}.get(change, out)
    for _ in range(2):
        launch(
            kernel, (1, 1), (other,), (1,), (change != "constant",), num_warps=8 if change == "warps" else 4
        )
    # Pointers that are not multiples of 16 bytes are inspected each time.
    assert len(kernel.first) == (3 if change == "alignment" else 2)


def test_a_launch_of_no_programs_does_nothing() -> None:
    kernel = Kernel()
    launch(kernel, (0, 1), (torch.zeros(0),), (0,), ())
    assert not kernel.first


def test_devices() -> None:
    assert not runs_on(torch.device("meta"), False)
    assert not runs_on(torch.device("mps"), True)
    triton = pytest.importorskip("triton", "3.4", reason="the kernels need Triton 3.4")
    assert runs_on(CPU, False) == triton.knobs.runtime.interpret
    assert runs_on(torch.device("cuda", 0), compiling=True) == (torch.version.hip is None)


def test_an_old_triton_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", "3.3.1")
    missing.cache_clear()
    try:
        assert not runs_on(CPU, False)
        assert not runs_on(torch.device("cuda", 0), True)
        assert description() == (
            "not used: they need Triton 3.4 or newer, found 3.3.1: install torch 2.8 or newer"
        )
    finally:
        missing.cache_clear()


def test_a_gpu_that_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", "3.4", reason="the kernels need Triton 3.4")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.warns(UserWarning, match="Triton cannot compile for this GPU"):
        assert not runs_on(torch.device("cuda", 0), compiling=False)


def test_sizes() -> None:
    assert [blocks(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


COMPILES = """
import types
import torch
import triton
from triton.backends.compiler import GPUTarget

run = triton.JITFunction.run
compiled = []
triton.JITFunction.run = lambda *args, grid, warmup, **options: compiled.append(
    run(*args, grid=grid, warmup=True, **options))
triton.runtime.driver.set_active(types.SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
    get_current_stream=lambda device: 0))
from powerspherical.kernels.registry import KERNELS, Bounds, Settings
from powerspherical.kernels import triton as kernels_for_cuda

loc, kappa, one, yes = torch.eye(5), torch.ones(5), torch.ones(5), (True,) * 3
table = torch.ones(3, 9), (0, 0.0, 0.0)
call = {what: kernel for (what, engine), kernel in KERNELS.items() if engine == "triton"}
for family in ("power_spherical", "von_mises_fisher", "spherical_cauchy"):
    options = family, 5, kappa.shape, None, None
    x, kept = call["draw"].run((loc, kappa), options, yes)
    call["draw"].gradients((x,), yes[1:], (loc, kappa), kept, options)
    options = family, None, 1.0
    call["density"].gradients((one,), yes, (x, loc, kappa), (one, one), options)
    call["density"].run((x, loc, kappa), options, yes)
    options = Settings(family, 4, Bounds(0.0, 9.0)), table, 2.0, torch.bfloat16
    results, kept = call["latents"].run((x,), options, yes)
    call["latents"].gradients(results, yes, (x,), kept, options)
    call["matrix"].run(family, x, kappa, one, 5, 1.0)
    call["matrix"].gradients(family, x, x.clone(), kappa, 5)
outputs, _ = call["head"].run((x,), (4, 0.0, 9.0, 1e-12), yes)
call["head"].gradients(outputs, yes, (x,), outputs[:1], (4, 0.0, 9.0, 1e-12))
call["curve"].run((kappa,), [table], yes)
call["check"].run(loc, kappa, 1e-6, 9.0)
assert len(compiled) == 3 * 8 + 4 and None not in compiled, compiled
"""


@pytest.mark.slow
def test_kernels_compile_for_cuda() -> None:
    """The interpreter takes more than the compiler. This needs no GPU."""
    pytest.importorskip("triton", "3.4", reason="the kernels need Triton 3.4")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILES], env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-3000:]
