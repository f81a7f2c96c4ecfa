"""The examples run, say what is right, and the family that one of them makes passes the suite for families."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence

from helpers import own_family
from powerspherical import HypersphericalUniform, SphericalCauchy, pairwise_kl
from powerspherical.testing import FamilyConformance

EXAMPLES = Path(__file__).parents[1] / "examples"
PATH = EXAMPLES / "custom_family.py"


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickle looks classes up there
    spec.loader.exec_module(module)
    return module


# Importing the example registers its family: for the tests here, and no others.
with pytest.MonkeyPatch.context() as patch:
    own_family.use(patch, own_family.entries())
    custom_family = _load(PATH)
    REGISTERED = own_family.entries()


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    own_family.use(monkeypatch, REGISTERED)


class TestPoissonKernel(FamilyConformance):
    distribution = custom_family.PoissonKernel

    def test_the_mean_length_is_rho(self, dim):
        p = self.make(dim)
        self.assert_close(p.mean.norm(dim=-1), p.rho)
        self.assert_close(self.family.log_partition(self.kappa, dim), torch.zeros_like(self.kappa))

    def test_all_pairs_by_the_defaults(self):
        p = self.make(4)
        one = self.distribution(p.loc.unsqueeze(1), p.concentration.unsqueeze(1))
        x = p.sample().reshape(-1, 4)
        self.assert_close(p.log_prob_matrix(x), one.log_prob(x))
        self.assert_close(pairwise_kl(p, p), kl_divergence(one, p))

    def test_is_the_spherical_cauchy_distribution_on_the_circle(self):
        p = self.make(2)
        q = SphericalCauchy(p.loc, p.concentration)
        x = q.sample((100,))
        self.assert_close(p.log_prob(x), q.log_prob(x))
        self.assert_close(p.entropy(), q.entropy())
        self.assert_close(p.cap_angle(0.9), q.cap_angle(0.9))


def test_the_example_is_short():
    assert len(PATH.read_text(encoding="utf-8").splitlines()) <= 100


def test_the_example_says_what_is_right(capsys):
    custom_family.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ρ = 0.7500, ‖E x‖ = 0.7500, mean of 20,000 draws 0.75")
    fitted = float(lines[4].split()[3])
    assert abs(fitted - 6) < 0.3
    for line in lines[5:8]:  # divergences beside their Monte Carlo estimates
        exact, sampled = (float(part.split()[-1]) for part in line.rsplit(", by Monte Carlo", 1))
        assert abs(exact - sampled) < 0.05
    assert len(lines) == 10


class TestAmbiguousQueries:
    @pytest.fixture
    def example(self):
        return _load(EXAMPLES / "ambiguous_queries.py")

    @pytest.fixture
    def data(self, tmp_path):
        """Eight noisy classes, with names as labels, in half precision."""
        centres = torch.randn(8, 20)
        labels = torch.arange(8).repeat(150)
        embeddings = (centres[labels] + 0.5 * torch.randn(len(labels), 20)).half().numpy()
        path = tmp_path / "data.npz"
        np.savez(path, embeddings=embeddings, labels=np.array(list("abcdefgh"))[labels.numpy()])
        return path

    def test_ambiguous_queries_have_a_smaller_concentration(self, example, data, tmp_path, capsys):
        figure = tmp_path / "kappa.png"
        found = example.main([str(data), "--steps", "200", "--figure", str(figure)])
        recognised, _, same, different = (kappa.median() for kappa in found.values())
        assert different < 0.97 * same
        assert different < 0.97 * recognised
        *steps, lines = [line.split("\n") for line in capsys.readouterr().out.split("accuracy")]
        assert steps[0][0].startswith("step 0 of 200: loss ")
        assert float(lines[0].split()[-1]) > 0.95
        assert [line[:26].strip() for line in lines[2:6]] == list(found)
        assert float(lines[2].split()[-1]) == pytest.approx(0.5, abs=5e-3)
        assert float(lines[5].split()[-1]) > float(lines[4].split()[-1]) + 0.1
        assert figure.stat().st_size > 1000

    def test_pairs(self, example):
        labels = torch.arange(3).repeat(20)
        classes = torch.eye(3)[labels]
        same, different = (example.pair_means(classes, labels, same_class=same) for same in (True, False))
        assert ((same > 0).sum(-1) == 1).all()
        assert ((different > 0).sum(-1) == 2).all()
        assert len(same) == 57

    def test_a_file_without_labels(self, example, tmp_path):
        np.savez(tmp_path / "data.npz", embeddings=np.ones((4, 3)))
        with pytest.raises(SystemExit, match=r"has no array named labels: it has embeddings"):
            example.main([str(tmp_path / "data.npz")])


class TestSphericalTokeniser:
    @pytest.fixture
    def example(self):
        return _load(EXAMPLES / "spherical_tokeniser.py")

    def test_each_token_depends_on_the_previous_ones(self, example):
        prior = example.Prior()
        tokens = HypersphericalUniform(example.DIM).sample((4, example.TOKENS))
        changed = torch.cat((tokens[:, :5], -tokens[:, 5:]), 1)
        before, after = (prior(previous[:, :-1]).log_prob(tokens) for previous in (tokens, changed))
        torch.testing.assert_close(before[:, :6], after[:, :6])
        assert (before[:, 6:] != after[:, 6:]).all()

    def test_a_low_temperature_sharpens_the_prior(self, example):
        prior, previous = example.Prior(), HypersphericalUniform(example.DIM).sample((4, 5))
        usual, sharp = (prior(previous, temperature).component_distribution for temperature in (1.0, 0.5))
        torch.testing.assert_close(sharp.concentration, 2 * usual.concentration)
        assert prior.sample(3, temperature=0.5).shape == (3, example.TOKENS, example.DIM)

    def test_tokens_have_the_places_of_the_bottleneck(self, example):
        tokeniser = example.Tokeniser().eval()
        images = torch.rand(5, 1, example.SIDE, example.SIDE)
        z, _ = tokeniser.bottleneck(tokeniser.encoder(images))
        decoded = tokeniser.decode(tokeniser.posterior(images).mode)
        torch.testing.assert_close(decoded, tokeniser.decoder(z))

    def test_ctrl_c_ends_a_training_early(self, example, capsys):
        model, batches = torch.nn.Linear(3, 1), []

        def loss(rows):
            if len(batches) == 3:
                raise KeyboardInterrupt
            batches.append(len(rows))
            return model(rows).square()

        example.fit("model", model, loss, torch.randn(10, 3), 20)
        assert batches == [example.BATCH] * 3
        assert "model: stopped early" in capsys.readouterr().out

    def test_mnist(self, example, tmp_path):
        pixels = bytes(range(256)) * 49  # 16 images
        for name in ("train", "t10k"):
            path = tmp_path / f"{name}-images-idx3-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(16) + pixels))
        for images in example.load(tmp_path):
            assert images.shape == (16, 1, example.SIDE, example.SIDE)
            torch.testing.assert_close(images[0, 0, 2, 2:30], torch.arange(28) / 255)
            assert images[:, :, :2].max() == 0

    @pytest.mark.slow
    def test_runs(self, example, tmp_path, capsys):
        found = example.main(["--quick", "--out", str(tmp_path)])
        # Without any information about the image, a pixel costs log 2 nats.
        assert 0 < found["negative ELBO per image"] < example.SIDE**2 * math.log(2)
        assert 0 < found["rate per token, uniform prior"] < 1
        assert json.loads((tmp_path / "spherical_tokeniser.json").read_text())["results"] == found
        assert (tmp_path / "spherical_tokeniser.png").stat().st_size > 1000
        assert "negative ELBO per image: " in capsys.readouterr().out


class TestLightningTraining:
    @pytest.fixture
    def example(self):
        pytest.importorskip("lightning", reason="needs Lightning")
        return _load(EXAMPLES / "lightning_training.py")

    # Lightning uses deprecated parts of torch, and asks for more workers than the data need.
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*many workers")
    def test_trains_and_reloads(self, example, tmp_path, capsys):
        example.main(["--epochs", "4", "--out", str(tmp_path)])
        assert {path.suffix for path in tmp_path.iterdir()} == {".ckpt", ".json", ".png"}
        found = json.loads((tmp_path / "lightning_training.json").read_text())["results"]
        # New weights give at least 64 log 2 = 44 nats: these were trained, saved and loaded.
        assert found["negative ELBO"] < 35
        assert found["rate"] > 0.5
        assert found["1-NN accuracy"] > 0.2  # ten classes
        assert str(found) in capsys.readouterr().out


def test_lightning_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(SystemExit, match="pip install lightning"):
        _load(EXAMPLES / "lightning_training.py")


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_distributed_training(tmp_path):
    """Two processes of ``torchrun``, judged by what they wrote: torch may abort when it shuts a group down."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*torchrun, EXAMPLES / "distributed_training.py", "--epochs", "3", "--out", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    ) as process:
        try:
            _, error = process.communicate(timeout=300)
        finally:
            process.terminate()  # and with it the two, should they wait for each other
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    assert all(path.exists() for path in paths), error
    first, second = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    assert (first["rank"], second["rank"], first["processes"], first["device"]) == (0, 1, 2, "cpu")
    assert first["weights"] == second["weights"]
    own, others = "last loss here", "last loss, mean of all"
    assert first[others] == second[others] == pytest.approx((first[own] + second[own]) / 2)
    assert first[own] != second[own]  # other images
    assert first[others] < 64 * math.log(2)  # a decoder that has learned nothing
    assert (tmp_path / "weights.pt").stat().st_size > 1000


def test_distributed_training_asks_for_torchrun():
    with pytest.raises(SystemExit, match="start this example with torchrun"):
        _load(EXAMPLES / "distributed_training.py").main([])


@pytest.mark.parametrize(
    ("name", "lines"),
    [("lightning_training", 100), ("distributed_training", 100), ("spherical_tokeniser", 200)],
)
def test_the_examples_are_short(name, lines):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= lines
