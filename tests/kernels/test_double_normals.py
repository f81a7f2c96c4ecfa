"""Standard normals in float64 from the C library: their law, their accuracy, their random numbers."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from helpers.engines import assert_threads_change_nothing
from helpers.library import LEVELS, compiled, needs_compiler, needs_library
from helpers.statistical import LEVEL, assert_law
from powerspherical import engines
from powerspherical.sampling.native import standard_normals

STREAM = 5  # DOUBLE_NORMALS in random.h
FLOAT64 = torch.empty(0, dtype=torch.float64)

pytestmark = needs_library


def normals(*shape: int, seed: int = 1) -> Tensor:
    return standard_normals(shape, FLOAT64, torch.Generator().manual_seed(seed))


def philox(place: int, seed: int) -> tuple[int, int]:
    """128 random bits for a place, as two numbers, by the definition of Philox 4x32-7."""
    a, b, c, d = place & 0xFFFFFFFF, place >> 32, 0, STREAM
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = (second >> 32) ^ b ^ keys[0], (first >> 32) ^ d ^ keys[1]
        b, d = second & 0xFFFFFFFF, first & 0xFFFFFFFF
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return a | b << 32, c | d << 32


def box_muller(a: int, b: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The two normals that belong to 64 random bits each, to 40 digits."""
    with mpmath.workdps(40):
        u, y = (((bits >> 12) + mpmath.mpf(0.5)) / 2**52 for bits in (a, b))
        radius, angle = mpmath.sqrt(-2 * mpmath.log(u)), mpmath.pi / 2 * (y - 0.5)
        pair = radius * mpmath.sin(angle), radius * mpmath.cos(angle) * (-1) ** (b & 1)
        return (pair[1], pair[0]) if b & 2 else pair


def errors(found: list[float], expected: list[mpmath.mpf]) -> list[float]:
    """In units in the last place."""
    return [float(abs(f - e)) / math.ulp(float(e)) for f, e in zip(found, expected, strict=True)]


# The law


