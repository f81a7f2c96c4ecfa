"""Training: single steps, exact resumption after an interruption, and errors."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.stopping import WITHIN_THIRD, Stopped, at_call, same, stop
from powerspherical.nn import CheckpointError, load_checkpoint, save_checkpoint
from powerspherical_paper.autoencoder import training
from powerspherical_paper.autoencoder.datasets import load
from powerspherical_paper.autoencoder.hyperspherical_vae import HypersphericalVAE
from powerspherical_paper.autoencoder.models import build
from powerspherical_paper.autoencoder.training import (
    Protocol,
    TrainingError,
    binarised,
    derived_seed,
    train,
)

PIXELS, SEED = 16, 7
SHORT = Protocol(epochs=4, batch=8)
FULL = replace(SHORT, name="full", cosine=True, draws=2, validation=10)
protocols = pytest.mark.parametrize("protocol", [SHORT, FULL], ids=lambda protocol: protocol.name)
posteriors = pytest.mark.parametrize("posterior", ["power_spherical", "von_mises_fisher"])
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums over several threads may differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def images(n=50, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, PIXELS, generator=generator).to(device)


def model(posterior="power_spherical", device="cpu"):
    torch.manual_seed(3)
    return build(posterior, 3, PIXELS).to(device)


def trained(path, protocol=SHORT, posterior="power_spherical", device="cpu", **options):
    """Train from the start or from a checkpoint; return the model and the state."""
    found = model(posterior, device)
    return found, train(found, images(device=device), protocol, seed=SEED, path=path, **options)


def assert_same_files(first, second):
    """The checkpoints are bitwise equal, except for the running time."""
    one, two = load_checkpoint(first), load_checkpoint(second)
    assert one.pop("seconds") > 0
    assert two.pop("seconds") > 0
    assert same(one, two)


class TestStopping:
    @posteriors
    @protocols
    def test_a_run_that_was_stopped_comes_to_the_same_numbers(self, posterior, protocol, tmp_path):
        whole, expected = trained(tmp_path / "whole", protocol, posterior)
        with pytest.raises(Stopped):
            trained(tmp_path / "parts", protocol, posterior, progress=at_call(WITHIN_THIRD, stop))
        assert load_checkpoint(tmp_path / "parts")["epoch"] == 2
        found, state = trained(tmp_path / "parts", protocol, posterior)
        assert state.history == expected.history
        assert same(state.best, expected.best)
        assert same(found.state_dict(), whole.state_dict())
        assert_same_files(tmp_path / "whole", tmp_path / "parts")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "setup",
        [
            "progress = stopping.at_call(stopping.WITHIN_THIRD, stopping.wait)",
            "progress, os.fsync = here.training.silent, stopping.at_call(3, stopping.wait)",
        ],
        ids=["in an epoch", "while it writes"],
    )
    def test_a_run_that_was_killed(self, setup, tmp_path):
        """With a real `kill -9` after two epochs."""
        folder = Path(__file__).parent
        path = tmp_path / "killed"
        code = f"""
