"""Every kind of rows gives the same fit, and results of its own kind, block by block."""

from __future__ import annotations

import math
import tracemalloc
import warnings
import weakref

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import torch
from torch.overrides import TorchFunctionMode

from helpers.clusters import clustered, estimators, fitted_directions, given, mixtures
from helpers.own_family import registered
from helpers.waiting import waiting
from powerspherical.engines import block_limit
from powerspherical.families.power_spherical import PowerSphericalFamily
from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans, mixture_named

X, _ = clustered()
X[7] = 0.0
WEIGHT = np.random.default_rng(5).random(len(X))
CHUNKS = ((0, 400, 200), 8)
KINDS = {
    "NumPy": np.asarray,
    "sparse": scipy.sparse.csr_array,
    "torch": torch.as_tensor,
    "Dask": da.from_array,
}
MORE_KINDS = KINDS | {
    "sparse matrix": scipy.sparse.csr_matrix,
    "COO": scipy.sparse.coo_array,
    "CUDA": lambda x: torch.as_tensor(x).cuda(),
    "Dask, an empty block": lambda x: da.from_array(x, chunks=CHUNKS),
    "Dask, blocks of columns": lambda x: da.from_array(x, chunks=(100, 3)),
    "Dask, sparse": lambda x: da.from_array(x, chunks=CHUNKS).map_blocks(scipy.sparse.csr_array),
    "Dask, COO matrix": lambda x: da.from_array(x, chunks=CHUNKS).map_blocks(scipy.sparse.coo_matrix),
}

kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
more_kinds = pytest.mark.parametrize("kind", MORE_KINDS.values(), ids=MORE_KINDS)
weights = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])


def fit(estimator: type, x, weight=None, **options):
    return estimator(3, random_state=0, **options).fit(x, sample_weight=weight)


def outputs(fitted, x) -> list:
    scores = [] if isinstance(fitted, SphericalKMeans) else [fitted.score_samples(x)]
    return [fitted.predict(x), fitted.transform(x), *scores]


def array(value) -> np.ndarray:
    """Return an array of any kind as one of NumPy."""
    return np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)


def assert_same(found: list, expected: list, atol: float = 0.0) -> None:
    """Equal shapes, dtypes (also of lazy arrays, before they are computed) and values."""
    for one, other in zip(found, expected, strict=True):
        assert tuple(one.shape) == tuple(other.shape)
        assert str(one.dtype).removeprefix("torch.") == str(other.dtype).removeprefix("torch.")
        np.testing.assert_allclose(array(one), array(other), atol=atol, rtol=0)


