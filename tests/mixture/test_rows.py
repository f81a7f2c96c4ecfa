"""Every kind of rows gives the same fit, and results of its own kind."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest
import scipy.sparse
import torch

from helpers.clusters import clustered, estimators, fitted_directions, mixtures
from helpers.waiting import waiting
from powerspherical.families import family_named, family_names
from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans
from powerspherical.mixture._rows import (
    _NUMBERS_PER_BLOCK,
    ArrayRows,
    Block,
    SparseRows,
    TensorRows,
    block_size,
    products,
    unit_scale,
)
from powerspherical.mixture._spherical_kmeans import clusters_of
from powerspherical.mixture._spherical_mixture import Parameters, components_of, statistics_of_blocks

X, _ = clustered()
X[7] = 0.0
WEIGHT = np.random.default_rng(5).random(len(X))


def fit(estimator: type, x, weight=None, **options):
    return estimator(3, random_state=0, **options).fit(x, sample_weight=weight)


def outputs(fitted, x) -> list:
    members = (
        ["predict", "transform"] if isinstance(fitted, SphericalKMeans) else ["predict", "predict_proba"]
    )
    scores = [] if isinstance(fitted, SphericalKMeans) else [fitted.score_samples(x)]
    return [*(getattr(fitted, member)(x) for member in members), *scores]


class TestKinds:
    @estimators
    @pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
    @pytest.mark.parametrize(
        "container", [scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.coo_array]
    )
    def test_sparse(self, estimator: type, weight, container) -> None:
        dense = np.where(np.abs(X) > 0.3, X, 0.0)
        expected, found = fit(estimator, dense, weight), fit(estimator, container(dense), weight)
        np.testing.assert_allclose(fitted_directions(found), fitted_directions(expected), atol=1e-12)
        for one, other in zip(outputs(found, container(dense)), outputs(expected, dense), strict=True):
            assert isinstance(one, np.ndarray)
            np.testing.assert_allclose(one, other, atol=1e-7)  # a square root of a rounding, in transform

    @estimators
    def test_sparse_rows_are_not_made_dense(self, estimator: type, monkeypatch) -> None:
        """But for a few at a time, to start from: those of a text have a number in a thousand columns."""
        sizes: list[int] = []
        toarray = scipy.sparse.csr_array.toarray

        def counted(matrix) -> np.ndarray:
            sizes.append(math.prod(matrix.shape))
            return toarray(matrix)

        monkeypatch.setattr(scipy.sparse.csr_array, "toarray", counted)
        rng = np.random.default_rng(0)
        x = scipy.sparse.random_array((1000, 20_000), density=1e-3, format="csr", rng=rng)
        fitted = estimator(3, random_state=0, max_iter=3, tol=1e9).fit(x)
        outputs(fitted, x)
        assert max(sizes) <= 5 * 20_000

    @estimators
    def test_sparse_entries_that_are_to_be_added_up(self, estimator: type) -> None:
        columns = np.tile(np.arange(8), 2 * len(X))
        entries = np.stack([0.25 * X, 0.75 * X], axis=1).ravel()
        starts = np.arange(0, len(entries) + 1, 16)
        doubled = scipy.sparse.csr_array((entries, columns, starts), X.shape)
        found = fit(estimator, doubled)
        assert doubled.nnz == 2 * X.size, "the user's matrix stays as it was"
        np.testing.assert_allclose(fitted_directions(found), fitted_directions(fit(estimator, X)), atol=1e-9)

    @estimators
    @pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_tensors(self, estimator: type, weight, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        x = torch.from_numpy(X).to(device)
        expected, found = fit(estimator, X, weight), fit(estimator, x, weight)
        for name, value in vars(found).items():
            if name.endswith("_") and isinstance(getattr(expected, name), np.ndarray):
                assert value.device == x.device
                np.testing.assert_allclose(value.cpu(), getattr(expected, name), atol=1e-9)
        for one, other in zip(outputs(found, x), outputs(expected, X), strict=True):
            assert one.device == x.device
            np.testing.assert_allclose(one.cpu(), other, atol=1e-7)
        # and the other way round: what was fitted to tensors takes arrays, and gives arrays
        for one, other in zip(outputs(found, X), outputs(expected, X), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-7)

    @mixtures
    def test_draws_stay_where_the_rows_were(self, mixture: type) -> None:
        draws, labels = fit(mixture, torch.from_numpy(X).float()).sample(4)
        assert isinstance(draws, torch.Tensor)
        assert draws.dtype == torch.float32
        assert draws.shape == (4, 8)
        assert labels.shape == (4,)

    @estimators
    def test_float32(self, estimator: type) -> None:
        expected, found = fit(estimator, X), fit(estimator, X.astype(np.float32))
        assert fitted_directions(found).dtype == np.float32
        np.testing.assert_allclose(fitted_directions(found), fitted_directions(expected), atol=1e-4)
        assert all(value.dtype in (np.float32, np.int64) for value in outputs(found, X.astype(np.float32)))

    @estimators
    @pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, np.float16], ids=str)
    def test_half_precision_is_computed_in_float32(self, estimator: type, kind) -> None:
        if kind is np.float16:
            half = X.astype(kind)
            single = half.astype(np.float32)
        else:
            half = torch.from_numpy(X).to(kind)
            single = half.float()
        found, expected = fit(estimator, half), fit(estimator, single)
        assert fitted_directions(found).dtype == np.float32
        np.testing.assert_array_equal(fitted_directions(found), fitted_directions(expected))
        for one, other in zip(outputs(found, half), outputs(expected, single), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)

    @estimators
    def test_autocast_changes_nothing(self, estimator: type) -> None:
        x = X.astype(np.float32)
        expected = fit(estimator, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = fit(estimator, x)
            given = outputs(found, x)
        np.testing.assert_array_equal(fitted_directions(found), fitted_directions(expected))
        for one, other in zip(given, outputs(expected, x), strict=True):
            np.testing.assert_array_equal(one, other)

    @estimators
    @pytest.mark.parametrize("change", ["read-only", "Fortran order", "reversed", "integers"])
    def test_unusual_arrays(self, estimator: type, change: str) -> None:
        x = {
            "read-only": X.copy(),
            "Fortran order": np.asfortranarray(X),
            "reversed": X[::-1].copy()[::-1],
            "integers": np.round(100 * X).astype(int),
        }[change]
        x.flags.writeable = False
        expected = fit(estimator, np.ascontiguousarray(x, dtype=np.float64))
        np.testing.assert_array_equal(fitted_directions(fit(estimator, x)), fitted_directions(expected))
        weight = np.ones(len(x))
        weight.flags.writeable = False
        np.testing.assert_allclose(
            fitted_directions(fit(estimator, x, weight)), fitted_directions(expected), atol=1e-9
        )

    @estimators
    def test_one_row_read_backwards(self, estimator: type) -> None:
        """NumPy calls it contiguous, although its stride is negative."""
        fitted = fit(estimator, X)
        np.testing.assert_array_equal(fitted.predict(X[:1][::-1]), fitted.predict(X[:1]))


class TestLengths:
    @estimators
    @pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
    def test_only_directions_count(self, estimator: type, container) -> None:
        """Also where the squares of a row's numbers underflow or overflow."""
        lengths = 10.0 ** np.random.default_rng(0).uniform(-290, 290, size=(len(X), 1))
        first, second = fit(estimator, X), fit(estimator, container(lengths * X))
        np.testing.assert_allclose(fitted_directions(first), fitted_directions(second), atol=1e-9)
        for one, other in zip(outputs(first, X), outputs(second, container(lengths * X)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-7)

    def test_a_zero_row_is_at_right_angles_to_all(self) -> None:
        kmeans = fit(SphericalKMeans, X)
        np.testing.assert_allclose(kmeans.transform(X)[7], math.sqrt(2))
        mixture = fit(PowerSphericalMixture, X)
        np.testing.assert_allclose(mixture.predict_proba(X)[7], mixture.weights_, rtol=1e-12)

    @estimators
    @pytest.mark.parametrize("init", ["k-means++", "random"])
    @pytest.mark.parametrize("zeros", [slice(None, None, 3), slice(None)], ids=["a third", "all"])
    def test_a_zero_row_is_no_direction(self, estimator: type, init: str, zeros: slice) -> None:
        """Directions have length one, also where the start could have been at a row that has none."""
        x = X[:60].copy()
        x[zeros] = 0.0
        before = x.copy()
        for seed in range(5):
            fitted = estimator(5, init=init, n_init=1, random_state=seed, max_iter=500).fit(x)
            found = fitted_directions(fitted)
            np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-12)
        np.testing.assert_array_equal(x, before)

    def test_unit_rows_need_no_factors(self) -> None:
        unit = torch.nn.functional.normalize(torch.from_numpy(X)[:7], dim=1)
        assert unit_scale(unit) is None
        assert unit_scale(unit.float()) is None
        scale = unit_scale(torch.stack([2 * unit[0], 0 * unit[0], 1e-150 * unit[0]]))
        torch.testing.assert_close(scale, torch.tensor([0.5, 0.0, 1e150], dtype=torch.float64))

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (math.nan, "row 150000 of X has NaN or infinite values: drop or repair it"),
            (math.inf, "row 150000 of X has NaN or infinite values: drop or repair it"),
            (1.5e308, "the norm of row 150000 of X overflows float64: scale the row down"),
            (1e-310, "the norm of row 150000 of X, .*e-310, underflows float64: scale the row up"),
        ],
    )
    def test_rows_without_a_direction(self, bad: float, message: str) -> None:
        x = torch.ones(200_000, 3, dtype=torch.float64)  # several blocks
        x[150_000] = x[150_007] = bad
        with pytest.raises(ValueError, match=message):
            fit(SphericalKMeans, x)


