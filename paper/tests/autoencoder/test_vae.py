"""The auto-encoder experiment as a whole: its output, resumption, and checks against the paper."""

import json
import shutil

import pytest
import torch

from powerspherical.nn import load_checkpoint
from powerspherical_paper import claims
from powerspherical_paper.autoencoder import datasets, runs, training_time, vae
from powerspherical_paper.autoencoder.runs import Run
from powerspherical_paper.autoencoder.training import Protocol, TrainingError
from powerspherical_paper.report.page import read
from powerspherical_paper.results import Outcome, Task
from results_of import vae_row

ONE = Protocol(epochs=1)
BEST = Protocol("tuned", epochs=3, learning_rate=0.05, cosine=False, draws=2, validation=100)
RUNS = [
    Run("von_mises_fisher", 5, 0, ONE),
    Run("power_spherical", 10, 0, ONE),
    Run("gaussian", 5, 0, ONE),
    Run("power_spherical", 3, 0, ONE, factors=2),
    Run("power_spherical", 10, 0, ONE, prior="von_mises_fisher"),
    Run("power_spherical", 5, 1, BEST),
]
LOAD = datasets.load
slow = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _small():
    """One thread, because the last bits may depend on it. Nothing is timed. Only 60 images test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def few(name, folder=None):
        digits = LOAD("digits")
        return datasets.Images(name, digits.train, digits.test[:60])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_time, "run", lambda *_: Outcome([]))
        patch.setattr(datasets, "load", few)
        patch.setenv("OMP_NUM_THREADS", "1")  # in the processes of `jobs`
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def done(_small, tmp_path_factory):
    """A folder in which all of `RUNS` are done, its outcome, and the fractions that were told meanwhile."""
    folder, fractions = tmp_path_factory.mktemp("vae") / "done", []
    return folder, made(folder, progress=fractions.append), fractions


@pytest.fixture
def copy(done, tmp_path):
    """A copy of this folder, without its results."""
    folder = shutil.copytree(done[0], tmp_path / "copy")
    (folder / "vae.json").unlink()
    return folder


def made(out, planned=RUNS, *, seed=4, quick=False, data="digits", progress=lambda _: None, **options):
    task = Task("vae", out, seed, quick, "cpu", {"data": data, "seeds": 2}, progress)
    return vae.run(task, **{"samples": 5, **options}, runs=planned)


def document(out):
    return json.loads((out / "vae.json").read_text(encoding="utf-8"))


def timeless(out):
    return [
        {key: value for key, value in row.items() if key != "train_seconds"}
        for row in document(out)["results"]
    ]


@pytest.fixture
def counted(monkeypatch):
    """Count the trainings and the scorings."""
    seen = []
    for name in ("train", "score"):
        original = getattr(runs, name)
        monkeypatch.setattr(runs, name, lambda *a, n=name, f=original, **k: seen.append(n) or f(*a, **k))
    return seen


class TestResults:
    def test_files(self, done):
        folder, outcome, fractions = done
        assert [path.name for path in outcome.files] == ["vae.png", "vae.json"]
        assert outcome.passed
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1 - vae.TRAINING_TIME_SHARE)  # the rest is for the timing
        endings = sorted(path.suffix for path in (folder / "vae").iterdir())
        assert endings == [".json"] * len(RUNS) + [".safetensors"] * len(RUNS)
        found = document(folder)
        assert found["command"] == "powerspherical reproduce vae --seed 4 --data digits --seeds 2"
        expected = {"data": "digits", "samples": 5, "runs": 6, "train_images": 1437, "test_images": 60}
        assert expected.items() <= found["configuration"].items()
        assert found["configuration"]["protocols"]["paper"]["epochs"] == 1
        assert len(read(folder / "vae.json").finding.tables[1].rows) == 7

    def test_rows(self, done):
        """The closest distribution is scored beside a trained one once, for d = 10 in the paper's setting."""
        rows = document(done[0])["results"]
        keys = ("protocol", "posterior", "dim", "seed", "prior", "factors", "proposal")
        assert [tuple(row[key] for key in keys) for row in rows] == [
            ("paper", "gaussian", 5, 0, "standard_normal", None, None),
            ("paper", "power_spherical", 3, 0, "uniform", 2, None),
            ("paper", "power_spherical", 10, 0, "uniform", None, None),
            ("paper", "power_spherical", 10, 0, "uniform", None, "closest_von_mises_fisher"),
            ("paper", "power_spherical", 10, 0, "von_mises_fisher", None, None),
            ("paper", "von_mises_fisher", 5, 0, "uniform", None, None),
            ("tuned", "power_spherical", 5, 1, "uniform", None, None),
        ]
        for row in rows:
            assert -80 < row["elbo"] < row["log_likelihood"] < -15  # 64 fair coins have -44
            assert -80 < row["train_elbo"] < -15
            assert row["train_seconds"] > 0

    def test_the_row_is_of_the_epoch_that_was_kept(self, done):
        """At a rate at which the ELBO falls again."""
        (path,) = (done[0] / "vae").glob(f"{RUNS[-1].name}-*.safetensors")
        (row,) = (row for row in document(done[0])["results"] if row["protocol"] == "tuned")
        assert row["epochs"] == load_checkpoint(path)["best"]["epoch"]

    def test_what_is_scored_by_default(self, monkeypatch, tmp_path):
        """All models on the same bits, with 5,000 samples, or 200 in a quick run."""
        seen = []

        def score(model, bits, samples, seed):
            seen.append((type(model.encode(bits)).__name__, bits, samples))
            return claims.Score(-20.0, -21.0)

        monkeypatch.setattr(runs, "score", score)
        for quick in (False, True):
            made(tmp_path, RUNS[:2], quick=quick, samples=None)
        names, bits, samples = zip(*seen, strict=True)
        assert names == ("VonMisesFisher", "PowerSpherical", "VonMisesFisher") * 2
        assert samples == (5000,) * 3 + (200,) * 3
        assert all(torch.equal(one, bits[0]) for one in bits)
        assert bits[0].shape == (60, 64)
        assert bits[0].unique().tolist() == [0, 1]


