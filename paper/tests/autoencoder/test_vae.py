"""The auto-encoder experiment as a whole: its output, resumption, and checks against the paper."""

import json
import shutil

import pytest
import torch

from powerspherical.nn import CheckpointError
from powerspherical_paper import claims
from powerspherical_paper.autoencoder import datasets, runs, training_time, vae
from powerspherical_paper.autoencoder.runs import Run
from powerspherical_paper.autoencoder.training import Protocol, TrainingError
from powerspherical_paper.results import Outcome

pytestmark = pytest.mark.slow  # each trains a model, most of them several
ONE = Protocol(epochs=1)
RUNS = [
    Run("von_mises_fisher", 5, 0, ONE),
    Run("power_spherical", 10, 0, ONE),
    Run("gaussian", 5, 0, ONE),
    Run("power_spherical", 3, 0, ONE, factors=2),
    Run("power_spherical", 10, 0, ONE, prior="von_mises_fisher"),
    Run("power_spherical", 5, 1, Protocol("tuned", epochs=2, cosine=True, draws=2, validation=100)),
]
FIGURES = ["vae.json", "vae.png", "vae_images.png"]


@pytest.fixture(scope="module", autouse=True)
def _small():
    """One thread, because the last bits may depend on it. Nothing is timed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # in the processes of `jobs`
        patch.setattr(training_time, "run", lambda *_, **__: Outcome([]))
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def done(_small, tmp_path_factory):
    """A folder in which all of `RUNS` are done, and the fractions that it told meanwhile."""
    folder, fractions = tmp_path_factory.mktemp("vae") / "done", []
    outcome = made(folder, seed=4, seeds=2, progress=fractions.append)
    return folder, outcome, fractions


@pytest.fixture
def copy(done, tmp_path):
    return shutil.copytree(done[0], tmp_path / "copy")


def made(out, runs=RUNS, **options):
    return vae.run(out, **{"data": "digits", "samples": 5, **options}, runs=runs)


def document(out):
    return json.loads((out / "vae.json").read_text(encoding="utf-8"))


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "train_seconds"} for row in rows]


def forbidden(*_, **__):
    raise AssertionError("this was done already")


class TestResults:
    def test_files(self, done):
        folder, outcome, fractions = done
        assert [path.name for path in outcome.files] == FIGURES
        assert all(path.stat().st_size > 1000 for path in outcome.files)
        assert outcome.passed
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1 - vae.TRAINING_TIME_SHARE)  # the rest is for the timing
        names = {f"{run.name}.{end}" for run in RUNS for end in ("json", "safetensors")}
        assert {path.name for path in (folder / "vae" / "digits").iterdir()} == names
        found = document(folder)
        assert found["command"] == "powerspherical reproduce vae --seed 4 --data digits --seeds 2"
        expected = {"data": "digits", "samples": 5, "runs": 6, "train_images": 1437, "test_images": 360}
        expected |= {"epochs": 1, "batch": 64, "learning_rate": 1e-3}
        assert expected.items() <= found["configuration"].items()
        assert found["configuration"]["protocols"]["paper"]["validation"] == 0

    def test_rows(self, done):
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
            assert row["epochs"] == 2 if row["protocol"] == "tuned" else 1

    def test_defaults(self, monkeypatch, tmp_path):
        """The defaults of a quick run, and those of a full one: MNIST, 3 seeds and 5,000 samples."""
        asked = []

        def plan(seeds, images, *, quick):
            asked.append((list(seeds), images, quick))
            return RUNS[2:3]

        monkeypatch.setattr(vae, "plan", plan)
        monkeypatch.setattr(runs, "score", lambda *_, **__: claims.Score(-90.0, -95.0))
        vae.run(tmp_path, quick=True, seed=7)
        assert document(tmp_path)["configuration"]["samples"] == 200
        digits = datasets.load("digits")
        monkeypatch.setattr(datasets, "load", lambda name, _: digits._replace(name=name))
        vae.run(tmp_path / "whole")
        assert asked == [([7], 1437, True), ([0, 1, 2], 1437, False)]
        configuration = document(tmp_path / "whole")["configuration"]
        assert (configuration["data"], configuration["samples"]) == ("mnist", 5000)


class TestAgain:
    def test_what_is_done_is_not_done_again(self, copy, monkeypatch):
        """Also without the checkpoints, as copied from another machine: then there are no images."""
        before = document(copy)["results"]
        (copy / "vae.json").unlink()
        monkeypatch.setattr(runs, "train", forbidden)
        monkeypatch.setattr(runs, "score", forbidden)
        assert [path.name for path in made(copy).files] == FIGURES
        assert document(copy)["results"] == before
        for path in (copy / "vae" / "digits").glob("*.safetensors"):
            path.unlink()
        assert [path.name for path in made(copy).files] == FIGURES[:2]

    def test_other_samples_need_no_other_training(self, copy):
        before = document(copy)["results"]
        made(copy, samples=6)
        after = document(copy)["results"]
        assert [row["train_seconds"] for row in after] == [row["train_seconds"] for row in before]
        scores = [[row["log_likelihood"] for row in rows] for rows in (before, after)]
        assert all(one != two for one, two in zip(*scores, strict=True))

    @pytest.mark.parametrize("content", ["", '{"identity": {}', "[]", "{}", "null", "\x00" * 50])
    def test_damaged_rows_are_named(self, content, copy):
        path = copy / "vae" / "digits" / f"{RUNS[1].name}.json"
        path.write_text(content)
        with pytest.raises(CheckpointError) as raised:
            made(copy)
        assert f"the results in {path} are damaged" in str(raised.value)
        assert "delete the file" in str(raised.value)

    def test_another_protocol_of_the_same_name(self, copy):
        """It is refused. A quick table has checkpoints of its own."""
        other = Run("gaussian", 5, 0, Protocol(epochs=3))
        with pytest.raises(CheckpointError, match=r"was made with protocol .*; delete it"):
            made(copy, [other])
        made(copy, [other], quick=True)
        assert sorted(path.name for path in (copy / "vae").iterdir()) == ["digits", "digits-quick"]

    def test_after_ctrl_c(self, done, tmp_path, monkeypatch):
        """Interrupted in the second run: the first row is written, and the same call completes the table."""
        calls, train = [], runs.train

        def interrupted(*given, **options):
            calls.append(given)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return train(*given, **options)

        monkeypatch.setattr(runs, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
        rows = document(tmp_path)["results"]
        assert [(row["posterior"], row["dim"]) for row in rows] == [("von_mises_fisher", 5)]
        made(tmp_path)
        assert len(calls) == 1 + len(RUNS)
        assert timeless(document(tmp_path)["results"]) == timeless(document(done[0])["results"])


class TestJobs:
    def test_side_by_side(self, done, tmp_path):
        fractions = []
        made(tmp_path, RUNS[:3], jobs=2, progress=fractions.append)
        found, alone = document(tmp_path), timeless(document(done[0])["results"])
        rows = timeless(found["results"])
        assert len(rows) == 4
        assert all(row in alone for row in rows)
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1 - vae.TRAINING_TIME_SHARE)
        assert found["command"].endswith("--jobs 2")
        assert found["configuration"]["jobs"] == 2

    def test_a_run_that_fails_is_named(self, tmp_path):
        """The error is passed on from its process."""
        wild = Run("gaussian", 5, 3, Protocol(epochs=1, learning_rate=1e9))
        with pytest.raises(TrainingError, match=f"^{wild.name}: epoch 1 of 1: "):
            made(tmp_path, [wild], jobs=2)


def test_missing_data_are_told_at_once(tmp_path):
    with pytest.raises(datasets.DataError, match="mnist"):
        made(tmp_path / "out", data="mnist", data_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def paper_rows(*, posterior="power_spherical", dim=5, log_likelihood=0.0, elbo=0.0, **changes):
    """The paper's table as rows of three seeds, with the mean of one cell shifted."""
    rows = []
    for name, column in claims.VAE.items():
        for d, score in column.items():
            here = (name, d) == (posterior, dim)
            usual = {"prior": "uniform", "factors": None, "proposal": None, "protocol": "paper"}
            rows += [
                {
                    "posterior": name,
                    "dim": d,
                    "seed": seed,
                    "log_likelihood": score.log_likelihood + (seed - 1) + (log_likelihood if here else 0),
                    "elbo": score.elbo + (1 - seed) + (elbo if here else 0),
                    **usual,
                    **(changes if here else {}),
                }
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
            ({"elbo": 9.0}, []),
            ({"log_likelihood": -0.6}, []),
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
        digits = datasets.load("digits")
        monkeypatch.setattr(datasets, "load", lambda name, _: digits._replace(name=name))
        monkeypatch.setattr(runs, "score", lambda *_, **__: claims.Score(-500.0, -600.0))
        assert not made(tmp_path, [Run("power_spherical", 5, 0, ONE)], data="mnist").passed