class TestKinds:
    @estimators
    @weights
    @more_kinds
    def test_the_fit_is_that_of_an_array(self, estimator: type, weight, kind) -> None:
        if kind is MORE_KINDS["CUDA"] and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        dense = np.where(np.abs(X) > 0.3, X, 0.0)
        x, expected = kind(dense), fit(estimator, dense, weight)
        with block_limit(300):
            found = fit(estimator, x, weight)
        for name, value in vars(expected).items():
            if name.endswith("_") and isinstance(value, np.ndarray | float | int):
                other = getattr(found, name)
                np.testing.assert_allclose(array(other), value, rtol=1e-9, atol=1e-9, err_msg=name)
                if isinstance(value, np.ndarray) and isinstance(x, torch.Tensor):
                    assert other.device == x.device
        expected_outputs = outputs(expected, dense)
        given = outputs(found, x)
        result = type(x) if isinstance(x, da.Array | torch.Tensor) else np.ndarray
        assert {type(one) for one in given} == {result}
        if result is torch.Tensor:
            assert {one.device for one in given} == {x.device}
        assert_same(given, expected_outputs, atol=1e-7)  # a square root of a rounding, in transform
        # Whatever it was fitted to, it takes arrays, and returns arrays.
        given = outputs(found, dense)
        assert {type(one) for one in given} == {np.ndarray}
        assert_same(given, expected_outputs, atol=1e-7)

    @estimators
    def test_sparse_rows_are_not_made_dense(self, estimator: type, monkeypatch) -> None:
        """Except for a few to start from: a row of text has a nonzero in one of a thousand columns."""
        sizes: list[int] = []
        toarray = scipy.sparse.csr_array.toarray

        def counted(matrix) -> np.ndarray:
            sizes.append(math.prod(matrix.shape))
            return toarray(matrix)

        monkeypatch.setattr(scipy.sparse.csr_array, "toarray", counted)
        rng = np.random.default_rng(0)
        x = scipy.sparse.random_array((1000, 20_000), density=1e-3, format="csr", rng=rng)
        outputs(estimator(3, random_state=0, max_iter=3, tol=1e9).fit(x), x)
        assert max(sizes) <= 5 * 20_000

    @estimators
    def test_sparse_entries_that_are_to_be_added_up(self, estimator: type) -> None:
        columns = np.tile(np.arange(8), 2 * len(X))
        entries = np.stack([0.25 * X, 0.75 * X], axis=1).ravel()
        doubled = scipy.sparse.csr_array((entries, columns, np.arange(0, len(entries) + 1, 16)), X.shape)
        found = fit(estimator, doubled)
        assert doubled.nnz == 2 * X.size, "the user's matrix stays as it was"
        np.testing.assert_allclose(fitted_directions(found), fitted_directions(fit(estimator, X)), atol=1e-9)

    @mixtures
    def test_draws_stay_where_the_rows_were(self, mixture: type) -> None:
        draws, labels = fit(mixture, torch.from_numpy(X).float()).sample(4)
        assert isinstance(draws, torch.Tensor)
        assert (draws.dtype, draws.shape, labels.shape) == (torch.float32, (4, 8), (4,))

    @estimators
    def test_float32(self, estimator: type) -> None:
        x = X.astype(np.float32)
        expected, found = fit(estimator, X), fit(estimator, x)
        assert fitted_directions(found).dtype == np.float32
        np.testing.assert_allclose(fitted_directions(found), fitted_directions(expected), atol=1e-4)
        assert all(value.dtype in (np.float32, np.int64) for value in outputs(found, x))
        assert_same(outputs(found, da.from_array(x, chunks=CHUNKS)), outputs(found, x), atol=1e-3)

    @estimators
    @pytest.mark.parametrize(
        ("kind", "dtype", "computed"),
        [
            (torch.from_numpy, torch.bfloat16, torch.float32),
            (np.asarray, np.float16, np.float32),
            (da.from_array, np.float16, np.float32),
            *((np.asarray, dtype, np.float64) for dtype in (np.int64, np.uint16, bool)),
        ],
        ids=["bfloat16", "float16", "Dask of float16", "int64", "uint16", "bool"],
    )
    def test_other_dtypes(self, estimator: type, kind, dtype, computed) -> None:
        """Half precision is computed in float32, integers in float64."""
        x = kind(X if computed in (np.float32, torch.float32) else np.abs(np.round(40 * X)))
        x, converted = (
            (x.to(dtype), x.to(dtype).to(computed))
            if isinstance(x, torch.Tensor)
            else (x.astype(dtype), x.astype(dtype).astype(computed))
        )
        found, expected = fit(estimator, x), fit(estimator, converted)
        assert_same([fitted_directions(found)], [fitted_directions(expected)])
        assert_same(outputs(found, x), outputs(expected, converted))

    @estimators
    def test_autocast_changes_nothing(self, estimator: type) -> None:
        x = X.astype(np.float32)
        expected = fit(estimator, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = fit(estimator, x)
            given = outputs(found, x)
        np.testing.assert_array_equal(fitted_directions(found), fitted_directions(expected))
        assert_same(given, outputs(expected, x))

    @estimators
    def test_unusual_arrays(self, estimator: type) -> None:
        x, weight = X.copy(), np.ones(len(X))
        x.flags.writeable = weight.flags.writeable = False
        expected = fit(estimator, X)
        for one in (x, np.asfortranarray(X), X[::-1].copy()[::-1], X.astype(">f8"), X.tolist()):
            np.testing.assert_array_equal(fitted_directions(fit(estimator, one)), fitted_directions(expected))
        found = fit(estimator, x, weight)
        np.testing.assert_allclose(fitted_directions(found), fitted_directions(expected), atol=1e-9)
        # NumPy calls one row that is read backwards contiguous, although its stride is negative.
        np.testing.assert_array_equal(expected.predict(X[:1][::-1]), expected.predict(X[:1]))


class TestLengths:
    @estimators
    @kinds
    def test_only_directions_count(self, estimator: type, kind) -> None:
        """Also where the squares of a row's numbers underflow or overflow, and where the row is a start."""
        lengths = 10.0 ** np.random.default_rng(0).uniform(-290, 290, size=(len(X), 1))
        lengths[1:4, 0] = 1e-170, 1e200, 1e-250
        first, second = fit(estimator, X), fit(estimator, kind(lengths * X))
        np.testing.assert_allclose(fitted_directions(first), fitted_directions(second), atol=1e-9)
        assert_same([np.asarray(one) for one in outputs(second, kind(lengths * X))], outputs(first, X), 1e-7)
        first, second = fit(estimator, X, init=X[1:4]), fit(estimator, X, init=(lengths * X)[1:4])
        np.testing.assert_allclose(fitted_directions(first), fitted_directions(second), atol=1e-9)

    def test_a_zero_row_is_at_right_angles_to_all(self) -> None:
        np.testing.assert_allclose(fit(SphericalKMeans, X).transform(X)[7], math.sqrt(2))
        mixture = fit(PowerSphericalMixture, X)
        np.testing.assert_allclose(mixture.predict_proba(X)[7], mixture.weights_, rtol=1e-12)

    @estimators
    @pytest.mark.parametrize("init", ["k-means++", "random"])
    @pytest.mark.parametrize("zeros", [slice(None, None, 3), slice(None)], ids=["a third", "all"])
    def test_a_zero_row_is_no_direction(self, estimator: type, init: str, zeros: slice) -> None:
        """Fitted directions have length one, although the start could have been at a row of zeros."""
        x = X[:60].copy()
        x[zeros] = 0.0
        before = x.copy()
        for seed in range(5):
            found = estimator(5, init=init, n_init=1, random_state=seed, max_iter=500).fit(x)
            np.testing.assert_allclose(np.linalg.norm(fitted_directions(found), axis=1), 1, rtol=1e-12)
        np.testing.assert_array_equal(x, before)

    @kinds
    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (math.nan, "row 150 of X has NaN or infinite values: drop or repair it"),
            (math.inf, "row 150 of X has NaN or infinite values: drop or repair it"),
            (1.5e308, "the norm of row 150 of X overflows float64: scale the row down"),
            (1e-310, "the norm of row 150 of X, .*e-310, underflows float64: scale the row up"),
        ],
    )
    def test_rows_without_a_direction(self, kind, bad: float, message: str) -> None:
        x = np.ones((200, 3))
        fitted = PowerSphericalMixture(init=X[1:2, :3]).fit(x)
        x[150] = x[157] = bad
        with block_limit(60):  # several blocks
            for call in (fit(SphericalKMeans, np.eye(3)).fit, fitted.score, fitted.predict):
                with pytest.raises(ValueError, match=message):
                    np.asarray(call(kind(x)))
        with pytest.raises(ValueError, match=message.replace("150 of X", "0 of init")):
            PowerSphericalMixture(init=x[150:151]).fit(x[:150])


