"""A minimal kernel that tests whether Triton can compile and run."""

# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write_one(pointer):
    tl.store(pointer, 1.0)


def is_interpreted() -> bool:
    """Whether ``triton.jit`` has made functions for the interpreter."""
    return not isinstance(_write_one, triton.JITFunction)


def write_one(out: Tensor) -> None:
    """Write 1 to the first element."""
    _write_one[(1,)](out)