import os, pathlib, sys
sys.path += [{str(folder)!r}, {str(folder.parents[2] / "tests")!r}]
import test_training as here
from helpers import stopping
{setup}
here.trained(pathlib.Path({str(path)!r}), here.FULL, progress=progress)
"""
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        ) as process:
            assert process.stdout.readline() == "waiting\n"
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert load_checkpoint(path)["epoch"] == 2
        trained(path, FULL)
        trained(tmp_path / "whole", FULL)
        assert_same_files(tmp_path / "whole", path)

    def test_a_run_that_is_done_is_not_trained_again(self, tmp_path, monkeypatch):
        first, expected = trained(tmp_path / "run", FULL)
        content = (tmp_path / "run").read_bytes()
        monkeypatch.setattr(training.Step, "__call__", None)
        second, state = trained(tmp_path / "run", FULL)
        assert same(vars(state), vars(expected))
        assert same(second.state_dict(), first.state_dict())
        assert (tmp_path / "run").read_bytes() == content

    def test_a_checkpoint_from_another_device(self, tmp_path):
        """Adam has other settings on a GPU. A resumed run uses those of its own device."""
        with pytest.raises(Stopped):
            trained(tmp_path / "run", progress=at_call(WITHIN_THIRD, stop))
        content = load_checkpoint(tmp_path / "run")
        content["optimizer"]["param_groups"][0]["capturable"] = True
        save_checkpoint(tmp_path / "run", content)
        trained(tmp_path / "run")
        trained(tmp_path / "whole")
        assert_same_files(tmp_path / "whole", tmp_path / "run")

    def test_a_truncated_checkpoint_is_named(self, tmp_path):
        path = tmp_path / "run.safetensors"
        trained(path)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(CheckpointError, match=r"run\.safetensors is truncated or damaged .*delete it"):
            trained(path)

    def test_a_checkpoint_of_another_run_is_refused(self, tmp_path):
        trained(tmp_path / "run", identity={"dim": 3})
        content = (tmp_path / "run").read_bytes()
        for other, told in (({"dim": 4}, "dim 3, not 4"), (None, "{'dim': 3}")):
            with pytest.raises(CheckpointError, match=f"made with {told}; delete it, or"):
                trained(tmp_path / "run", identity=other)
        assert (tmp_path / "run").read_bytes() == content

    def test_the_seed_is_all_that_is_random(self, tmp_path):
        found = []
        for seed in (1, 1, 2):
            one = model()
            torch.rand(len(found))  # whatever was drawn before
            found.append((train(one, images(), SHORT, seed=seed).history, one.state_dict()))
        assert same(found[0], found[1])
        assert found[0][0] != found[2][0]


class TestEpochs:
    def test_an_epoch_is_a_plain_loop(self):
        """Against a plain training loop with torch's default Adam."""
        found, state = trained(None, replace(SHORT, epochs=2, draws=3))
        plain, data = model(), images()
        optimizer = torch.optim.Adam(plain.parameters(), lr=SHORT.learning_rate)
        means = []
        for epoch in range(2):
            order = torch.Generator().manual_seed(derived_seed(SEED, epoch, "order"))
            batches = torch.randperm(len(data), generator=order).split(SHORT.batch)
            assert [len(batch) for batch in batches] == [8] * 6 + [2]
            torch.manual_seed(derived_seed(SEED, epoch, "noise", 0))
            total = 0.0
            for batch in batches:
                optimizer.zero_grad()
                elbo = plain.elbo(torch.bernoulli(data[batch]), samples=3).elbo
                (-elbo.mean()).backward()
                optimizer.step()
                total += elbo.sum().item()
            means.append(total / len(data))
        assert [epoch["elbo"] for epoch in state.history] == pytest.approx(means, rel=1e-5)
        torch.testing.assert_close(found.state_dict(), plain.state_dict(), rtol=0, atol=1e-5)

    def test_every_image_is_seen_once_in_a_new_order(self, monkeypatch):
        seen = []
        step = training.Step.__call__
        monkeypatch.setattr(
            training.Step, "__call__", lambda self, rows: seen.append(rows) or step(self, rows)
        )
        trained(None, replace(SHORT, epochs=2))
        first, second = torch.cat(seen[:7]), torch.cat(seen[7:])
        assert not torch.equal(first, second)
        for order in (first, second):
            assert torch.equal(order.sort().values, torch.arange(50))

    def test_every_epoch_has_its_bits(self, monkeypatch):
        seen = []
        elbo = HypersphericalVAE.elbo
        monkeypatch.setattr(
            HypersphericalVAE,
            "elbo",
            lambda self, bits, **given: seen.append(bits) or elbo(self, bits, **given),
        )
        train(model(), torch.full((1, PIXELS), 0.5), SHORT, seed=SEED)
        assert len({tuple(bits.flatten().tolist()) for bits in seen}) == SHORT.epochs
        assert torch.stack(seen).unique().tolist() == [0, 1]

    @posteriors
    def test_the_elbo_rises(self, posterior):
        torch.manual_seed(0)
        digits = load("digits").train[:400]
        state = train(build(posterior, 5, 64), digits, Protocol(epochs=3, batch=16), seed=0)
        elbos = [epoch["elbo"] for epoch in state.history]
        assert elbos == sorted(elbos)
        assert elbos[-1] > elbos[0] + 5

    def test_progress(self):
        fractions = []
        trained(None, progress=fractions.append)
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1