class TestBlocks:
    @pytest.mark.parametrize("kind", ["dense", "sparse"])
    def test_memory_is_that_of_a_block(self, kind: str) -> None:
        """Blocks are no larger for more rows, and together they are all rows, in order."""
        for count in (20_000, 40_003):
            x = np.zeros((count, 16), np.float32)
            x[:, 0] = np.arange(count)
            rows = ArrayRows(x) if kind == "dense" else SparseRows(scipy.sparse.csr_array(x))
            sizes: list[int] = []

            def first_column(block: Block, sizes: list[int] = sizes) -> torch.Tensor:
                sizes.append(len(block.rows))
                return products(torch.eye(1, 16), block.rows)[0]

            np.testing.assert_array_equal(rows.each(first_column, 100), x[:, 0])
            most = block_size(rows.device, (16 if kind == "dense" else 1) + 100)
            assert most // 2 < max(sizes) <= most < 20_000

    def test_blocks_are_made_one_at_a_time(self, monkeypatch) -> None:
        """Those of half precision are copies, and a few are asked for at a time."""
        monkeypatch.setitem(_NUMBERS_PER_BLOCK, "cpu", 1)  # the smallest blocks, 512 rows
        made: list[weakref.ref] = []

        def count(blocks: Iterable[Block]) -> int:
            total = 0
            for block in blocks:
                made.append(weakref.ref(block.rows))
                assert sum(one() is not None for one in made) <= 2  # this and the one before
                total += len(block.rows)
            return total

        rows = TensorRows(torch.ones(20_000, 3, dtype=torch.bfloat16))
        rows.threaded = False
        assert rows.total(count, 3) == 20_000
        assert len(made) > 30

    @estimators
    def test_blocks_are_smaller_for_more_components(self, estimator: type, monkeypatch) -> None:
        """Whatever is asked of the rows, cosines with many directions do not outgrow a block."""
        sizes: list[int] = []
        cosines = Block.cosines

        def counted(block: Block, directions: torch.Tensor) -> torch.Tensor:
            sizes.append(len(block.rows) * len(directions))
            return cosines(block, directions)

        monkeypatch.setattr(Block, "cosines", counted)
        x = np.random.default_rng(0).normal(size=(5000, 2))
        fitted = estimator(300, init=x[:300], max_iter=1, tol=1e9).fit(x)
        outputs(fitted, x)
        fitted.score(x)
        assert max(sizes) <= _NUMBERS_PER_BLOCK["cpu"]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
    def test_the_host_does_not_wait_for_a_block(self, weight, monkeypatch) -> None:
        """All blocks of a pass are queued at once, however many there are."""
        monkeypatch.setitem(_NUMBERS_PER_BLOCK, "cuda", 1)  # the smallest blocks, 512 rows
        x, directions = torch.from_numpy(X).cuda().repeat(5, 1), torch.eye(8, dtype=torch.float64).cuda()[:3]
        rows = TensorRows(x, None if weight is None else torch.from_numpy(weight).repeat(5))
        parameters = Parameters(torch.zeros(3).double().cuda(), directions, torch.ones(3).double().cuda())
        for function in (
            *(
                partial(statistics_of_blocks, components_of(family_named(name), parameters, x.dtype))
                for name in family_names()
            ),
            partial(clusters_of, directions.to(x.dtype)),
        ):
            rows.total(function, 3)
            with waiting("error"):
                rows.total(function, 3)

    @estimators
    @pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
    def test_threads_change_nothing(self, estimator: type, container, monkeypatch) -> None:
        """Not a bit, and torch's own number of threads stays what it was."""
        monkeypatch.setitem(_NUMBERS_PER_BLOCK, "cpu", 1)  # the smallest blocks, 512 rows
        x, _ = clustered(9000)
        before = torch.get_num_threads()
        found = []
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                found.append(fit(estimator, container(x)))
                assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        np.testing.assert_array_equal(fitted_directions(found[0]), fitted_directions(found[1]))
        np.testing.assert_array_equal(found[0].predict(x), found[1].predict(x))

    def test_an_error_in_a_thread_is_raised(self, monkeypatch) -> None:
        monkeypatch.setitem(_NUMBERS_PER_BLOCK, "cpu", 1)
        before = torch.get_num_threads()

        def fail(block: Block) -> torch.Tensor:
            raise RuntimeError("no such block")

        torch.set_num_threads(2)
        try:
            with pytest.raises(RuntimeError, match="no such block"):
                ArrayRows(np.ones((9000, 3))).each(fail, 0)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)

    def test_arrays_are_not_copied(self) -> None:
        x = np.ones((10, 3))
        assert ArrayRows(x)._matrix(slice(0, 5)).data_ptr() == x.ctypes.data

    def test_some_rows(self) -> None:
        rows, weight = TensorRows(torch.from_numpy(X), torch.from_numpy(WEIGHT)).take(np.array([3, 1]))
        expected = torch.nn.functional.normalize(torch.from_numpy(X[[3, 1]]), dim=1)
        torch.testing.assert_close(rows, expected)
        torch.testing.assert_close(weight, torch.from_numpy(WEIGHT[[3, 1]]))


