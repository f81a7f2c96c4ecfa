"""How kernels are launched: by torch's launcher where it serves, otherwise by Triton's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerspherical._torch import triton as launching

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
SIGNATURE = {"out": "*fp32", "seed": "i64", "rows": "i64", "scale": "fp32", "DIM": "constexpr"}


def compiled(**changes: Any) -> SimpleNamespace:
    """Return what the launches read of a kernel that Triton has compiled."""
    metadata = {"num_warps": 4, "num_ctas": 1, "shared": 512}
    metadata |= {"global_scratch_size": 0, "profile_scratch_size": 0}
    signature = changes.pop("signature", SIGNATURE)
    names = changes.pop("names", list(signature))
    source = SimpleNamespace(signature=signature, fn=SimpleNamespace(arg_names=names))
    calls: list[tuple[Any, ...]] = []
    return SimpleNamespace(
        metadata=SimpleNamespace(**{**metadata, **changes}),
        src=source,
        function=77,
        packed_metadata="packed",
        run=lambda *arguments: calls.append(arguments),
        calls=calls,
    )


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Put a launcher in place of torch's, and return the list of its calls."""
    calls: list[tuple[Any, ...]] = []
    fake = SimpleNamespace(_launch_kernel=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(torch._C, "_StaticCudaLauncher", fake, raising=False)
    return calls


def test_torchs_launcher(launcher: list[tuple[Any, ...]]) -> None:
    run, rest = launching._static_run(compiled(), (8, 1), (100, 0.5, 64))
    run((1000, 3, *rest), 5)
    # The constants are part of the kernel. The scratch memory has two pointers.
    assert launcher == [(77, 8, 1, 1, 4, 512, "OllfOO", (1000, 3, 100, 0.5, None, None), 5)]


def test_an_older_triton_without_scratch_memory(launcher: list[tuple[Any, ...]]) -> None:
    kernel = compiled()
    del kernel.metadata.profile_scratch_size
    run, rest = launching._static_run(kernel, (8, 1), (100, 0.5, 64))
    run((1000, 3, *rest), 5)
    assert launcher[0][6:8] == ("OllfO", (1000, 3, 100, 0.5, None))


@pytest.mark.parametrize(
    "changes",
    [
        {"global_scratch_size": 16},
        {"num_ctas": 2},
        {"signature": {**SIGNATURE, "scale": "fp64"}},
        {"names": ["out", "seed"]},
    ],
    ids=["scratch memory", "clusters", "a type that we do not use", "another signature"],
)
def test_what_torchs_launcher_does_not_serve(
    launcher: list[tuple[Any, ...]], changes: dict[str, Any]
) -> None:
    assert launching._static_run(compiled(**changes), (8, 1), (100, 0.5, 64)) is None


def test_a_kernel_without_numbers(launcher: list[tuple[Any, ...]]) -> None:
    run, rest = launching._static_run(compiled(signature={"out": "*fp32"}), (8, 1), ())
    run((1000, *rest), 5)
    assert launcher[0][6:8] == ("OOO", (1000, None, None))


class Kernel:
    """A kernel of Triton that notes its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def launch(*arguments: Any, num_warps: int) -> SimpleNamespace:
            self.launches.append(arguments)
            return compiled(signature={"out": "*fp32", "seed": "i64", "rows": "i64", "DIM": "constexpr"})

        return launch


def test_launches(launcher: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton makes the first launch, and those with pointers for which it needs another variant."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    kernel = Kernel()
    launch = launching.Launch(kernel, (8, 1), (100,), (64,), num_warps=4)
    aligned = torch.zeros(64)
    odd = aligned[1:]
    for tensor, seed in ((odd, 1), (aligned, 2), (aligned, 3), (odd, 4), (aligned, 5)):
        launch([tensor], seed)
    assert [(arguments[0] is odd, *arguments[1:]) for arguments in kernel.launches] == [
        (True, 1, 100, 64),
        (False, 2, 100, 64),
        (True, 4, 100, 64),
    ]
    assert [call[7:] for call in launcher] == [
        ((aligned.data_ptr(), seed, 100, None, None), 5) for seed in (3, 5)
    ]


def test_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_StaticCudaLauncher", raising=False)
    assert launching._static_run(compiled(), (8, 1), (100, 0.5, 64)) is None


def test_tritons_launcher() -> None:
    kernel = compiled()
    run, rest = launching._triton_run(kernel, (8, 1), (100, 0.5, 64))
    run((1000, 3, *rest), 5)
    assert kernel.calls == [(8, 1, 1, 5, 77, "packed", None, None, None, 1000, 3, 100, 0.5, 64)]


@needs_cuda
def test_both_launch_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from powerspherical.sampling.triton import draw as kernels

    def draws() -> list[torch.Tensor]:
        kernels._points_launch.cache_clear()
        x = torch.empty(3, 1000, 16, device="cuda")
        loc = torch.nn.functional.normalize(torch.ones(1000, 16, device="cuda"), dim=-1)
        for one in x:  # the first launch is always Triton's
            kernels.draw(one, None, loc, torch.full((1000,), 9.0, device="cuda"), 123, 0, 16)
        return list(x)

    static_run, used = launching._static_run, []
    monkeypatch.setattr(
        launching, "_static_run", lambda *arguments: used.append(static_run(*arguments)) or used[-1]
    )
    static = draws()
    assert [one is not None for one in used] == [hasattr(torch._C, "_StaticCudaLauncher")]
    monkeypatch.setattr(launching, "_static_run", lambda *_: None)
    assert all(torch.equal(one, static[0]) for one in (*static, *draws()))