class TestAgain:
    def test_what_is_done_is_not_done_again(self, done, copy, counted):
        """Also without the checkpoints, as copied from another machine."""
        for path in (copy / "vae").glob("*.safetensors"):
            path.unlink()
        made(copy)
        assert counted == []
        assert document(copy)["results"] == document(done[0])["results"]

    @pytest.mark.parametrize("content", ["", "[]", "{}", "\x00" * 50])
    def test_damaged_rows_are_scored_again(self, content, done, copy, counted):
        (path,) = (copy / "vae").glob(f"{RUNS[2].name}-*.json")
        path.write_text(content)
        made(copy)
        assert counted == ["train", "score"]  # the training is complete, so that it only loads the checkpoint
        assert timeless(copy) == timeless(done[0])

    def test_another_protocol_of_the_same_name_is_another_run(self, copy, counted):
        made(copy, [Run("gaussian", 5, 0, Protocol(epochs=1, batch=32))])
        assert counted == ["train", "score"]
        assert len([*(copy / "vae").iterdir()]) == 2 * len(RUNS) + 2

    def test_other_samples_need_no_other_training(self, done, copy):
        made(copy, samples=6)
        before, after = (document(folder)["results"] for folder in (done[0], copy))
        assert [row["train_seconds"] for row in after] == [row["train_seconds"] for row in before]
        scores = [[row["log_likelihood"] for row in rows] for rows in (before, after)]
        assert all(one != two for one, two in zip(*scores, strict=True))

    @slow
    def test_after_ctrl_c(self, done, tmp_path, monkeypatch):
        """Interrupted in the second run: the same call completes the table."""
        calls, train = [], runs.train

        def interrupted(*given, **options):
            calls.append(given)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return train(*given, **options)

        monkeypatch.setattr(runs, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
        assert not (tmp_path / "vae.json").exists()
        made(tmp_path)
        assert len(calls) == 1 + len(RUNS)
        assert timeless(tmp_path) == timeless(done[0])


@slow
class TestJobs:
    """The processes load the images themselves: all digits."""

    def test_side_by_side(self, tmp_path):
        """The rows are those of a sequence, in the order of the table. Progress goes by the work: 2 parts and 1."""
        fractions, folders = [], [tmp_path / "pool", tmp_path / "sequence"]
        made(folders[0], RUNS[:2], jobs=2, progress=fractions.append)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets, "load", LOAD)
            made(folders[1], RUNS[:2])
        assert timeless(folders[0]) == timeless(folders[1])
        assert len(timeless(folders[0])) == 3
        share = 1 - vae.TRAINING_TIME_SHARE
        assert fractions[0] in (pytest.approx(share / 3), pytest.approx(2 * share / 3))
        assert fractions[1:] == pytest.approx([share])
        assert document(folders[0])["configuration"]["jobs"] == 2

    def test_a_run_that_fails_is_named(self, tmp_path):
        """The error is passed on from its process."""
        wild = Run("gaussian", 5, 3, Protocol(epochs=1, learning_rate=1e9))
        with pytest.raises(TrainingError, match=f"^{wild.name}: epoch 1 of 1: "):
            made(tmp_path, [wild], jobs=2)


