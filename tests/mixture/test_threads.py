"""Blocks in several threads: the same results, torch alone in each, and errors that end the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import scipy.sparse
import torch

from helpers.clusters import clustered, estimators, fitted_directions, given
from helpers.own_family import registered
from powerspherical.engines import block_limit
from powerspherical.families.power_spherical import PowerSphericalFamily
from powerspherical.mixture import mixture_named

X, _ = clustered(3000)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """torch's own number of threads stays what it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@estimators
@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_threads_change_nothing(estimator: type, container) -> None:
    """Not a bit: the order in which blocks are added does not depend on the number of threads."""
    found = []
    for threads in (3, 1, 3):
        torch.set_num_threads(threads)
        with block_limit(2000):
            found.append(estimator(3, random_state=0).fit(container(X)))
    for one in found[1:]:
        np.testing.assert_array_equal(fitted_directions(found[0]), fitted_directions(one))
        np.testing.assert_array_equal(found[0].predict(X), one.predict(X))


class WatchedFamily(PowerSphericalFamily):
    name, key = "watched", PowerSphericalFamily.key
    watch: Callable[[], None]

    def log_kernel(self, t, kappa, dim):
        self.watch()
        return super().log_kernel(t, kappa, dim)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_threads_work_side_by_side(error: type[BaseException] | None, monkeypatch) -> None:
    """torch uses one thread in each. An error ends the work of all."""
    together, seen = threading.Barrier(3, timeout=30), []

    def watch() -> None:
        seen.append(torch.get_num_threads())
        if len(seen) <= 3:
            together.wait()
        elif error is not None:
            raise error("no such block")

    family = registered(monkeypatch, WatchedFamily())
    family.watch = watch
    mixture = given(mixture_named(family.name), np.ones(3) / 3, X[:3], np.ones(3))
    with block_limit(110):  # 300 blocks of 10 rows
        if error is None:
            mixture.predict(X)
            assert seen == [1] * 300
        else:
            with pytest.raises(error, match="no such block"):
                mixture.predict(X)
            assert len(seen) < 100
