"""Forward mode agrees with reverse mode on every closed form, and so do both nestings of the two."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev
from torch.nn.functional import normalize

from helpers.examples import DOUBLE, FAMILIES, directions
from helpers.members import SMOOTH

DIM = 4


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_forms(family: type, name: str) -> None:
    member = SMOOTH[name]
    x = torch.cat((directions(DIM), torch.tensor([2.5], dtype=DOUBLE)))

    def function(x: Tensor) -> Tensor:
        return member(family(normalize(x[:DIM], dim=0), x[DIM], validate_args=False)).sum()

    torch.testing.assert_close(jacfwd(function)(x), jacrev(function)(x), rtol=1e-8, atol=1e-10)
    twice = jacrev(jacrev(function))(x)
    torch.testing.assert_close(hessian(function)(x), twice, rtol=1e-7, atol=1e-9)
