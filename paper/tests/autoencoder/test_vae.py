"""The auto-encoder experiment as a whole: its output, resumption, and checks against the paper."""

import json
import shutil

import pytest
import torch

from powerspherical.nn import CheckpointError
from powerspherical_paper import claims
from powerspherical_paper.autoencoder import datasets, runs, training_time, vae
from powerspherical_paper.autoencoder.additions import AdditionError
from powerspherical_paper.autoencoder.runs import Run
from powerspherical_paper.autoencoder.training import Protocol
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
FIGURES = ["vae.json", "vae.png", "vae.svg", "vae_images.png", "vae_images.svg"]


write_figure = vae.write_figure


@pytest.fixture(scope="module", autouse=True)
def _small():
    """One thread, because the last bits may depend on it. Nothing is timed, and figures are not written."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # in the processes of `jobs`
        patch.setattr(training_time, "run", lambda *_, **__: Outcome([]))
        patch.setattr(
            vae, "write_figure", lambda out, name, *_, **__: [out / f"{name}.{end}" for end in ("png", "svg")]
        )
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def done(_small, tmp_path_factory):
    """A folder in which all of `RUNS` are done. Tests copy it."""
    folder = tmp_path_factory.mktemp("vae") / "done"
    made(folder)
    return folder


@pytest.fixture
def copy(done, tmp_path):
    return shutil.copytree(done, tmp_path / "copy")


def made(out, runs=RUNS, **options):
    return vae.run(out, **{"data": "digits", "samples": 5, **options}, runs=runs)


def document(out):
    return json.loads((out / "vae.json").read_text(encoding="utf-8"))


def timeless(rows):
    return [{key: value for key, value in row.items() if key != "train_seconds"} for row in rows]


def forbidden(*_, **__):
    raise AssertionError("this was done already")


class TestResults:
    def test_files(self, tmp_path, monkeypatch):
        monkeypatch.setattr(vae, "write_figure", write_figure)
        fractions = []
        outcome = made(tmp_path, RUNS[1:3], seed=4, seeds=2, progress=fractions.append)
        assert [path.name for path in outcome.files] == FIGURES
        assert all(path.stat().st_size > 1000 for path in outcome.files)
        assert outcome.passed
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1 - vae.TRAINING_TIME_SHARE)  # the rest is for the timing
        names = {f"{run.name}.{end}" for run in RUNS[1:3] for end in ("json", "safetensors")}
        assert {path.name for path in (tmp_path / "vae" / "digits").iterdir()} == names
        found = document(tmp_path)
        assert found["command"] == "powerspherical reproduce vae --seed 4 --data digits --seeds 2"
        configuration = found["configuration"]
        assert (configuration["data"], configuration["samples"], configuration["runs"]) == ("digits", 5, 2)
        assert (configuration["train_images"], configuration["test_images"]) == (1437, 360)
        assert (configuration["epochs"], configuration["batch"], configuration["learning_rate"]) == (
            1,
            64,
            1e-3,
        )
        assert configuration["protocols"]["paper"]["validation"] == 0

    def test_rows(self, done):
        rows = document(done)["results"]
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

    def test_the_picture_is_of_the_widest_in_the_paper_s_protocol(self, monkeypatch, copy):
        shown = []
        trained = vae.trained
        monkeypatch.setattr(vae, "trained", lambda run, *rest: shown.append(run) or trained(run, *rest))
        made(copy)
        assert shown == [RUNS[1]]

    def test_defaults(self, monkeypatch, tmp_path):
        """The defaults of a quick run, and those of a full one: MNIST, 3 seeds and 5,000 samples."""
        asked = []

        def plan(seeds, images, *, quick):
            asked.append((list(seeds), images, quick))
            return RUNS[2:3]

        monkeypatch.setattr(vae, "plan", plan)
        vae.run(tmp_path, quick=True, seed=7)
        assert document(tmp_path)["configuration"]["samples"] == 200
        digits = datasets.load("digits")
        monkeypatch.setattr(datasets, "load", lambda name, _: digits._replace(name=name))
        monkeypatch.setattr(runs, "score", lambda *_, **__: claims.Score(-90.0, -95.0))
        vae.run(tmp_path / "whole")
        assert asked == [([7], 1437, True), ([0, 1, 2], 1437, False)]
        configuration = document(tmp_path / "whole")["configuration"]
        assert (configuration["data"], configuration["samples"]) == ("mnist", 5000)


class TestAgain:
    def test_what_is_done_is_not_done_again(self, copy, monkeypatch):
        before = document(copy)["results"]
        (copy / "vae.json").unlink()
        monkeypatch.setattr(runs, "train", forbidden)
        monkeypatch.setattr(runs, "score", forbidden)
        assert [path.name for path in made(copy).files] == FIGURES
        assert document(copy)["results"] == before

    def test_other_samples_need_no_other_training(self, copy, monkeypatch):
        before = document(copy)["results"]
        monkeypatch.setattr("powerspherical_paper.autoencoder.training.Step.__call__", forbidden)
        made(copy, samples=6)
        after = document(copy)["results"]
        assert [row["train_elbo"] for row in after] == [row["train_elbo"] for row in before]
        assert [row["train_seconds"] for row in after] == [row["train_seconds"] for row in before]
        assert all(
            one["log_likelihood"] != two["log_likelihood"] for one, two in zip(after, before, strict=True)
        )

    def test_rows_without_checkpoints(self, copy, monkeypatch):
        """As copied from another machine: there is a table, but no images."""
        for path in (copy / "vae" / "digits").glob("*.safetensors"):
            path.unlink()
        monkeypatch.setattr(runs, "train", forbidden)
        assert [path.name for path in made(copy).files] == FIGURES[:3]

    @pytest.mark.parametrize("content", ["", '{"identity": {}', "[]", "{}", "null", "\x00" * 50])
    def test_damaged_rows_are_named(self, content, copy):
        path = copy / "vae" / "digits" / f"{RUNS[1].name}.json"
        path.write_text(content)
        with pytest.raises(CheckpointError) as raised:
            made(copy)
        assert f"the results in {path} are damaged" in str(raised.value)
        assert "delete the file" in str(raised.value)

    def test_the_time_of_earlier_starts_counts(self, copy):
        before = document(copy)["seconds"]
        made(copy)
        assert document(copy)["seconds"] > before
        made(copy, seeds=7)  # another command
        assert document(copy)["seconds"] < before

    def test_a_quick_table_beside_it_is_another(self, copy):
        """Quick and full runs have separate checkpoints."""
        made(copy, [Run("gaussian", 5, 0, Protocol(epochs=3))], quick=True)
        folders = sorted(path.name for path in (copy / "vae").iterdir())
        assert folders == ["digits", "digits-quick"]

    def test_another_protocol_of_the_same_name_is_refused(self, copy):
        other = Run("gaussian", 5, 0, Protocol(epochs=3))
        with pytest.raises(CheckpointError, match=r"was made with protocol .*; delete it"):
            made(copy, [other])


class TestOnePosterior:
    """Its rows are added to the table, and the other posteriors are not run again."""

    cauchy = Run("spherical_cauchy", 5, 0, ONE)

    def test_added(self, copy, monkeypatch):
        before = document(copy)
        shutil.rmtree(copy / "vae")  # the table comes alone, from another machine
        monkeypatch.setattr(training_time, "run", forbidden)
        fractions = []
        outcome = made(copy, [*RUNS, self.cauchy], posterior="spherical_cauchy", progress=fractions.append)
        assert [path.name for path in outcome.files] == FIGURES[:3]
        assert len(document(copy)["results"]) == 8
        assert fractions[-1] == pytest.approx(1)
        after = document(copy)
        rows = after.pop("results")
        assert [row for row in rows if row["posterior"] != "spherical_cauchy"] == before["results"]
        (row,) = (row for row in rows if row["posterior"] == "spherical_cauchy")
        assert -80 < row["elbo"] < row["log_likelihood"] < -15
        (addition,) = after.pop("additions").items()
        assert addition[0] == "spherical_cauchy"
        assert addition[1]["command"].endswith("--data digits --seeds 3 --posterior spherical-cauchy")
        assert set(addition[1]) == {"command", "created", "seconds", "versions", "hardware"}
        settings = after.pop("configuration")
        assert settings == before.pop("configuration") | {"runs": len(RUNS) + 1}
        assert after == {key: value for key, value in before.items() if key != "results"}

    def test_again(self, copy, monkeypatch):
        """The same command changes only the time, and counts nothing twice."""
        made(copy, [self.cauchy], posterior="spherical_cauchy")
        before = document(copy)
        monkeypatch.setattr(runs, "train", forbidden)
        made(copy, [self.cauchy], posterior="spherical_cauchy")
        after = document(copy)
        times = [one["additions"]["spherical_cauchy"].pop("seconds") for one in (before, after)]
        assert times[0] < times[1]
        for one in (before, after):
            del one["additions"]["spherical_cauchy"]["created"]
        assert after == before

    def test_alone(self, tmp_path):
        """Without an existing table, it makes one of its own and records its command."""
        for _ in range(2):
            made(tmp_path, [*RUNS[:1], self.cauchy], posterior="spherical_cauchy")
            found = document(tmp_path)
            assert [row["posterior"] for row in found["results"]] == ["spherical_cauchy"]
            assert found["command"].endswith("--posterior spherical-cauchy")
            assert "additions" not in found

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (
                lambda one: one["configuration"].update(samples=6),
                "have samples=6, but the new ones samples=5; ",
            ),
            (lambda one: one["configuration"].update(data="mnist"), "have data=mnist, but the new ones"),
            (
                lambda one: one["configuration"]["protocols"]["paper"].update(epochs=2),
                "have a different protocol 'paper'",
            ),
            (lambda one: one.pop("configuration"), r"is damaged \(KeyError: 'configuration'\); delete it"),
        ],
    )
    def test_to_another_table(self, change, says, copy, monkeypatch):
        found = document(copy)
        change(found)
        (copy / "vae.json").write_text(json.dumps(found))
        monkeypatch.setattr(runs, "train", forbidden)
        with pytest.raises(AdditionError, match=says):
            made(copy, [self.cauchy], posterior="spherical_cauchy")
        assert document(copy) == found


class TestStopping:
    def test_ctrl_c(self, done, tmp_path, monkeypatch):
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
        assert timeless(document(tmp_path)["results"]) == timeless(document(done)["results"])


class TestJobs:
    def test_side_by_side(self, done, tmp_path):
        fractions = []
        made(tmp_path, RUNS[:3], jobs=2, progress=fractions.append)
        found, alone = document(tmp_path), timeless(document(done)["results"])
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
        with pytest.raises(runs.TrainingError, match=f"^{wild.name}: epoch 1 of 1: "):
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
            rows += [
                {
                    "posterior": name,
                    "dim": d,
                    "prior": "uniform",
                    "factors": None,
                    "proposal": None,
                    "protocol": "paper",
                    "seed": seed,
                    "log_likelihood": score.log_likelihood + (seed - 1) + (log_likelihood if here else 0),
                    "elbo": score.elbo + (1 - seed) + (elbo if here else 0),
                }
                | (changes if here else {})
                for seed in range(3)
            ]
    return rows


class TestShortfalls:
    def test_the_paper_itself(self):
        assert vae.shortfalls(paper_rows()) == []

    @pytest.mark.parametrize(
        ("off", "says"),
        [
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
            (
                {"elbo": float("nan")},
                ["Power Spherical, d=5: ELBO nan nats below the paper's"],
            ),
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

    def test_they_fail_the_experiment(self, copy, monkeypatch):
        """The digits under the name of MNIST, far from the paper's numbers."""
        digits = datasets.load("digits")
        monkeypatch.setattr(datasets, "load", lambda name, _: digits._replace(name=name))
        monkeypatch.setattr(runs, "score", lambda *_, **__: claims.Score(-500.0, -600.0))
        outcome = made(copy / "mnist", [Run("power_spherical", 5, 0, ONE)], data="mnist")
        assert not outcome.passed
        lines = vae.shortfalls(document(copy / "mnist")["results"])
        assert lines[0] == "Power Spherical, d=5: log-likelihood 385.51 nats below the paper's"
