"""The arguments of ``sample`` and ``rsample``: the shape, and a generator of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.distributions import Distribution

from helpers.examples import DOUBLE, FLOAT, directions, dtypes, families
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    SphericalCauchy,
    SphericalCauchyMarginal,
    VonMisesFisher,
    VonMisesFisherMarginal,
)

DIM, BATCH = 20, 3

#: Functions of a dtype and a device, of batch shape (3,).
MAKERS: dict[str, Callable[[torch.dtype, str], Distribution]] = {
    "PS": lambda dtype, device: PowerSpherical(directions(BATCH, DIM, dtype=dtype).to(device), 10.0),
    "vMF": lambda dtype, device: VonMisesFisher(directions(BATCH, DIM, dtype=dtype).to(device), 10.0),
    "Cauchy": lambda dtype, device: SphericalCauchy(directions(BATCH, DIM, dtype=dtype).to(device), 10.0),
    "vMF on the circle": lambda dtype, device: VonMisesFisher(
        directions(BATCH, 2, dtype=dtype).to(device), 1.0
    ),
    "PS, shared direction": lambda dtype, device: PowerSpherical(
        directions(4, dtype=dtype).to(device), torch.ones(BATCH, dtype=dtype, device=device)
    ),
    "uniform": lambda dtype, device: HypersphericalUniform(DIM, dtype=dtype, device=device).expand((BATCH,)),
    "PS marginal": lambda dtype, device: PowerSphericalMarginal(
        DIM, torch.full((BATCH,), 10.0, dtype=dtype, device=device)
    ),
    "vMF marginal": lambda dtype, device: VonMisesFisherMarginal(
        DIM, torch.full((BATCH,), 10.0, dtype=dtype, device=device)
    ),
    "Cauchy marginal": lambda dtype, device: SphericalCauchyMarginal(
        DIM, torch.full((BATCH,), 10.0, dtype=dtype, device=device)
    ),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
    ],
)
methods = pytest.mark.parametrize("method", ["sample", "rsample"])


def global_state(device: str) -> torch.Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()


@makers
@devices
@dtypes
@methods
class TestGenerator:
    def test_determines_the_draws(self, make: Callable, device: str, dtype: torch.dtype, method: str) -> None:
        draw = getattr(make(dtype, device), method)
        generator = torch.Generator(device).manual_seed(5)
        state = generator.get_state()
        first, second = draw((4,), generator=generator), draw((4,), generator=generator)
        assert first.shape[:2] == (4, BATCH)
        assert (first != second).all()  # the generator advances
        generator.set_state(state)
        assert torch.equal(draw((4,), generator=generator), first)
        assert torch.equal(draw((4,), generator=generator), second)

    def test_leaves_the_global_state(
        self, make: Callable, device: str, dtype: torch.dtype, method: str
    ) -> None:
        draw = getattr(make(dtype, device), method)
        before = global_state(device)
        draw((4,), generator=torch.Generator(device).manual_seed(5))
        assert torch.equal(global_state(device), before)

    def test_gives_the_numbers_of_the_global_seed(
        self, make: Callable, device: str, dtype: torch.dtype, method: str
    ) -> None:
        draw = getattr(make(dtype, device), method)
        torch.manual_seed(5)
        expected = draw((4,))
        assert torch.equal(draw((4,), generator=torch.Generator(device).manual_seed(5)), expected)


@devices
@dtypes
@families
def test_gradients_of_draws_from_a_generator(family: type, device: str, dtype: torch.dtype) -> None:
    loc = directions(BATCH, DIM, dtype=dtype).to(device).requires_grad_()
    kappa = torch.full((BATCH,), 10.0, dtype=dtype, device=device, requires_grad=True)
    weight = directions(BATCH, DIM, dtype=dtype, seed=2).to(device)

    def gradients(**options: torch.Generator) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((family(loc, kappa).rsample(**options) * weight).sum(), (loc, kappa))

    torch.manual_seed(5)
    expected = gradients()
    actual = gradients(generator=torch.Generator(device).manual_seed(5))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert not family(loc, kappa).sample(generator=torch.Generator(device)).requires_grad


@makers
@devices
@dtypes
def test_threads_with_generators_of_their_own(make: Callable, device: str, dtype: torch.dtype) -> None:
    distribution = make(dtype, device)

    def draw(seed: int) -> torch.Tensor:
        return distribution.sample((50,), generator=torch.Generator(device).manual_seed(seed))

    expected = list(map(draw, range(40)))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(draw, range(40)))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@makers
@devices
def test_threads_that_share_a_generator_draw_apart(make: Callable, device: str) -> None:
    distribution, generator = make(FLOAT, device), torch.Generator(device).manual_seed(5)
    with ThreadPoolExecutor(4) as threads:
        draws = list(threads.map(lambda _: distribution.sample(generator=generator), range(400)))
    rows = torch.stack(draws).reshape(400, -1)
    assert len(rows.unique(dim=0)) == len(rows)


@makers
@methods
class TestWrongGenerators:
    @pytest.mark.parametrize("value", [5, np.random.default_rng(5)], ids=["integer", "NumPy's"])
    def test_kind(self, make: Callable, method: str, value: object) -> None:
        draw = getattr(make(FLOAT, "cpu"), method)
        with pytest.raises(
            ValueError, match=r"generator must be a torch\.Generator, got .*manual_seed\(seed\)"
        ):
            draw(generator=value)

    def test_device(self, make: Callable, method: str) -> None:
        draw = getattr(make(FLOAT, "meta"), method)
        with pytest.raises(ValueError, match="generator is on cpu, but the draws are on meta"):
            draw(generator=torch.Generator())

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_cpu_and_gpu(self, make: Callable, method: str) -> None:
        draw = getattr(make(FLOAT, "cuda"), method)
        with pytest.raises(ValueError, match="generator is on cpu, but the draws are on cuda:0"):
            draw(generator=torch.Generator())
        draw = getattr(make(FLOAT, "cpu"), method)
        with pytest.raises(ValueError, match=r"generator is on cuda.*but the draws are on cpu"):
            draw(generator=torch.Generator("cuda"))


@makers
@methods
class TestShapes:
    @pytest.mark.parametrize(
        ("value", "shape"),
        [
            (5, (5,)),
            (0, (0,)),
            (np.int64(5), (5,)),
            ([5], (5,)),
            ([2, np.int32(3)], (2, 3)),
            (np.array([2, 3]), (2, 3)),
            (torch.Size((2, 3)), (2, 3)),
            ((), ()),
        ],
        ids=str,
    )
    def test_integers_and_sequences(
        self, make: Callable, method: str, value: object, shape: tuple[int, ...]
    ) -> None:
        distribution = make(DOUBLE, "cpu")
        draws = getattr(distribution, method)(value)
        assert draws.shape == (*shape, BATCH, *distribution.event_shape)

    @pytest.mark.parametrize("value", [-1, (2, -1), 2.0, (2.0,), True, None, "two"], ids=str)
    def test_others_are_refused(self, make: Callable, method: str, value: object) -> None:
        with pytest.raises(ValueError, match="sample_shape must be an integer ≥ 0 or a tuple of them, got"):
            getattr(make(DOUBLE, "cpu"), method)(value)
