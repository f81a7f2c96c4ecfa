"""The runs of the table: the plan, and single runs."""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from powerspherical.nn import CheckpointError, load_checkpoint
from powerspherical_paper import claims
from powerspherical_paper.autoencoder import datasets, runs
from powerspherical_paper.autoencoder.runs import Run, Setting, do, do_all, plan, trained
from powerspherical_paper.autoencoder.training import Protocol

MNIST = 60_000
ONE = Protocol(epochs=1)


@pytest.fixture
def images():
    digits = datasets.load("digits")
    return digits._replace(train=digits.train[:200], test=digits.test[:20])


@pytest.fixture
def scored(monkeypatch):
    """Record what would be scored, without scoring it."""
    seen = []

    def score(model, bits, **given):
        seen.append((model, bits, given))
        return claims.Score(-20.0, -21.0)

    monkeypatch.setattr(runs, "score", score)
    return seen


def done(run, folder, images):
    return do(run, Setting(folder, "digits", samples=5), images, lambda fraction: None)


class TestPlan:
    runs = plan(range(3), MNIST, quick=False)

    def test_the_table_comes_first(self):
        plain = [
            Run(posterior, dim, seed)
            for seed in range(3)
            for dim in (5, 10, 20, 40)
            for posterior in ("power_spherical", "von_mises_fisher", "spherical_cauchy", "gaussian")
        ]
        assert self.runs[: len(plain)] == plain
        assert self.runs[0].protocol == Protocol(
            "paper", epochs=100, batch=64, learning_rate=1e-3, cosine=False, draws=1, validation=0
        )

    def test_the_other_runs(self):
        options = [run for run in self.runs if run.prior != "uniform" or run.factors is not None]
        assert options == [
            Run("power_spherical", 10, 0, prior="von_mises_fisher"),
            Run("power_spherical", 3, 0, factors=5),
        ]
        counts = Counter(run.protocol for run in self.runs)
        parts = ({"validation": 5000}, {"cosine": True}, {"draws": 4})
        names = ("early stopping", "falling rate", "four draws")
        assert counts == {
            Protocol(): 48 + 2,
            Protocol("tuned", cosine=True, draws=4, validation=5000): 24,
            **{Protocol(name, **part): 4 for name, part in zip(names, parts, strict=True)},
        }

    @pytest.mark.parametrize("quick", [False, True])
    def test_names_are_distinct_and_plain(self, quick):
        names = [run.name for run in plan(range(4, 6), MNIST, quick=quick)]
        assert len(set(names)) == len(names)
        assert all(name.replace("-", "").replace("_", "").isalnum() for name in names)

    def test_quick_and_small(self):
        """The digits are too few to hold out 5,000."""
        runs = plan([7], 1437, quick=True)
        assert {run.seed for run in runs} == {7}
        assert {run.dim for run in runs if run.factors is None} == {5, 10}
        assert {run.protocol.name for run in runs} == {"paper", "tuned"}
        assert all(run.protocol.epochs < 100 for run in runs)
        assert {run.protocol.validation for run in plan([0], 1437, quick=False)} == {0, 1437 // 6}


def test_progress_goes_by_the_work(tmp_path, images, monkeypatch):
    """A vMF posterior counts for two of three parts of the work."""

    def half_done(run, setting, images, progress):
        progress(0.5)
        return []

    monkeypatch.setattr(runs, "do", half_done)
    fractions = []
    two = [Run("gaussian", 5, 0), Run("von_mises_fisher", 5, 0)]
    list(do_all(two, Setting(tmp_path, "digits"), images, jobs=1, progress=fractions.append))
    assert fractions == pytest.approx([1 / 6, 2 / 3])


def test_jobs_share_the_threads_of_this_process(tmp_path, images, monkeypatch):
    pools = []
    monkeypatch.setattr(runs, "ProcessPoolExecutor", lambda *given: nullcontext(pools.append(given)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    for jobs in (2, 8):
        list(do_all([], Setting(tmp_path, "digits"), images, jobs=jobs, progress=lambda fraction: None))
    assert [threads for *_, (threads, _) in pools] == [2, 1]


class TestRun:
    def test_the_closest_distribution_is_scored_beside_the_one_that_was_trained(
        self, tmp_path, images, scored
    ):
        rows = done(Run("power_spherical", 10, 0, ONE), tmp_path, images)
        assert [row["proposal"] for row in rows] == [None, "closest_von_mises_fisher"]
        names = [type(model.encode(bits)).__name__ for model, bits, _ in scored]
        assert names == ["PowerSpherical", "VonMisesFisher"]

    @pytest.mark.parametrize(
        "run",
        [
            Run("power_spherical", 5, 0, ONE),
            Run("von_mises_fisher", 10, 0, ONE),
            Run("power_spherical", 10, 0, replace(ONE, name="tuned")),
            Run("power_spherical", 10, 0, ONE, prior="von_mises_fisher"),
        ],
        ids=lambda run: run.name,
    )
    def test_elsewhere_it_is_not(self, run, tmp_path, images, scored):
        assert len(done(run, tmp_path, images)) == len(scored) == 1

    def test_all_are_scored_on_the_same_bits(self, tmp_path, images, scored):
        for seed, posterior in enumerate(("gaussian", "von_mises_fisher")):
            done(Run(posterior, 5, seed, ONE), tmp_path, images)
        (_, first, _), (_, second, _) = scored
        assert torch.equal(first, second)
        assert first.shape == (20, 64)
        assert first.unique().tolist() == [0, 1]

    def test_the_row_is_of_the_epoch_that_was_kept(self, tmp_path, images, scored):
        """With a rate at which the ELBO falls again."""
        run = Run("power_spherical", 5, 0, Protocol("tuned", epochs=6, learning_rate=0.05, validation=50))
        (row,) = done(run, tmp_path, images)
        content = load_checkpoint(tmp_path / f"{run.name}.safetensors")
        assert row["epochs"] == content["best"]["epoch"] < 6
        kept = trained(run, Setting(tmp_path, "digits"), images)
        ((model, _, _),) = scored
        torch.testing.assert_close(kept.state_dict(), model.state_dict(), rtol=0, atol=0)
        torch.testing.assert_close(kept.state_dict(), content["best"]["model"], rtol=0, atol=0)

    def test_a_model_that_was_trained_comes_back(self, tmp_path, images, scored):
        run = Run("power_spherical", 3, 0, ONE, prior="von_mises_fisher", factors=2)
        done(run, tmp_path, images)
        ((model, bits, _),) = scored
        kept = trained(run, Setting(tmp_path, "digits"), images)
        assert torch.equal(kept.reconstruct(bits), model.reconstruct(bits))

    def test_rows_of_other_images_are_not_taken(self, tmp_path, images, scored):
        """New test images are scored. New training images conflict with the checkpoint and are refused."""
        run = Run("gaussian", 5, 0, ONE)
        done(run, tmp_path, images)
        done(run, tmp_path, images._replace(test=images.test[:10]))
        assert [len(bits) for _, bits, _ in scored] == [20, 10]
        with pytest.raises(CheckpointError, match="made with images 200, not 100; delete it"):
            done(run, tmp_path, images._replace(train=images.train[:100]))

    def test_the_file_says_what_it_is_of(self, tmp_path, images, scored):
        run = Run("power_spherical", 3, 1, ONE, factors=2)
        rows = done(run, tmp_path, images)
        content = json.loads((tmp_path / f"{run.name}.json").read_text(encoding="utf-8"))
        assert run.name == "power_spherical-d3-x2-paper-seed1"
        assert content["rows"] == rows
        assert content["measured"] == {"samples": 5, "test_images": 20}
        identity = content["identity"]
        assert (identity["data"], identity["images"]) == ("digits", 200)
        assert identity["protocol"]["epochs"] == 1