def test_distribution() -> None:
    count = 2_000_000
    x = normals(count, seed=2)
    assert_law(x[: count // 4], scipy.stats.norm.cdf)
    # E n^k = (k-1)!! for even k, and 0 for odd k
    for power in range(1, 9):
        mean, square = (math.prod(range(k - 1, 0, -2)) if k % 2 == 0 else 0 for k in (power, 2 * power))
        assert abs((x**power).mean() - mean) < 5 * math.sqrt((square - mean**2) / count), power


@pytest.mark.parametrize("threshold", [3.0, 4.0, 5.0])
def test_tails(threshold: float) -> None:
    """As many numbers beyond a threshold as expected, on either side."""
    count = 1 << 24
    x = normals(count, seed=3)
    law = scipy.stats.binom(count, scipy.stats.norm.sf(threshold))
    for beyond in (int((x > threshold).sum()), int((x < -threshold).sum())):
        assert law.ppf(LEVEL / 2) <= beyond <= law.isf(LEVEL / 2)


@pytest.mark.parametrize("transformed", ["itself", "square", "sign"])
def test_no_correlation_by_lag(transformed: str) -> None:
    """Within a pair (lag 16), within a block (32), and beyond."""
    x = normals(1_000_000, seed=4)
    if transformed == "square":
        x = (x.square() - 1) / math.sqrt(2)
    elif transformed == "sign":
        x = x.sign()
    lags = torch.arange(1, 101)
    products = torch.stack([x[lag:].dot(x[:-lag]) / math.sqrt(len(x) - lag) for lag in lags.tolist()])
    assert products.abs().max() < scipy.stats.norm.isf(LEVEL / 2 / len(lags))
    assert scipy.stats.chi2.sf(products.square().sum().item(), len(lags)) > LEVEL


def test_no_correlation_between_seeds() -> None:
    x = torch.stack([normals(20_000, seed=seed) for seed in range(50)])
    above = torch.corrcoef(x)[tuple(torch.triu_indices(50, 50, 1))] * math.sqrt(20_000)
    assert above.abs().max() < scipy.stats.norm.isf(LEVEL / 2 / len(above))


# Accuracy


def test_philox_and_box_muller() -> None:
    """Block by block of 32: the first normals of 16 pairs, then the second ones."""
    generator = torch.Generator().manual_seed(7)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator.manual_seed(7)))
    found = standard_normals((20, 32), FLOAT64, generator.manual_seed(7))
    for block, row in enumerate(found.tolist()):
        pairs = [box_muller(*philox(block * 16 + i, seed)) for i in range(16)]
        assert max(errors(row, [one for one, _ in pairs] + [two for _, two in pairs])) < 4


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_accuracy_at_every_level(level: str | None, tmp_path: Path) -> None:
    """At most 4 units in the last place, also for the rarest bits: at the ends of (0, 1), around √½ and at 0."""
    source = Path(__file__).with_name("native_pairs.c")
    kernels = ctypes.CDLL(str(compiled(source, tmp_path / "pairs.so", level, "-shared")))
    kernels.pairs.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64]
    kernels.block.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64]
    root = int(math.sqrt(0.5) * 2**64)
    edges = [
        0,
        1 << 12,
        (1 << 64) - 1,
        (1 << 64) - (1 << 12) - 1,
        1 << 63,
        (1 << 63) - 1,
        root,
        root ^ 1 << 12,
    ]
    random = np.random.default_rng(1)
    near = random.integers(0, 2**63, 60, dtype=np.uint64) >> random.integers(0, 52, 60).astype(np.uint64)
    some = [*edges, *near.tolist(), *((1 << 64) - 1 - near).tolist(), *((1 << 63) ^ near).tolist()]
    some += random.integers(0, 2**64, -len(some) % 16, dtype=np.uint64).tolist()
    a = np.array([bits for bits in some for _ in range(4)], dtype=np.uint64)
    b = random.permutation(a) ^ random.integers(0, 4, len(a), dtype=np.uint64)
    expected = [box_muller(*bits) for bits in zip(a.tolist(), b.tolist(), strict=True)]
    out = np.empty((2, len(a)))
    kernels.pairs(a.ctypes.data, b.ctypes.data, out[0].ctypes.data, out[1].ctypes.data, len(a))
    for found, exact in zip(out.tolist(), zip(*expected, strict=True), strict=True):
        assert max(errors(found, list(exact))) < 4
    block, far = np.empty(32), 5 << 40  # a place of more than 32 bits
    kernels.block(3 << 60, block.ctypes.data, far)
    pairs = [box_muller(*philox(far * 16 + i, 3 << 60)) for i in range(16)]
    assert max(errors(block.tolist(), [one for one, _ in pairs] + [two for _, two in pairs])) < 4


# Shapes, threads and generators


@pytest.mark.parametrize("count", [0, 1, 5, 31, 32, 33, 63, 64, 1000, 32 * 1024 + 1])
def test_a_number_depends_on_its_place_only(count: int) -> None:
    longer = normals(70_000)
    assert torch.equal(normals(count), longer[:count])


@pytest.mark.parametrize("count", [1, 32 * 1024 - 1, 32 * 1024, 100_001, 1_000_000])
def test_results_do_not_depend_on_the_number_of_threads(count: int) -> None:
    assert_threads_change_nothing(lambda: [normals(count)], 1 << 10)


def test_shapes_and_dtypes() -> None:
    for shape in [(), (0,), (3, 0, 2), (4, 5), (2, 3, 4)]:
        x = normals(*shape)
        assert (x.shape, x.dtype, x.is_contiguous()) == (shape, torch.float64, True)
    for dtype in (torch.float32, torch.bfloat16):  # torch's own
        torch.manual_seed(3)
        found = standard_normals((4, 3), torch.empty(0, dtype=dtype), None)
        torch.manual_seed(3)
        assert torch.equal(found, torch.randn(4, 3, dtype=dtype))


def test_without_the_library() -> None:
    expected = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    with engines.engine("torch"):
        assert torch.equal(normals(4, 3, seed=5), expected)
