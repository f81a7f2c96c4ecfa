"""What every test starts from, and what it must not leave behind."""

import pytest
import torch
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20200607)


@pytest.fixture(autouse=True)
def _restore_validation():
    """torch.compile switches the validation of all distributions off, for the rest of the process."""
    default = Distribution._validate_args
    yield
    Distribution.set_default_validate_args(default)