class TestRate:
    def test_values(self):
        assert [Protocol().rate(epoch) for epoch in (0, 50, 99)] == [1e-3] * 3
        cosine = replace(Protocol(), cosine=True, epochs=60)
        rates = [cosine.rate(epoch) for epoch in (0, 20, 30, 40)]
        assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
        assert 0 < cosine.rate(59) < 1e-6

    def test_it_is_that_of_the_epoch(self, monkeypatch):
        made, seen = [], []
        adam = training.adam
        monkeypatch.setattr(training, "adam", lambda *given: made.append(adam(*given)) or made[-1])

        def progress(done):
            if not done * 4 % 1:  # at the beginning and the end of an epoch
                seen.append(made[0].param_groups[0]["lr"].item())

        trained(None, FULL, progress=progress)
        expected = [FULL.rate(epoch) for epoch in range(4) for _ in range(2)]
        assert seen == pytest.approx(expected, rel=1e-6)


class TestValidation:
    @pytest.mark.parametrize("best", [1, 2, 4])
    def test_the_best_epoch_is_kept(self, best, tmp_path, monkeypatch):
        elbos = iter([-1.0 if epoch == best else -5.0 for epoch in range(1, 5)])
        monkeypatch.setattr(training, "_mean_elbo", lambda *_: next(elbos))
        protocol = replace(FULL, cosine=False)
        found, state = trained(tmp_path / "run", protocol)
        assert (state.best["epoch"], state.best["elbo"], state.epoch) == (best, -1.0, 4)
        elbos = iter([-1.0] * best)
        trained(tmp_path / "short", replace(protocol, epochs=best))
        assert same(found.state_dict(), load_checkpoint(tmp_path / "short")["model"])
        assert same(load_checkpoint(tmp_path / "run")["best"]["model"], found.state_dict())

    def test_images_held_out_are_not_trained_on(self, tmp_path):
        """The held-out last ten images do not affect the training."""
        found = []
        for last in (0.0, 1.0):
            data = images()
            data[-10:] = last
            path = tmp_path / str(last)
            train(model(), data, FULL, seed=SEED, path=path)
            content = load_checkpoint(path)
            found.append((content["model"], content["history"][-1].pop("validation_elbo")))
        assert same(found[0][0], found[1][0])
        assert found[0][1] != found[1][1]

    def test_its_elbo(self):
        """It uses the same bits each time. Compared with the mean over many draws."""
        found, state = trained(None, replace(FULL, epochs=1))
        bits = binarised(images()[-10:], derived_seed("validation bits"))
        elbo = found.elbo(bits, samples=3000).elbo.mean().item()
        assert state.history[0]["validation_elbo"] == pytest.approx(elbo, abs=0.5)

    def test_all_images_cannot_be_held_out(self):
        with pytest.raises(TrainingError, match="50 images cannot be held out of 50"):
            trained(None, replace(FULL, validation=50))


