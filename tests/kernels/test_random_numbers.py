"""Random numbers of the C library: Philox and Box–Muller by definition, and the law of the normals."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch

from helpers.directions import unit
from helpers.library import BITS, LEVELS, compiled, needs_compiler, needs_library
from helpers.statistical import LEVEL, assert_law
from powerspherical import SphericalCauchy
from powerspherical._torch.random import KeyedGenerator
from powerspherical.engines import engine

NORMALS, PROPOSAL = 0, 3  # streams of random.h
KEY = 0x7EDCBA9876543210


def philox(counter: tuple[int, ...], key: int) -> tuple[int, ...]:
    """Return four words of 32 bits by the definition of Philox 4x32-7."""
    (a, b, c, d), keys = counter, [key & 0xFFFFFFFF, key >> 32]
    for _ in range(7):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = (second >> 32) ^ b ^ keys[0], (first >> 32) ^ d ^ keys[1]
        b, d = second & 0xFFFFFFFF, first & 0xFFFFFFFF
        keys = [(key + step) & 0xFFFFFFFF for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return a, b, c, d


def random_bits(bits: int, place: int, stream: int) -> list[int]:
    """Return the four random numbers of attempt 0 at a place."""
    calls = [philox((index, place & 0xFFFFFFFF, place >> 32, stream), KEY) for index in range(bits // 32)]
    words = [word for call in calls for word in call]
    return words if bits == 32 else [a | b << 32 for a, b in zip(words[::2], words[1::2], strict=True)]


def normal_pair(bits: int, a: int, b: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return the normals that belong to two random numbers, to 40 digits."""
    with mpmath.workdps(40):
        half = mpmath.mpf(0.5)
        if bits == 32:
            u, turns = ((a >> 1) + half) / 2**31, mpmath.mpf(b - (b >> 31 << 32)) / 2**31
        else:
            u, turns = ((a >> 12) + half) / 2**52, mpmath.mpf(b >> 12) / 2**51 - 1
        radius, angle = mpmath.sqrt(-2 * mpmath.log(u)), turns * mpmath.pi / 2
        return radius * mpmath.sin(angle), radius * mpmath.cos(angle) * (-1) ** (b & 1)


def block(bits: int, number: int) -> list[mpmath.mpf]:
    """Return a block of the sequence of normals: the first ones of 16 places, then the second ones, and so on."""
    drawn = [random_bits(bits, 16 * number + i, NORMALS) for i in range(16)]
    rows = [[*normal_pair(bits, a, b), *normal_pair(bits, c, d)] for a, b, c, d in drawn]
    return [row[k] for k in range(4) for row in rows]


def assert_accurate(found: np.ndarray, exact: list[mpmath.mpf], partners: list[mpmath.mpf]) -> None:
    """To 1.5e-6 in float32, and in float64 to 5 units in the last place of the radius that a pair has."""
    single, found = found.dtype == np.float32, found.astype(np.float64)
    radius = np.hypot(np.array(exact, float), np.array(partners, float))
    differences = [float(mpmath.mpf(f) - e) for f, e in zip(found.tolist(), exact, strict=True)]
    assert (np.abs(differences) <= (1.5e-6 if single else 5 * np.spacing(radius))).all()


def test_known_answers_of_philox() -> None:
    """From kat_vectors of Random123."""
    assert philox((0, 0, 0, 0), 0) == (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)


def test_a_default_device_changes_no_keyed_generator() -> None:
    expected = torch.rand(4, generator=KeyedGenerator(KEY))
    with torch.device("meta"):
        generator = KeyedGenerator(KEY)
    assert torch.equal(torch.rand(4, generator=generator), expected)


