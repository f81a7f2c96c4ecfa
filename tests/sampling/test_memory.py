"""Allocation without torch's dispatcher, and tensors that a kernel can read by pointer."""

from __future__ import annotations

import pytest
import torch

from powerspherical._torch.memory import empty, readable


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0,), (3, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_empty(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    like = torch.nn.Parameter(torch.ones(2))
    tensor = empty(like, shape, dtype)
    assert type(tensor) is torch.Tensor
    assert (tensor.shape, tensor.dtype, tensor.device) == (torch.Size(shape), dtype, like.device)
    assert tensor.is_contiguous()
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


def test_readable() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    assert readable(rows) is rows
    negative = torch.complex(rows, rows).conj().imag  # torch notes the sign instead of writing -rows
    assert negative.is_neg()
    for view in (rows.T, rows[:, :2], rows[0].expand(4, 3), negative, negative.T):
        result = readable(view)
        assert result.is_contiguous()
        assert not result.is_neg()
        assert torch.equal(result, view)
