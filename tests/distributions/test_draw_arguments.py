"""The arguments of ``sample`` and ``rsample``: the shape, and a generator of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.distributions import Distribution

from helpers.examples import DOUBLE, FAMILIES, FLOAT, IDS, directions, dtypes
from powerspherical import HypersphericalUniform, sampling

DIM, BATCH = 20, 3
Maker = Callable[[torch.dtype, str], Distribution]


def _makers(family: type) -> dict[str, Maker]:
    def make(dtype: torch.dtype, device: str, dim: int = DIM) -> Distribution:
        return family(directions(BATCH, dim, dtype=dtype).to(device), 10.0)

    def shared(dtype: torch.dtype, device: str) -> Distribution:
        kappa = torch.ones(BATCH, dtype=dtype, device=device)
        return family(directions(4, dtype=dtype).to(device), kappa)

    return {
        "batch": make,
        "circle": lambda dtype, device: make(dtype, device, 2),
        "shared direction": shared,
        "marginal": lambda dtype, device: shared(dtype, device).marginal,
    }


#: Functions of a dtype and a device, of batch shape (3,).
MAKERS: dict[str, Maker] = {
    "uniform": lambda dtype, device: HypersphericalUniform(DIM, dtype=dtype, device=device).expand((BATCH,)),
    **{
        f"{name} {kind}": make
        for name, family in zip(IDS, FAMILIES, strict=True)
        for kind, make in _makers(family).items()
    },
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))


@makers
@pytest.mark.parametrize("device", ["cpu", CUDA])
@dtypes
def test_a_generator_determines_the_draws(make: Maker, device: str, dtype: torch.dtype) -> None:
    """They are those of the global seed, whose state is left alone."""
    q, get_state = make(dtype, device), (torch if device == "cpu" else torch.cuda).get_rng_state
    for draw in (q.sample, q.rsample):
        torch.manual_seed(5)
        expected, before = draw((4,)), get_state()
        generator = torch.Generator(device).manual_seed(5)
        first, second = draw((4,), generator=generator), draw((4,), generator=generator)
        assert torch.equal(first, expected)
        assert (first != second).any(-1).all()  # the generator advances
        assert torch.equal(get_state(), before)


@makers
@dtypes
@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["global", "own"])
def test_threads_draw_apart(make: Maker, dtype: torch.dtype, generator: torch.Generator | None) -> None:
    """Also if they share a generator."""
    q = make(dtype, "cpu")
    with ThreadPoolExecutor(4) as threads:
        draws = list(threads.map(lambda _: q.sample(generator=generator), range(200)))
    assert len(torch.stack(draws).flatten(1).unique(dim=0)) == 200


@makers
@pytest.mark.parametrize("device", ["meta", CUDA])
def test_wrong_generators(make: Maker, device: str) -> None:
    q, elsewhere = make(FLOAT, "cpu"), make(FLOAT, device)
    for name in ("sample", "rsample"):
        for value in (5, np.random.default_rng(5)):
            with pytest.raises(ValueError, match=r"generator must be a torch\.Generator, got .*manual_seed"):
                getattr(q, name)(generator=value)
        with pytest.raises(ValueError, match=f"generator is on cpu, but the draws are on {device}"):
            getattr(elsewhere, name)(generator=torch.Generator())
        if device == "cuda":
            with pytest.raises(ValueError, match=r"generator is on cuda.*but the draws are on cpu"):
                getattr(q, name)(generator=torch.Generator("cuda"))


#: Each with the shape it stands for.
SHAPES: list[tuple[object, tuple[int, ...]]] = [
    *[(5, (5,)), (0, (0,)), (np.int64(5), (5,)), ([5], (5,)), ((), ())],
    *[([2, np.int32(3)], (2, 3)), (np.array([2, 3]), (2, 3)), (torch.Size((2, 3)), (2, 3))],
]


@makers
def test_shapes(make: Maker) -> None:
    distribution = make(DOUBLE, "cpu")
    for draw in (distribution.sample, distribution.rsample):
        for value, shape in SHAPES:
            assert draw(value).shape == (*shape, BATCH, *distribution.event_shape), value
        for value in (-1, (2, -1), 2.0, (2.0,), True, None, "two"):
            with pytest.raises(
                ValueError, match="sample_shape must be an integer ≥ 0 or a tuple of them, got"
            ):
                draw(value)


@pytest.mark.parametrize("kappa", [torch.ones(4), torch.ones((), dtype=torch.float16)], ids=str)
def test_precision_of_the_concentration(kappa: torch.Tensor) -> None:
    """Points in float64 with the accuracy of float32 would be no unit vectors."""
    with pytest.raises(ValueError, match=r"must be float64, like loc, got .*: use concentration\.double\(\)"):
        sampling.draw(FAMILIES[0].family, directions(4, 3), kappa)
    x = sampling.draw(FAMILIES[0].family, directions(4, 3), kappa.double())
    assert ((x.norm(dim=-1) - 1).abs() < 1e-14).all()
