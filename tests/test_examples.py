"""The examples run, say what is right, and the family that one of them makes passes the suite for families."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence

from helpers import own_family
from helpers.processes import in_two_processes
from powerspherical import HypersphericalUniform, SphericalCauchy, pairwise_kl
from powerspherical.testing import FamilyConformance

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle looks classes up there
    spec.loader.exec_module(module)
    return module


# Importing the example registers its family: for the tests here, and no others.
with pytest.MonkeyPatch.context() as patch:
    own_family.use(patch, own_family.entries())
    custom_family = load("custom_family")
    REGISTERED = own_family.entries()


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    own_family.use(monkeypatch, REGISTERED)


class TestPoissonKernel(FamilyConformance):
    distribution = custom_family.PoissonKernel
    dims = (2, 20)

    def test_the_mean_length_is_rho(self, dim: int) -> None:
        p = self.make(dim)
        self.assert_close(p.mean.norm(dim=-1), p.rho)
        self.assert_close(self.family.offset(self.kappa, dim), torch.zeros_like(self.kappa))

    def test_all_pairs_by_the_defaults(self) -> None:
        p = self.make(4)
        one = self.distribution(p.loc.unsqueeze(1), p.concentration.unsqueeze(1))
        x = p.sample().reshape(-1, 4)
        self.assert_close(p.log_prob_matrix(x), one.log_prob(x))
        self.assert_close(pairwise_kl(p, p), kl_divergence(one, p))

    def test_is_the_spherical_cauchy_distribution_on_the_circle(self) -> None:
        p = self.make(2)
        q = SphericalCauchy(p.loc, p.concentration)
        x = q.sample((100,))
        self.assert_close(p.log_prob(x), q.log_prob(x))
        self.assert_close(p.entropy(), q.entropy())
        self.assert_close(p.cap_angle(0.9), q.cap_angle(0.9))


def test_the_custom_family_says_what_is_right(capsys) -> None:
    custom_family.main()
    said = capsys.readouterr().out
    assert "ρ = 0.7500, ‖E x‖ = 0.7500, mean of 20,000 draws 0.75" in said
    assert abs(float(said.partition("fit: κ = ")[2].split()[0]) - 6) < 0.3
    by_draws, exactly = said.partition("d E t/dκ by draws ")[2].partition("\n")[0].split(", exactly ")
    assert abs(float(by_draws) - float(exactly)) < 0.001
    divergences = [line.split(", by Monte Carlo ") for line in said.splitlines() if line.startswith("KL to")]
    assert len(divergences) == 3
    for exact, sampled in divergences:
        assert abs(float(exact.split()[-1]) - float(sampled)) < 0.05


class TestAmbiguousQueries:
    @pytest.fixture
    def example(self) -> ModuleType:
        return load("ambiguous_queries")

    def test_ambiguous_queries_have_a_smaller_concentration(self, example, tmp_path, capsys) -> None:
        """Eight noisy classes, with names as labels, in half precision."""
        labels = torch.arange(8).repeat(150)
        embeddings = (torch.randn(8, 20)[labels] + 0.5 * torch.randn(len(labels), 20)).half().numpy()
        np.savez(tmp_path / "data.npz", embeddings=embeddings, labels=np.array(list("abcdefgh"))[labels])
        figure = tmp_path / "kappa.png"
        found = example.main([str(tmp_path / "data.npz"), "--steps", "200", "--figure", str(figure)])
        recognised, _, same, different = (kappa.median() for kappa in found.values())
        assert different < 0.97 * same
        assert different < 0.97 * recognised
        said = capsys.readouterr().out
        assert said.startswith("step 0 of 200: loss ")
        accuracy, _, *rows, wrote = said[said.index("accuracy") :].splitlines()
        assert float(accuracy.split()[-1]) > 0.95
        assert [row[:26].strip() for row in rows] == list(found)
        smaller = [float(row.split()[-1]) for row in rows]
        assert smaller[0] == pytest.approx(0.5, abs=5e-3)
        assert smaller[3] > smaller[2] + 0.1
        assert wrote == f"wrote {figure}"
        assert figure.exists()

    def test_pairs(self, example) -> None:
        labels = torch.arange(3).repeat(20)
        classes = torch.eye(3)[labels]
        same, different = (example.pair_means(classes, labels, same_class=same) for same in (True, False))
        assert ((same > 0).sum(-1) == 1).all()
        assert ((different > 0).sum(-1) == 2).all()
        assert len(same) == 57

    def test_a_file_without_labels(self, example, tmp_path) -> None:
        np.savez(tmp_path / "data.npz", embeddings=np.ones((4, 3)))
        with pytest.raises(SystemExit, match=r"has no array named labels: it has embeddings"):
            example.main([str(tmp_path / "data.npz")])


class TestSphericalTokeniser:
    @pytest.fixture
    def example(self) -> ModuleType:
        return load("spherical_tokeniser")

    def test_the_prior_is_causal_and_has_a_temperature(self, example) -> None:
        prior = example.Prior()
        tokens = HypersphericalUniform(example.DIM).sample((4, example.TOKENS))
        changed = torch.cat((tokens[:, :5], -tokens[:, 5:]), 1)
        before, after = (prior(previous[:, :-1]).log_prob(tokens) for previous in (tokens, changed))
        torch.testing.assert_close(before[:, :6], after[:, :6])
        assert (before[:, 6:] != after[:, 6:]).all()
        usual, sharp = (prior(tokens[:, :5], warmth).component_distribution for warmth in (1.0, 0.5))
        torch.testing.assert_close(sharp.concentration, 2 * usual.concentration)

    def test_tokens_have_the_places_of_the_bottleneck(self, example) -> None:
        tokeniser = example.Tokeniser().eval()
        tokeniser.bottleneck.evaluate = "mode"
        images = torch.rand(5, 1, example.SIDE, example.SIDE)
        z, _ = tokeniser.bottleneck(tokeniser.encoder(images))
        torch.testing.assert_close(tokeniser.decode(tokeniser.posterior(images).mode), tokeniser.decoder(z))

    def test_ctrl_c_ends_a_training_early(self, example, capsys) -> None:
        model, batches = torch.nn.Linear(3, 1), []

        def loss(rows):
            if len(batches) == 3:
                raise KeyboardInterrupt
            batches.append(len(rows))
            return model(rows).square()

        example.fit("model", model, loss, torch.randn(10, 3), 20)
        assert batches == [example.BATCH] * 3
        assert "model: stopped early" in capsys.readouterr().out

    def test_mnist(self, example, tmp_path) -> None:
        pixels = bytes(range(256)) * 49  # 16 images
        for name in ("train", "t10k"):
            path = tmp_path / f"{name}-images-idx3-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(16) + pixels))
        for images in example.load(tmp_path):
            assert images.shape == (16, 1, example.SIDE, example.SIDE)
            torch.testing.assert_close(images[0, 0, 2, 2:30], torch.arange(28) / 255)
            assert images[:, :, :2].max() == 0

    @pytest.mark.slow
    def test_runs(self, example, tmp_path, capsys) -> None:
        found = example.main(["--quick", "--out", str(tmp_path)])
        # Without any information about the image, a pixel costs log 2 nats.
        assert 0 < found["negative ELBO per image"] < example.SIDE**2 * math.log(2)
        assert 0 < found["rate per token, uniform prior"] < 1
        assert json.loads((tmp_path / "spherical_tokeniser.json").read_text())["results"] == found
        assert (tmp_path / "spherical_tokeniser.png").exists()
        assert "negative ELBO per image: " in capsys.readouterr().out


class TestLightningTraining:
    # Lightning uses deprecated parts of torch, and asks for more workers than the data need.
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*many workers")
    def test_trains_and_reloads(self, tmp_path, capsys) -> None:
        pytest.importorskip("lightning", reason="needs Lightning")
        load("lightning_training").main(["--epochs", "4", "--out", str(tmp_path)])
        assert {path.suffix for path in tmp_path.iterdir()} == {".ckpt", ".json", ".png"}
        found = json.loads((tmp_path / "lightning_training.json").read_text())["results"]
        # New weights give at least 64 log 2 = 44 nats: these were trained, saved and loaded.
        assert found["negative ELBO"] < 35
        assert found["rate"] > 0.5
        assert found["1-NN accuracy"] > 0.2  # ten classes
        assert str(found) in capsys.readouterr().out

    def test_lightning_is_named_if_it_is_missing(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "lightning", None)
        with pytest.raises(SystemExit, match="pip install lightning"):
            load("lightning_training")


class TestJaxVae:
    @pytest.mark.slow
    def test_trains(self, capsys) -> None:
        pytest.importorskip("jax", reason="needs JAX")
        found = load("jax_vae").main(["--steps", "300"])
        # A decoder that ignores z reaches the entropy of independent pixels. That is 10.7 nats.
        assert found["negative ELBO"] < 6
        assert found["agreement of code and angle"] > 0.95
        assert f"rate: {found['rate']:.3f}" in capsys.readouterr().out


class TestDistributedTraining:
    @pytest.mark.slow
    def test_the_processes_agree(self, tmp_path) -> None:
        paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
        script = EXAMPLES / "distributed_training.py"
        in_two_processes(script, "--epochs", "3", "--out", tmp_path, results=paths)
        first, second = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
        assert (first["rank"], second["rank"], first["processes"], first["device"]) == (0, 1, 2, "cpu")
        assert first["weights"] == second["weights"]
        own, others = "last loss here", "last loss, mean of all"
        assert first[others] == second[others] == pytest.approx((first[own] + second[own]) / 2)
        assert first[own] != second[own]  # other images
        assert first[others] < 64 * math.log(2)  # a decoder that has learned nothing
        assert (tmp_path / "weights.pt").exists()

    def test_it_asks_for_torchrun(self, monkeypatch) -> None:
        monkeypatch.delenv("RANK", raising=False)
        with pytest.raises(SystemExit, match="start this example with torchrun"):
            load("distributed_training").main([])
