"""Fused draws through the operators: broadcasting, memory layouts, precisions and generators.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from powerspherical import engines
from powerspherical._torch import triton as launching
from powerspherical._torch import triton_probe
from powerspherical.families import POWER_SPHERICAL, Family, family_named, family_names
from powerspherical.sampling import draw, geometry
from powerspherical.sampling.triton import fused

pytest.importorskip("triton", reason="Triton is not installed")

from powerspherical.sampling.triton import draw as kernel

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


@pytest.fixture(autouse=True)
def _fuse_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        monkeypatch.setattr(engines, "_chosen", "triton")


def parameters(
    loc_shape: tuple[int, ...], kappa_shape: tuple[int, ...], dtype: torch.dtype = torch.float32, dim: int = 5
) -> tuple[Tensor, Tensor]:
    loc = torch.nn.functional.normalize(torch.randn(*loc_shape, dim, device=DEVICE), dim=-1).to(dtype)
    return loc.requires_grad_(), (1 + torch.rand(kappa_shape, device=DEVICE)).requires_grad_()


def rows_of(family: Family, loc: Tensor, kappa: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return x, and the scalars 1-t, 1+t and noise of each row, of draws with a fixed seed."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    return torch.ops.powerspherical.draw(loc, kappa, shape, None, 0, loc.shape[-1], family.name, generator)


SHAPES = [
    ((), (), ()),
    ((), (3,), (3,)),
    ((3,), (), (3,)),
    ((3,), (2, 3), (4, 2, 3)),
    ((1, 3), (2, 1), (2, 3)),
    ((2, 1), (2, 3), (2, 3)),
    ((2, 1, 3), (4, 1), (2, 4, 3)),
    ((3,), (3,), (0, 3)),
    ((0,), (0,), (0,)),
]


@pytest.mark.parametrize(("loc_shape", "kappa_shape", "shape"), SHAPES)
def test_broadcasting(family, loc_shape, kappa_shape, shape) -> None:
    """Each row uses its own direction, concentration and noise, and contributes to the gradients."""
    loc, kappa = parameters(loc_shape, kappa_shape)
    x = draw(family, loc, 1e8 * kappa, shape)
    assert x.shape == (*shape, 5)
    # At such a large concentration a draw is close to its loc.
    torch.testing.assert_close(x, loc.expand_as(x), rtol=0, atol=2e-3)
    x, (one_minus_t, one_plus_t, _) = rows_of(family, loc, kappa, shape)
    rows = x.detach().reshape(-1, 5)
    assert len(rows.unique(dim=0)) == len(rows)
    grad = torch.randn_like(x)
    actual = torch.autograd.grad(x, (loc, kappa), grad)
    assert [g.shape for g in actual] == [loc.shape, kappa.shape]
    saved = (tensor.detach().double() for tensor in (grad, x, loc, one_minus_t, one_plus_t))
    expected, _ = geometry.pull_back(*saved, None, needs_loc=True)
    torch.testing.assert_close(actual[0].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # raised by NumPy in the interpreter
@pytest.mark.parametrize("dim", [3, 5])
def test_concentration_gradient(family, dim: int) -> None:
    """Equals that of the torch operations at the same draws. It is implicit except for Power Spherical at d ≠ 3."""
    loc, kappa = parameters((30,), (30,), dim=dim)
    x, scalars = (tensor.detach() for tensor in rows_of(family, loc, kappa, (30,)))
    actual = torch.autograd.grad(rows_of(family, loc, kappa, (30,))[0], kappa, grad := torch.randn_like(x))[0]
    if family is POWER_SPHERICAL and dim != 3:
        slope = family.rapidity_slope(*scalars, kappa.detach(), dim)
    else:
        slope = family.implicit_slope(*(x.double() for x in (*scalars[:2], kappa.detach())), dim).float()
    _, expected = geometry.pull_back(grad, x, loc.detach(), *scalars[:2], slope, needs_loc=False)
    torch.testing.assert_close(actual, expected, rtol=3e-4, atol=1e-6)


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_highest_dimension(family, dtype: torch.dtype, shared: bool) -> None:
    dim, rows = fused.MOST_DIM, 400
    loc, _ = parameters(() if shared else (rows,), (), dtype, dim)
    kappa = torch.full((rows,), float(dim), device=DEVICE, requires_grad=True)
    x, (one_minus_t, one_plus_t, _) = rows_of(family, loc, kappa, (rows,))
    eps = torch.finfo(dtype).eps
    assert (x.double().norm(dim=-1) - 1).abs().max() < 5 * eps
    unit = torch.nn.functional.normalize(loc.double(), dim=-1)
    t = (x.double() * unit).sum(-1)
    torch.testing.assert_close(t, 1 - one_minus_t.double(), rtol=0, atol=5 * eps)
    mean, variance = (f(kappa[:1].double(), dim).item() for f in (family.mean_cosine, family.variance_cosine))
    assert abs((1 - one_minus_t.double()).mean().item() - mean) < 6 * (variance / rows) ** 0.5
    grad = torch.randn_like(x)
    actual = torch.autograd.grad(x, (loc, kappa), grad)
    saved = (tensor.detach().double() for tensor in (grad, x, loc, one_minus_t, one_plus_t))
    expected, _ = geometry.pull_back(*saved, None, needs_loc=True)
    atol = 20 * eps * (rows if shared else 1)
    torch.testing.assert_close(actual[0].double(), expected, rtol=20 * eps, atol=atol)
    assert actual[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_half_precision(family, dtype: torch.dtype, shared: bool) -> None:
    loc, kappa = parameters(() if shared else (40,), (40,), dtype)
    results = []
    for directions in (loc, torch.nn.functional.normalize(loc.float(), dim=-1)):
        x = rows_of(family, directions, kappa, (40,))[0]
        grad = torch.linspace(-1, 1, x.numel(), device=DEVICE).view(x.shape)
        results.append((x, *torch.autograd.grad(x, (loc, kappa), grad.to(x.dtype))))
    half, exact = results
    assert [tensor.dtype for tensor in half] == [dtype, dtype, torch.float32]
    for one, other in zip(half, exact, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.05, atol=0.05)


def test_other_layouts(draws) -> None:
    loc, kappa = parameters((4, 6), (4, 6))
    torch.manual_seed(7)
    plain = draws(loc, kappa)
    strided = loc.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
    torch.manual_seed(7)
    assert torch.equal(draws(strided, kappa.detach().T.contiguous().T), plain)
    grad = torch.ones(1, device=DEVICE).expand_as(plain)
    (one,) = torch.autograd.grad(plain, loc, grad, retain_graph=True)
    (other,) = torch.autograd.grad(plain, loc, grad.contiguous())
    assert torch.equal(one, other)


def test_generator(draws) -> None:
    loc, kappa = parameters((4, 6), (4, 6))
    generator = torch.Generator(DEVICE).manual_seed(7)
    before = torch.cuda.get_rng_state() if CUDA else torch.get_rng_state()
    first, second = draws(loc, kappa, generator=generator), draws(loc, kappa, generator=generator)
    assert not torch.equal(first, second)
    assert torch.equal(draws(loc, kappa, generator=generator.manual_seed(7)), first)
    assert torch.equal(torch.cuda.get_rng_state() if CUDA else torch.get_rng_state(), before)


def test_double_precision_is_left_to_the_composition(draws, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("drawn by the fused kernel")

    monkeypatch.setattr(fused, "draw", refuse)
    loc, kappa = parameters((4,), (4,), torch.float64)
    assert draws(loc, kappa.double()).dtype == torch.float64
    with pytest.raises(AssertionError, match="fused"):
        draws(loc.float(), kappa)


@pytest.mark.skipif(not CUDA, reason="needs CUDA")
def test_without_a_compiler(draws, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw falls back to torch operations, and a warning explains why."""

    def fail(out: Tensor) -> None:
        raise RuntimeError("Failed to find C compiler")

    launching._compiles.cache_clear()
    monkeypatch.setattr(triton_probe, "write_one", fail)
    loc, kappa = parameters((4,), (4,))
    try:
        with pytest.warns(UserWarning, match=r"install a C compiler.*Failed to find"):
            assert draws(loc, kappa).shape == (4, 5)
        assert draws(loc, kappa).shape == (4, 5)  # no second warning
    finally:
        launching._compiles.cache_clear()


def test_every_family_is_known() -> None:
    """``fused`` lists all families of the package, with the numbers that the kernel uses."""
    ours = [
        name for name in family_names() if type(family_named(name)).__module__.startswith("powerspherical.")
    ]
    assert {name: getattr(kernel, name.upper()) for name in ours} == fused.FAMILIES
