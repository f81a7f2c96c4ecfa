"""The logic of the fused kernels: on a GPU as compiled, elsewhere in Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from powerspherical.kernels import _geometry
from powerspherical.special import EXPONENTIAL_TILT, POWER_TILT, log_tails

triton = pytest.importorskip("triton", reason="Triton is not installed")

from powerspherical.kernels import _triton_draw, _triton_pull_back  # noqa: E402

LEVEL = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
COUNT = 100_000 if COMPILED else 1000  # draws; the interpreter takes milliseconds for each
FAMILIES = {
    "power_spherical": (_triton_draw.POWER_SPHERICAL, POWER_TILT),
    "von_mises_fisher": (_triton_draw.VON_MISES_FISHER, EXPONENTIAL_TILT),
}
families = pytest.mark.parametrize("name", FAMILIES)


def directions(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, device=DEVICE), dim=-1)


def draw(
    name: str, loc: Tensor, kappa: Tensor, seed: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    key = torch.tensor(seed, device=DEVICE)
    return _triton_draw.draw(loc, kappa, key, FAMILIES[name][0], dtype, fast=COMPILED)


def constant(value: float, count: int = COUNT) -> Tensor:
    return torch.full((), value, device=DEVICE).expand(count)


@families
@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 0.0), (2, 3.0), (3, 0.0), (3, 1.0), (5, 30.0), (8, 1e6), (17, 1e3), (64, 100.0)]
)
def test_law(name: str, dim: int, kappa: float) -> None:
    loc = directions(1, dim)
    x, one_minus_t, one_plus_t, squared_length = draw(name, loc, constant(kappa), seed=dim)
    ends = (end.double().cpu() for end in (one_minus_t, one_plus_t))
    log_cdf, _ = log_tails(FAMILIES[name][1], *ends, torch.full((COUNT,), kappa).double(), dim)
    assert scipy.stats.kstest(log_cdf.exp().numpy(), "uniform").pvalue > LEVEL
    if name == "power_spherical" or dim > 2:
        law = scipy.stats.chi2(dim - 1).cdf
        assert scipy.stats.kstest(squared_length.cpu().numpy(), law).pvalue > LEVEL
    torch.testing.assert_close(x.norm(dim=-1), torch.ones_like(one_minus_t), rtol=0, atol=1e-6)
    if kappa < 1e3:  # beyond, the dot product has not the digits
        torch.testing.assert_close((x * loc).sum(-1), 1 - one_minus_t, rtol=0, atol=1e-6)


@families
@pytest.mark.parametrize("dim", [2, 3, 6])
def test_the_direction_is_uniform_and_independent_of_the_cosine(name: str, dim: int) -> None:
    loc = directions(1, dim)
    x, one_minus_t, one_plus_t, _ = draw(name, loc, constant(2.0))
    across = torch.linalg.svd(loc).Vh[1]
    coordinate = ((x @ across) / (one_minus_t * one_plus_t).sqrt()).cpu()
    if dim == 2:
        coordinate = coordinate.sign()  # all it has but for rounding
        assert abs(coordinate.mean().item()) < 5 / math.sqrt(COUNT)
    else:  # a coordinate of a uniform point of the sphere of R^{d-1}
        law = scipy.stats.beta((dim - 2) / 2, (dim - 2) / 2, loc=-1, scale=2).cdf
        assert scipy.stats.kstest(coordinate.double().numpy(), law).pvalue > LEVEL
    assert scipy.stats.spearmanr(coordinate.numpy(), one_minus_t.cpu().numpy()).pvalue > LEVEL


@families
def test_a_row_depends_on_nothing_but_seed_and_number(name: str) -> None:
    """Not on the other rows, nor on how many there are: other blocks, the same numbers."""
    loc = directions(40, 5)
    kappa = torch.rand(40, device=DEVICE) * 10
    many, few = draw(name, loc, kappa), draw(name, loc[:7].contiguous(), kappa[:7])
    for whole, part in zip(many, few, strict=True):
        assert torch.equal(whole[:7], part)
    again, other = draw(name, loc, kappa), draw(name, loc, kappa, seed=2)
    assert torch.equal(many[0], again[0])
    assert not torch.isclose(many[0], other[0]).all(-1).any()
    assert len(many[0].unique(dim=0)) == 40


@families
@pytest.mark.parametrize("count", [1, 4])
def test_rows_share_directions(name: str, count: int) -> None:
    loc, kappa = directions(count, 6), torch.rand(12, device=DEVICE) * 10
    shared = draw(name, loc, kappa)
    apart = draw(name, loc.repeat(12 // count, 1), kappa)
    for one, other in zip(shared, apart, strict=True):
        assert torch.equal(one, other)


@families
def test_half_precision(name: str) -> None:
    loc, kappa = directions(9, 16).bfloat16(), constant(20.0, 9)
    x, *_ = draw(name, loc, kappa, dtype=torch.bfloat16)
    exact, *_ = draw(name, loc.float(), kappa)
    assert x.dtype == torch.bfloat16
    torch.testing.assert_close(x, exact.bfloat16())


@families
def test_what_is_not_a_number_stays_in_its_row(name: str) -> None:
    kappa = torch.tensor([1.0, math.nan, 1e9, 0.0], device=DEVICE)
    x, *_ = draw(name, directions(4, 3), kappa)
    assert x.isnan().any(-1).tolist() == [False, True, False, False]


@families
def test_no_rows(name: str) -> None:
    x, one_minus_t, *_ = draw(name, directions(1, 3), constant(1.0, 0))
    assert (x.shape, one_minus_t.shape) == ((0, 3), (0,))


@pytest.mark.parametrize(
    ("rows", "count", "dim"),
    [(37, 37, 5), (40, 1, 7), (36, 6, 3), (1500, 1, 4), (10, 5, 200), (3, 3, 2)],
)
def test_pull_back(rows: int, count: int, dim: int) -> None:
    loc = directions(count, dim)
    x, one_minus_t, one_plus_t, _ = draw("power_spherical", loc, constant(4.0, rows))
    grad, slope = torch.randn_like(x), torch.rand(rows, device=DEVICE)
    ends = one_minus_t, one_plus_t
    grad_loc, grad_kappa = _triton_pull_back.pull_back(grad, x, loc, *ends, slope)
    each = loc.repeat(rows // count, 1)
    along = _geometry.row_dot(grad, each)
    full = _geometry.pull_back_loc(grad, along, x, _geometry.cosine(*ends))
    expected = full.view(rows // count, count, dim).sum(0)
    torch.testing.assert_close(grad_loc, expected, rtol=1e-5, atol=1e-6 * rows)
    grad_t = _geometry.pull_back_cosine(grad, along, x, each, *ends)
    torch.testing.assert_close(grad_kappa, grad_t * slope, rtol=1e-4, atol=1e-5)

    only_loc, nothing = _triton_pull_back.pull_back(grad, x, loc, *ends, None)
    assert nothing is None
    assert torch.equal(only_loc, grad_loc)
    nothing, only_kappa = _triton_pull_back.pull_back(grad, x, loc, *ends, slope, needs_loc=False)
    assert nothing is None
    assert torch.equal(only_kappa, grad_kappa)


def test_pull_back_of_no_rows() -> None:
    empty = torch.empty(0, device=DEVICE)
    grad_loc, grad_kappa = _triton_pull_back.pull_back(
        empty.view(0, 3), empty.view(0, 3), directions(1, 3), empty, empty, empty
    )
    assert torch.equal(grad_loc, torch.zeros(1, 3, device=DEVICE))
    assert grad_kappa.shape == (0,)
