"""The arguments of ``sample`` and ``rsample``: the shape, and a generator of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from helpers.examples import DOUBLE, FAMILIES, FLOAT, IDS, directions, dtypes, families
from powerspherical import HypersphericalUniform

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
devices = pytest.mark.parametrize("device", ["cpu", CUDA])


def methods(distribution: Distribution) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    return distribution.sample, distribution.rsample


def global_state(device: str) -> Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()


@makers
@devices
@dtypes
def test_a_generator_determines_the_draws(make: Maker, device: str, dtype: torch.dtype) -> None:
    """They are those of the global seed, whose state is left alone."""
    for draw in methods(make(dtype, device)):
        torch.manual_seed(5)
        expected, before = draw((4,)), global_state(device)
        generator = torch.Generator(device).manual_seed(5)
        state = generator.get_state()
        first, second = draw((4,), generator=generator), draw((4,), generator=generator)
        assert first.shape[:2] == (4, BATCH)
        assert torch.equal(first, expected)
        assert (first != second).any(-1).all()  # the generator advances
        generator.set_state(state)
        assert torch.equal(draw((4,), generator=generator), first)
        assert torch.equal(draw((4,), generator=generator), second)
        assert torch.equal(global_state(device), before)


@devices
@dtypes
@families
def test_gradients_of_draws_from_a_generator(family: type, device: str, dtype: torch.dtype) -> None:
    loc = directions(BATCH, DIM, dtype=dtype).to(device).requires_grad_()
    kappa = torch.full((BATCH,), 10.0, dtype=dtype, device=device, requires_grad=True)
    weight = directions(BATCH, DIM, dtype=dtype, seed=2).to(device)

    def gradients(**options: torch.Generator) -> tuple[Tensor, ...]:
        return torch.autograd.grad((family(loc, kappa).rsample(**options) * weight).sum(), (loc, kappa))

    torch.manual_seed(5)
    expected = gradients()
    actual = gradients(generator=torch.Generator(device).manual_seed(5))
    assert all(map(torch.equal, actual, expected))
    assert not family(loc, kappa).sample(generator=torch.Generator(device)).requires_grad


@makers
@devices
@dtypes
def test_threads(make: Maker, device: str, dtype: torch.dtype) -> None:
    """Generators of their own give each thread the same numbers as always; a shared one gives all different ones."""
    distribution, shared = make(dtype, device), torch.Generator(device).manual_seed(5)

    def draw(seed: int) -> Tensor:
        return distribution.sample((50,), generator=torch.Generator(device).manual_seed(seed))

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(draw, range(20)))
        draws = list(threads.map(lambda _: distribution.sample(generator=shared), range(200)))
    assert all(map(torch.equal, found, map(draw, range(20))))
    assert len(torch.stack(draws).flatten(1).unique(dim=0)) == 200


@makers
def test_wrong_generators(make: Maker) -> None:
    for draw in methods(make(FLOAT, "cpu")):
        for value in (5, np.random.default_rng(5)):
            with pytest.raises(ValueError, match=r"generator must be a torch\.Generator, got .*manual_seed"):
                draw(generator=value)
    for draw in methods(make(FLOAT, "meta")):
        with pytest.raises(ValueError, match="generator is on cpu, but the draws are on meta"):
            draw(generator=torch.Generator())


@makers
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_generators_of_another_device(make: Maker) -> None:
    for draw in methods(make(FLOAT, "cuda")):
        with pytest.raises(ValueError, match="generator is on cpu, but the draws are on cuda:0"):
            draw(generator=torch.Generator())
    for draw in methods(make(FLOAT, "cpu")):
        with pytest.raises(ValueError, match=r"generator is on cuda.*but the draws are on cpu"):
            draw(generator=torch.Generator("cuda"))


#: Each with the shape it stands for.
SHAPES: list[tuple[object, tuple[int, ...]]] = [
    *[(5, (5,)), (0, (0,)), (np.int64(5), (5,)), ([5], (5,)), ((), ())],
    *[([2, np.int32(3)], (2, 3)), (np.array([2, 3]), (2, 3)), (torch.Size((2, 3)), (2, 3))],
]


@makers
def test_shapes(make: Maker) -> None:
    distribution = make(DOUBLE, "cpu")
    for draw in methods(distribution):
        for value, shape in SHAPES:
            assert draw(value).shape == (*shape, BATCH, *distribution.event_shape), value
        for value in (-1, (2, -1), 2.0, (2.0,), True, None, "two"):
            with pytest.raises(
                ValueError, match="sample_shape must be an integer ≥ 0 or a tuple of them, got"
            ):
                draw(value)
