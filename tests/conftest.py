"""What every test starts from, and what it must not leave behind."""

import os

import pytest
import torch
from torch.distributions import Distribution

if not torch.cuda.is_available():
    # Without a GPU the fused kernels run in Triton's interpreter, which must be asked for before Triton is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20200607)


@pytest.fixture(autouse=True)
def _restore_validation():
    """torch.compile switches the validation of all distributions off, for the rest of the process."""
    default = Distribution._validate_args
    yield
    Distribution.set_default_validate_args(default)