@needs_library
@pytest.mark.parametrize("dim", [2, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_points_by_definition(dtype: torch.dtype, dim: int) -> None:
    """Spherical Cauchy draws consist of a tangent vector of normals, and one normal for t."""
    bits, rows, kappa, mu = torch.finfo(dtype).bits, 70, 0.5, unit(dim, dtype=dtype)
    with engine("c"):
        q = SphericalCauchy(mu, torch.tensor(kappa, dtype=dtype))
        x = q.sample((rows,), generator=KeyedGenerator(KEY)).double().numpy()
    each, mu = 1 if dim == 2 else dim, mu.double().numpy()
    noise = np.array([n for number in range(80 * each // 64 + 1) for n in block(bits, number)], float)
    # Up to d = 8, 16 rows take turns.
    small = noise[: 80 * each].reshape(5, each, 16).transpose(0, 2, 1).reshape(80, each)
    noise = small[:rows] if dim <= 8 else noise[: rows * dim].reshape(rows, dim)
    v = noise * [-mu[1], mu[0]] if dim == 2 else noise - np.outer(noise @ mu, mu)
    normal = [float(normal_pair(bits, *random_bits(bits, r, PROPOSAL)[:2])[0]) for r in range(rows)]
    cosine = normal / np.sqrt(np.square(normal) + np.square(v).sum(-1))
    odds = (1 + kappa) ** 2 * (1 + cosine) / (1 - cosine)
    t, v = ((odds - 1) / (odds + 1))[:, None], v / np.linalg.norm(v, axis=-1, keepdims=True)
    np.testing.assert_allclose(x, t * mu + np.sqrt(1 - t * t) * v, rtol=0, atol=20 * torch.finfo(dtype).eps)


# The normals alone


def compiled_pairs(bits: int, level: str | None, folder: Path) -> ctypes.CDLL:
    source, target = Path(__file__).with_name("native_pairs.c"), folder / f"{bits}{level}.so"
    return ctypes.CDLL(str(compiled(source, target, bits, level, "-shared", "-fvisibility=default")))


Sequence = Callable[..., np.ndarray]


@pytest.fixture(scope="module", params=BITS)
def normals(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence:
    """Returns consecutive normals of a sequence, in requests of the given lengths."""
    library = compiled_pairs(request.param, LEVELS[0], tmp_path_factory.mktemp("normals"))
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.sequence.argtypes = [ctypes.c_uint64, pointer, integer, pointer, integer]

    def draw(*lengths: int, key: int = KEY, start: int = 0) -> np.ndarray:
        out, parts = np.empty(sum(lengths), f"f{request.param // 8}"), np.array(lengths)
        library.sequence(key, out.ctypes.data, start, parts.ctypes.data, len(parts))
        return out

    return draw


@functools.cache
def rare_pairs(bits: int) -> tuple[np.ndarray, np.ndarray, list[mpmath.mpf], list[mpmath.mpf]]:
    """Return pairs of random bits, also the rarest ones, and the normals that belong to them."""
    random, top, word = np.random.default_rng(1), (1 << bits) - 1, np.dtype(f"u{bits // 8}")
    near = [int(n) >> k for n in random.integers(0, 2 ** (bits - 1), 4) for k in range(bits - 1)]
    some = [
        change ^ n for n in (0, 1 << 12, *near) for change in (0, top, 1 << bits - 1, int(top / math.sqrt(2)))
    ]
    a = np.repeat(np.array(some, word), 4)
    b = random.permutation(a) ^ random.integers(0, 4, len(a), dtype=word)
    exact = [normal_pair(bits, *both) for both in zip(a.tolist(), b.tolist(), strict=True)]
    return a, b, *map(list, zip(*exact, strict=True))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("level", LEVELS)
def test_accuracy(bits: int, level: str | None, tmp_path: Path) -> None:
    """Also at the ends of (0, 1), around √½ and at 0."""
    a, b, sines, cosines = rare_pairs(bits)
    found = np.empty((2, len(a)), f"f{bits // 8}")
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, *found)]
    compiled_pairs(bits, level, tmp_path).pairs(*pointers, ctypes.c_int64(len(a)))
    assert_accurate(found[0], sines, cosines)
    assert_accurate(found[1], cosines, sines)


@needs_compiler
def test_sequence(normals: Sequence) -> None:
    """A number depends on its place only, not on the requests. Places have 64 bits."""
    whole = normals(1000, start=77)
    assert np.array_equal(normals(1, 2, 60, 0, 1, 64, 300, 31, 541, start=77), whole)
    for number in (0, 1, (1 << 28) - 1, 5 << 40):
        one, two, three, four = np.array(exact := block(8 * whole.itemsize, number)).reshape(4, 16).tolist()
        assert_accurate(normals(64, start=number * 64), exact, [*two, *one, *four, *three])


@needs_compiler
def test_law(normals: Sequence) -> None:
    count = 2_000_000
    x = normals(count).astype(np.float64)
    assert_law(torch.from_numpy(x[: count // 4]), scipy.stats.norm.cdf)
    # E n^k = (k-1)!! for even k, and 0 for odd k
    for power in range(1, 9):
        mean, square = (math.prod(range(k - 1, 0, -2)) if k % 2 == 0 else 0 for k in (power, 2 * power))
        assert abs((x**power).mean() - mean) < 5 * math.sqrt((square - mean**2) / count), power


@needs_compiler
def test_tails(normals: Sequence) -> None:
    """As many numbers lie beyond a threshold as expected, on either side."""
    count = 1 << 24
    x = normals(count)
    for threshold in (3.0, 4.0, 5.0):
        law = scipy.stats.binom(count, scipy.stats.norm.sf(threshold))
        for beyond in (x > threshold).sum(), (x < -threshold).sum():
            assert law.ppf(LEVEL / 2) <= beyond <= law.isf(LEVEL / 2)


@needs_compiler
@pytest.mark.parametrize("transform", [np.positive, np.sign, lambda x: (x * x - 1) / math.sqrt(2)])
def test_no_correlation_by_lag(normals: Sequence, transform: Callable[[np.ndarray], np.ndarray]) -> None:
    """Within a pair (lag 16), within a block, and beyond."""
    x = transform(normals(1_000_000).astype(np.float64))
    products = np.array([x[lag:] @ x[:-lag] / math.sqrt(len(x) - lag) for lag in range(1, 101)])
    assert np.abs(products).max() < scipy.stats.norm.isf(LEVEL / 2 / len(products))
    assert scipy.stats.chi2.sf(np.square(products).sum(), len(products)) > LEVEL


@needs_compiler
def test_no_correlation_between_keys(normals: Sequence) -> None:
    x = np.stack([normals(20_000, key=key) for key in range(50)])
    above = np.corrcoef(x)[np.triu_indices(50, 1)] * math.sqrt(20_000)
    assert np.abs(above).max() < scipy.stats.norm.isf(LEVEL / 2 / len(above))