class TestWeights:
    @estimators
    @kinds
    @pytest.mark.parametrize(
        ("dtype", "exponent"),
        [(np.float32, 123), (np.float32, -160), (np.float64, 1020), (np.float64, -1070)],
    )
    def test_their_scale_does_not_matter(self, estimator: type, kind, dtype: type, exponent: int) -> None:
        """Sums of the weights as they are would overflow or vanish. A power of two changes no bit."""
        x, weight = X.astype(dtype), np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
        scale = 2.0**exponent
        expected, found = fit(estimator, kind(x), weight), fit(estimator, kind(x), scale * weight)
        np.testing.assert_array_equal(fitted_directions(found), fitted_directions(expected))
        score, factor = expected.score(kind(x), sample_weight=weight), 1.0
        if estimator is SphericalKMeans:
            factor = scale
            assert found.inertia_ == scale * expected.inertia_
        assert found.score(kind(x), sample_weight=scale * weight) == pytest.approx(factor * score, rel=1e-12)

    @estimators
    def test_a_weight_may_be_far_smaller_than_another(self, estimator: type) -> None:
        first = np.arange(len(X)) < 300
        found = fit(estimator, X.astype(np.float32), np.where(first, 2.0**166, 2.0**-166))
        expected = fit(estimator, X.astype(np.float32), first)
        np.testing.assert_array_equal(fitted_directions(found), fitted_directions(expected))

    @kinds
    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            (np.ones(4), r"sample_weight must have the shape \(5,\), got \(4,\)"),
            (np.ones((5, 1)), r"sample_weight must have the shape \(5,\), got \(5, 1\)"),
            (-np.ones(5), r"sample_weight must be finite and ≥ 0, got -1"),
            (np.array([1, 1, math.inf, 1, 1]), r"sample_weight must be finite and ≥ 0, got inf"),
            (np.array([1, 1, math.nan, 1, 1]), r"sample_weight must be finite and ≥ 0, got nan"),
            (np.zeros(5), "sample_weight must have a positive sum"),
        ],
        ids=["shape", "column", "negative", "infinite", "NaN", "none at all"],
    )
    def test_refused(self, kind, weight, message: str) -> None:
        x = np.arange(15.0).reshape(5, 3)
        for estimator in (PowerSphericalMixture(2, init=x[:2]), SphericalKMeans(2, init=x[:2])):
            for call in (estimator.fit, estimator.fit(x).score):
                with pytest.raises(ValueError, match=message):
                    call(kind(x), sample_weight=weight)


