"""The plan of the table: which trainings it has. `test_vae` does some of them."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch

from powerspherical_paper.autoencoder import runs
from powerspherical_paper.autoencoder.datasets import Images
from powerspherical_paper.autoencoder.runs import Run, Setting, do_all, named, plan
from powerspherical_paper.autoencoder.training import Protocol

MNIST = 60_000
RUNS = plan(range(3), MNIST, quick=False)


def test_the_table_comes_first():
    plain = [
        Run(posterior, dim, seed)
        for seed in range(3)
        for dim in (5, 10, 20, 40)
        for posterior in ("power_spherical", "von_mises_fisher", "spherical_cauchy", "gaussian")
    ]
    assert RUNS[: len(plain)] == plain
    assert RUNS[0].protocol == Protocol(
        "paper", epochs=100, batch=64, learning_rate=1e-3, cosine=False, draws=1, validation=0
    )


def test_the_other_runs():
    assert [run for run in RUNS if run.prior != "uniform" or run.factors is not None] == [
        Run("power_spherical", 10, 0, prior="von_mises_fisher"),
        Run("power_spherical", 3, 0, factors=5),
    ]
    parts = ({"validation": 5000}, {"cosine": True}, {"draws": 4})
    names = ("early stopping", "falling rate", "four draws")
    assert Counter(run.protocol for run in RUNS) == {
        Protocol(): 48 + 2,
        Protocol("tuned", cosine=True, draws=4, validation=5000): 24,
        **{Protocol(name, **part): 4 for name, part in zip(names, parts, strict=True)},
    }


def test_quick_and_small():
    """The digits are too few to hold out 5,000."""
    quick = plan([7], 1437, quick=True)
    assert {run.seed for run in quick} == {7}
    assert {run.dim for run in quick if run.factors is None} == {5, 10}
    assert {run.protocol.name for run in quick} == {"paper", "tuned"}
    assert all(run.protocol.epochs < 100 for run in quick)
    assert {run.protocol.validation for run in plan([0], 1437, quick=False)} == {0, 1437 // 6}


@pytest.mark.parametrize("quick", [False, True])
def test_names_are_distinct_and_plain(quick):
    names = [run.name for run in plan(range(4, 6), MNIST, quick=quick)]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)
    settings = [{"images": 3, "dim": 5}, {"dim": 5, "images": 3}, {"images": 4, "dim": 5}]
    first, again, other = (named(RUNS[0], one) for one in settings)
    assert first == again != other
    assert first.startswith(f"{RUNS[0].name}-")


def test_progress_goes_by_the_work(tmp_path, monkeypatch):
    """A vMF posterior counts for two of three parts of the work."""
    monkeypatch.setattr(runs, "do", lambda run, setting, images, progress: progress(0.5))
    images, fractions = Images("digits", torch.zeros(1, 4), torch.zeros(1, 4)), []
    two = [Run("gaussian", 5, 0), Run("von_mises_fisher", 5, 0)]
    list(do_all(two, Setting(tmp_path, "digits"), images, jobs=1, progress=fractions.append))
    assert fractions == pytest.approx([1 / 6, 2 / 3])


def test_jobs_share_the_threads_of_this_process(tmp_path, monkeypatch):
    pools, none = [], Images("digits", torch.zeros(1, 4), torch.zeros(1, 4))
    monkeypatch.setattr(runs, "ProcessPoolExecutor", lambda *given: nullcontext(pools.append(given)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    for jobs in (2, 8):
        list(do_all([], Setting(tmp_path, "digits"), none, jobs=jobs, progress=lambda fraction: None))
    assert [threads for *_, (threads,) in pools] == [2, 1]