class TestFailure:
    def test_a_model_that_diverges(self, tmp_path):
        """The error takes one line."""
        wild = replace(SHORT, learning_rate=1e6)
        with pytest.raises(TrainingError, match=r"^epoch 1 of 4: the ELBO is no longer finite .*$") as raised:
            trained(tmp_path / "run", wild, "gaussian")
        assert "\n" not in str(raised.value)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("part", ["elbo", "validation_elbo"])
    def test_an_elbo_that_is_not_finite(self, part, tmp_path, monkeypatch):
        """The checkpoint of the last complete epoch is kept."""
        one_step = replace(FULL, batch=100)
        trained(tmp_path / "run", replace(one_step, epochs=2))
        before = (tmp_path / "run").read_bytes()
        if part == "elbo":
            elbo = HypersphericalVAE.elbo

            def nan(*given, **more):
                found = elbo(*given, **more)
                return found._replace(elbo=found.elbo * float("nan"))

            monkeypatch.setattr(HypersphericalVAE, "elbo", nan)
        monkeypatch.setattr(training, "_mean_elbo", lambda *_: -1.0 if part == "elbo" else float("nan"))
        with pytest.raises(TrainingError, match=rf"^epoch 3 of 4: .*'{part}': nan"):
            trained(tmp_path / "run", one_step)
        assert (tmp_path / "run").read_bytes() == before


class TestRandomness:
    def test_seeds_are_distinct(self):
        parts = [(s, e, what) for s in range(10) for e in range(10) for what in ("order", "noise")]
        parts += [("1", 2), (1, 2), (12,), (1, "2"), ("a", "bc"), ("ab", "c"), ("abc",), ()]
        seeds = {derived_seed(*each) for each in parts}
        assert len(seeds) == len(parts)
        assert all(0 <= seed < 2**63 for seed in seeds)

    def test_a_seed_is_the_same_everywhere(self):
        assert derived_seed(0, "weights") == 5087778715007104936

    def test_binarised(self):
        data = images(20_000)
        state = torch.get_rng_state()
        bits = binarised(data, 5)
        assert torch.equal(bits, binarised(data, 5))
        assert not torch.equal(bits, binarised(data, 6))
        assert torch.equal(state, torch.get_rng_state())  # nobody else's numbers change
        assert bits.unique().tolist() == [0, 1]
        # The probability of a bit is the intensity: the mean of 320,000 has a deviation below 1e-3.
        assert (bits - data).mean().abs() < 5e-3
        assert ((bits - data) * data).mean().abs() < 5e-3

    def test_black_and_white_stay(self):
        data = images().round()
        assert torch.equal(binarised(data, 0), data)


@needs_cuda
class TestCuda:
    @posteriors
    @protocols
    def test_a_run_that_was_stopped_comes_to_the_same_numbers(self, posterior, protocol, tmp_path):
        trained(tmp_path / "whole", protocol, posterior, "cuda")
        with pytest.raises(Stopped):
            trained(tmp_path / "parts", protocol, posterior, "cuda", progress=at_call(2, stop))
        trained(tmp_path / "parts", protocol, posterior, "cuda")
        assert_same_files(tmp_path / "whole", tmp_path / "parts")

    @posteriors
    def test_captured_steps_learn_as_others_do(self, posterior, monkeypatch):
        """The draws differ, but the ELBO, a mean over many images, is nearly the same."""
        data, results = images(2000, "cuda"), []
        for captured in (True, False):
            if not captured:
                monkeypatch.setattr(training, "CapturedStep", lambda step, batch: step)
            state = train(model(posterior, "cuda"), data, SHORT, seed=SEED)
            results.append([epoch["elbo"] for epoch in state.history])
        assert results[0] == pytest.approx(results[1], abs=0.3)

    def test_capturing_changes_nothing(self):
        one, data = model(device="cuda"), images(device="cuda")
        with training.own_stream(data.device):
            optimizer = training.adam(one, data.device)
            step = training.Step(one, 1, optimizer, data)
            before = [tensor.clone() for tensor in training._tensors_of(optimizer)]
            training.CapturedStep(step, 8)
            after = training._tensors_of(optimizer)
        assert same(before, [tensor.detach() for tensor in after])