class LiveMemory(TorchFunctionMode):
    """Records the largest size of all tensors together that torch's functions return outside of an array's memory."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        self.start = array.ctypes.data
        self.end, self.live, self.peak = self.start + array.nbytes, [], 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not self.start <= result.data_ptr() < self.end:
            self.live = [one for one in self.live if one() is not None] + [weakref.ref(result)]
            sizes = {one.data_ptr(): one.nbytes for one in (ref() for ref in self.live) if one is not None}
            self.peak = max(self.peak, sum(sizes.values()))
        return result


class TestBlocks:
    @pytest.mark.parametrize("estimator", [PowerSphericalMixture, SphericalKMeans])
    @pytest.mark.parametrize(
        ("dtype", "order"), [("f8", "F"), ("f4", "C"), ("f2", "C"), ("i8", "F"), ("u1", "C")]
    )
    def test_an_array_is_not_copied(self, estimator: type, dtype: str, order: str) -> None:
        """Neither by NumPy nor by torch, which sees one converted block at a time."""
        rng = np.random.default_rng(0)
        x = np.asarray(rng.integers(0, 100, size=(2000, 100)), dtype, order=order)
        unfitted = estimator(2, init=rng.random((2, 100)), max_iter=2, tol=1e9)
        whole = x.size * np.dtype(np.float32).itemsize
        with block_limit(4000):
            fitted = unfitted.fit(x)  # what torch and scikit-learn allocate once
            for call in (unfitted.fit, fitted.predict, fitted.transform, fitted.score):
                tracemalloc.start()
                with LiveMemory(x) as torch_memory:
                    call(x)
                _, numpy_peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert torch_memory.peak + numpy_peak < whole / 2

    def test_they_are_smaller_for_more_components(self, monkeypatch) -> None:
        """Cosines with many directions do not outgrow a block, whatever is asked of the rows."""
        sizes: list[int] = []

        class CountingFamily(PowerSphericalFamily):
            name, key = "counting", PowerSphericalFamily.key

            def log_kernel(self, t, kappa, dim):
                sizes.append(t.minus.numel())
                return super().log_kernel(t, kappa, dim)

        mixture = mixture_named(registered(monkeypatch, CountingFamily()).name)
        x = np.random.default_rng(0).normal(size=(5000, 2))
        few, many = (given(mixture, np.ones(k) / k, x[:k], np.ones(k)) for k in (3, 300))
        with block_limit(6000):
            for fitted in (few, many):
                sizes.clear()
                outputs(fitted, x)
                fitted.score(x)
                assert 3000 < max(sizes) <= 6000

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @estimators
    @weights
    def test_the_host_does_not_wait_for_a_block(self, estimator: type, weight) -> None:
        """All blocks of a pass are queued at once: ten times the blocks cause no more host syncs in a step."""
        x, syncs = torch.from_numpy(X).cuda(), []
        for limit in (len(X) * 11, len(X) * 11 // 10):
            counts = []
            for steps in (2, 3):
                unfitted = estimator(3, init=X[:3], max_iter=steps, tol=0.0)
                with block_limit(limit), warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    with waiting("warn"):
                        unfitted.fit(x, sample_weight=weight)
                counts.append(sum("synchron" in str(one.message) for one in caught))
            syncs.append(counts[1] - counts[0])
        assert 0 < syncs[0] == syncs[1]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(5), r"X must have the shape \(n, d\).*got \(5,\)"),
        (torch.ones(5, 1), r"X must have the shape \(n, d\).*d ≥ 2.*got \(5, 1\)"),
        (torch.eye(5).to_sparse(), r"X must be a dense tensor, got torch\.sparse_coo.*X\.to_dense\(\)"),
        (torch.ones(5, 3, dtype=torch.int64), r"X must have a floating-point dtype.*X\.float\(\)"),
        (da.ones((20, 3), dtype=int), r"Dask array of float32 or float64, got int64.*astype"),
        (da.ones((20, 1)), r"X must have the shape \(n, d\)"),
        (da.ones((1, 3)), "n_samples=1 should be >= n_c"),
        (np.ones((1, 3)), "n_samples=1 should be >= n_c"),
    ],
    ids=[
        *("vector", "d = 1", "sparse tensor", "tensor of integers"),
        *("Dask of integers", "Dask, d = 1", "Dask, few rows", "few rows"),
    ],
)
@pytest.mark.parametrize("estimator", [PowerSphericalMixture, SphericalKMeans])
def test_refused(estimator: type, x, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimator(2).fit(x)


def test_another_number_of_columns() -> None:
    fitted = fit(PowerSphericalMixture, torch.from_numpy(X))
    message = "X has 3 features, but PowerSphericalMixture is expecting 8 features"
    with pytest.raises(ValueError, match=message):
        fitted.predict(torch.ones(2, 3))
