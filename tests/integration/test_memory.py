"""Allocation without torch's dispatcher, and tensors that a kernel can read by pointer."""

from __future__ import annotations

import pytest
import torch

from powerspherical._torch import memory
from powerspherical._torch.memory import empty, readable


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0,), (3, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_empty(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    like = torch.nn.Parameter(torch.ones(2))
    tensor = empty(like, shape, dtype)
    assert type(tensor) is torch.Tensor
    assert (tensor.shape, tensor.dtype, tensor.device) == (torch.Size(shape), dtype, like.device)
    assert tensor.stride() == torch.empty(shape).stride()
    assert not tensor.requires_grad
    assert torch.equal(tensor.fill_(1), torch.ones(shape, dtype=dtype))


def test_empty_in_inference_mode() -> None:
    with torch.inference_mode():
        assert empty(torch.ones(2), (3,), torch.float32).is_inference()  # as torch's own results


def test_empty_like_other_tensors() -> None:
    assert empty(torch.ones(2, device="meta"), (3,), torch.float64).is_meta
    with torch._subclasses.FakeTensorMode():
        like = torch.ones(2)
        assert type(empty(like, (3,), torch.float64)) is type(like)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_empty_on_cuda() -> None:
    for device in range(torch.cuda.device_count()):
        like = torch.ones(2, device=f"cuda:{device}")
        tensor = empty(like, (2, 3), torch.bfloat16)
        assert (tensor.device, tensor.dtype, tensor.stride()) == (like.device, torch.bfloat16, (3, 1))


def test_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
    tensor = memory._allocator("cpu")((2, 3), (3, 1), torch.float64)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == ((2, 3), (3, 1), torch.float64)


def test_readable() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    assert readable(rows) is rows
    negative = torch._neg_view(rows)  # torch notes the sign instead of writing -rows
    assert negative.is_contiguous()
    assert negative.is_neg()
    for view in (rows.T, rows[:, :2], rows[0].expand(4, 3), negative, negative.T):
        result = readable(view)
        assert result.is_contiguous()
        assert not result.is_neg()
        assert torch.equal(result, view)