def paper_rows(*, posterior="power_spherical", dim=5, log_likelihood=0.0, elbo=0.0, **changes):
    """The paper's table as rows of three seeds, with the mean of one cell shifted."""
    rows = []
    for name, column in claims.VAE.items():
        for d, score in column.items():
            here = (name, d) == (posterior, dim)
            by = (log_likelihood, elbo, changes) if here else (0, 0, {})
            rows += [
                vae_row(name, d, seed, score[0] + seed - 1 + by[0], score[1] + 1 - seed + by[1], **by[2])
                for seed in range(3)
            ]
    return rows


class TestShortfalls:
    @pytest.mark.parametrize(
        ("off", "says"),
        [
            ({}, []),
            ({"elbo": -3.6}, ["Power Spherical, d=5: ELBO 3.60 nats below the paper's"]),
            ({"elbo": -3.4}, []),
            ({"elbo": 9.0, "log_likelihood": -0.6}, []),
            ({"log_likelihood": -0.8}, ["d=5: log-likelihoods of the two posteriors 0.78 nats apart"]),
            ({"log_likelihood": 0.8}, ["d=5: log-likelihoods of the two posteriors 0.82 nats apart"]),
            (
                {"posterior": "von_mises_fisher", "dim": 40, "log_likelihood": -1.6},
                [
                    "von Mises–Fisher, d=40: log-likelihood 1.60 nats below the paper's",
                    "d=40: log-likelihoods of the two posteriors 1.61 nats apart",
                ],
            ),
            ({"elbo": float("nan")}, ["Power Spherical, d=5: ELBO nan nats below the paper's"]),
        ],
    )
    def test_one_cell_off(self, off, says):
        assert vae.shortfalls(paper_rows(**off)) == says

    @pytest.mark.parametrize(
        "option",
        [{"protocol": "tuned"}, {"prior": "von_mises_fisher"}, {"factors": 5}, {"proposal": "another"}],
    )
    def test_options_are_not_compared(self, option):
        assert vae.shortfalls(paper_rows(log_likelihood=-50, elbo=-50, **option)) == []

    def test_they_fail_the_experiment(self, tmp_path, monkeypatch):
        """The digits under the name of MNIST, far from the paper's numbers."""
        monkeypatch.setattr(runs, "score", lambda *_: claims.Score(-500.0, -600.0))
        assert not made(tmp_path, [Run("power_spherical", 5, 0, ONE)], data="mnist").passed