class TestArguments:
    @pytest.mark.parametrize(
        ("x", "weight", "message"),
        [
            (torch.ones(5), None, r"X must have the shape \(n, d\).*got \(5,\)"),
            (torch.ones(5, 1), None, r"X must have the shape \(n, d\).*d ≥ 2.*got \(5, 1\)"),
            (
                torch.eye(5).to_sparse(),
                None,
                r"X must be a dense tensor, got torch\.sparse_coo.*X\.to_dense\(\)",
            ),
            (torch.ones(5, 3, dtype=torch.int64), None, r"X must have a floating-point dtype.*X\.float\(\)"),
            (torch.ones(5, 3), torch.ones(4), r"sample_weight must have the shape \(5,\), got \(4,\)"),
            (torch.ones(5, 3), -torch.ones(5), r"sample_weight must be finite and ≥ 0"),
            (np.ones((5, 3)), -np.ones(5), r"sample_weight must be finite and ≥ 0"),
            (np.ones((5, 3)), [1, 1, math.inf, 1, 1], r"sample_weight must be finite and ≥ 0"),
            (np.ones((5, 3)), np.ones((5, 1)), r"sample_weight must have the shape \(5,\), got \(5, 1\)"),
        ],
        ids=[
            "vector",
            "d = 1",
            "sparse",
            "integers",
            "weights' shape",
            "negative",
            "negative, NumPy",
            "infinite",
            "a column",
        ],
    )
    def test_refused(self, x, weight, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            PowerSphericalMixture(2).fit(x, sample_weight=weight)

    @estimators
    @pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, scipy.sparse.csr_array])
    @pytest.mark.parametrize("init", ["k-means++", "random"])
    def test_no_weight_at_all(self, estimator: type, kind, init: str) -> None:
        with pytest.raises(ValueError, match="sample_weight must have a positive sum"):
            fit(estimator, kind(X), np.zeros(len(X)), init=init)
        with pytest.raises(ValueError, match="sample_weight must have a positive sum"):
            fit(estimator, X).score(kind(X), sample_weight=np.zeros(len(X)))

    def test_another_number_of_columns(self) -> None:
        fitted = fit(PowerSphericalMixture, torch.from_numpy(X))
        with pytest.raises(
            ValueError, match="X has 3 features, but PowerSphericalMixture is expecting 8 features"
        ):
            fitted.predict(torch.ones(2, 3))
