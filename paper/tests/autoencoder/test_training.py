"""Training: single steps, exact resumption after an interruption, and errors."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from helpers.stopping import WITHIN_THIRD, Stopped, at_call, same, stop
from powerspherical.nn import CheckpointError, load_checkpoint, save_checkpoint
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
devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
    ],
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums over several threads may differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def images(n=50, device="cpu"):
    return torch.rand(n, PIXELS, generator=torch.Generator().manual_seed(1)).to(device)


def model(posterior="power_spherical", device="cpu"):
    torch.manual_seed(3)
    return build(posterior, 3, PIXELS).to(device)


def trained(path, protocol=SHORT, posterior="power_spherical", device="cpu", **options):
    """Train from the start or from a checkpoint; return the model and the state."""
    found = model(posterior, device)
    return found, train(found, images(device=device), protocol, seed=SEED, path=path, **options)


def watched(found):
    """Record the rows of bits that a model encodes."""
    seen = []
    found.encoder.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs[0].tolist()))
    return seen


def assert_same_files(first, second):
    """The checkpoints are bitwise equal, except for the running time."""
    one, two = load_checkpoint(first), load_checkpoint(second)
    assert one.pop("seconds") > 0
    assert two.pop("seconds") > 0
    assert same(one, two)


class TestStopping:
    @devices
    @posteriors
    @protocols
    def test_a_run_that_was_stopped_comes_to_the_same_numbers(self, posterior, protocol, device, tmp_path):
        whole, expected = trained(tmp_path / "whole", protocol, posterior, device)
        progress = at_call(WITHIN_THIRD if device == "cpu" else 2, stop)
        with pytest.raises(Stopped):
            trained(tmp_path / "parts", protocol, posterior, device, progress=progress)
        assert load_checkpoint(tmp_path / "parts")["epoch"] == 2
        found, state = trained(tmp_path / "parts", protocol, posterior, device)
        assert state.history == expected.history
        assert same(found.state_dict(), whole.state_dict())
        assert_same_files(tmp_path / "whole", tmp_path / "parts")

    @pytest.mark.slow
    def test_a_run_that_was_killed(self, tmp_path):
        """With a real `kill -9` while it writes, after two epochs."""
        folder, path = Path(__file__).parent, tmp_path / "killed"
        code = f"""
import os, pathlib, sys
sys.path += [{str(folder)!r}, {str(folder.parents[2] / "tests")!r}]
import test_training as here
from helpers import stopping
os.fsync = stopping.at_call(3, stopping.wait)
here.trained(pathlib.Path({str(path)!r}), here.FULL)
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "waiting\n"
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert load_checkpoint(path)["epoch"] == 2
        trained(path, FULL)
        trained(tmp_path / "whole", FULL)
        assert_same_files(tmp_path / "whole", path)

    def test_a_run_that_is_done_is_not_trained_again(self, tmp_path):
        first, expected = trained(tmp_path / "run", FULL)
        content = (tmp_path / "run").read_bytes()
        second = model()
        seen = watched(second)
        state = train(second, images(), FULL, seed=SEED, path=tmp_path / "run")
        assert seen == []
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

    def test_a_damaged_checkpoint(self, tmp_path):
        path = tmp_path / "run.safetensors"
        trained(path)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(CheckpointError, match=r"run\.safetensors is truncated or damaged .*delete it"):
            trained(path)

    def test_the_seed_is_all_that_is_random(self):
        found = []
        for seed in (1, 1, 2):
            one = model()
            torch.rand(len(found))  # whatever was drawn before
            found.append((train(one, images(), SHORT, seed=seed).history, one.state_dict()))
        assert same(found[0], found[1])
        assert found[0][0] != found[2][0]


class TestEpochs:
    @devices
    def test_an_epoch_is_a_plain_loop(self, device):
        """Against a plain training loop with torch's default Adam. On a GPU the draws differ, but not their law."""
        n = 50 if device == "cpu" else 2000
        protocol = replace(FULL, epochs=2, draws=3, validation=0)
        found, plain, data = model(device=device), model(device=device), images(n, device)
        fractions = []
        state = train(found, data, protocol, seed=SEED, progress=fractions.append)
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1
        optimizer = torch.optim.Adam(plain.parameters(), lr=1.0)
        means = []
        for epoch in range(2):
            optimizer.param_groups[0]["lr"] = protocol.rate(epoch)
            order = torch.Generator().manual_seed(derived_seed(SEED, epoch, "order"))
            batches = torch.randperm(n, generator=order).to(device).split(SHORT.batch)
            torch.manual_seed(derived_seed(SEED, epoch, "noise", 0))
            total = 0.0
            for batch in batches:
                optimizer.zero_grad()
                elbo = plain.elbo(torch.bernoulli(data[batch]), samples=3).elbo
                (-elbo.mean()).backward()
                optimizer.step()
                total += elbo.sum().item()
            means.append(total / n)
        elbos = [epoch["elbo"] for epoch in state.history]
        if device == "cpu":
            assert elbos == pytest.approx(means, rel=1e-5)
            torch.testing.assert_close(found.state_dict(), plain.state_dict(), rtol=0, atol=1e-5)
        else:
            assert elbos == pytest.approx(means, abs=0.3)

    def test_every_image_is_seen_once_in_a_new_order_with_new_bits(self):
        """Images of which each is black in its own pixel, and random in the last one."""
        found = model()
        seen = watched(found)
        data = torch.eye(PIXELS)
        data[:, -1] = 0.5
        train(found, data, replace(SHORT, epochs=2), seed=SEED)
        first, second = torch.tensor(seen).split(PIXELS)
        orders = [epoch[:, :-1].argmax(-1) for epoch in (first, second)]
        assert not torch.equal(*orders)
        for epoch in (first, second):
            assert torch.equal(epoch[:, :-1].sum(0), torch.ones(PIXELS - 1))
            assert epoch[:, -1].unique().tolist() == [0, 1]
        bits = [epoch[order.argsort(), -1] for epoch, order in zip((first, second), orders, strict=True)]
        assert not torch.equal(*bits)

    def test_rates(self):
        assert [Protocol().rate(epoch) for epoch in (0, 50, 99)] == [1e-3] * 3
        cosine = replace(Protocol(), cosine=True, epochs=60)
        rates = [cosine.rate(epoch) for epoch in (0, 20, 30, 40)]
        assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
        assert 0 < cosine.rate(59) < 1e-6


class TestValidation:
    def test_the_best_epoch_is_kept(self, tmp_path):
        """With a rate at which the ELBO falls again: the model is that of a run that ended at its best epoch."""
        protocol = replace(FULL, cosine=False, epochs=12, learning_rate=0.05)
        found, state = trained(tmp_path / "run", protocol)
        elbos = [epoch["validation_elbo"] for epoch in state.history]
        best = elbos.index(max(elbos)) + 1
        assert (state.best["epoch"], state.best["elbo"], state.epoch) == (best, max(elbos), 12)
        assert best < 12
        trained(tmp_path / "short", replace(protocol, epochs=best))
        assert same(found.state_dict(), load_checkpoint(tmp_path / "short")["model"])
        assert same(load_checkpoint(tmp_path / "run")["best"]["model"], found.state_dict())

    def test_images_held_out_are_not_trained_on(self, tmp_path):
        """The last ten images do not affect the training."""
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
        with pytest.raises(TrainingError, match="50 images cannot be held out of 50"):
            trained(None, replace(FULL, validation=50))

    def test_its_elbo(self):
        """It uses the same bits each time. Compared with the mean over many draws."""
        found, state = trained(None, replace(FULL, epochs=1))
        bits = binarised(images()[-10:], derived_seed("validation bits"))
        elbo = found.elbo(bits, samples=3000).elbo.mean().item()
        assert state.history[0]["validation_elbo"] == pytest.approx(elbo, abs=0.5)


class TestFailure:
    @pytest.mark.parametrize("part", ["elbo", "validation_elbo"])
    def test_an_elbo_that_is_not_finite(self, part, tmp_path):
        """An image is NaN, in training or held out. The checkpoint of the last complete epoch is kept."""
        one_step = replace(FULL, batch=100)
        trained(tmp_path / "run", replace(one_step, epochs=2))
        before = (tmp_path / "run").read_bytes()
        found = model()
        which = iter([part == "elbo", part != "elbo"])  # an epoch has one training step and one validation
        found.encoder.register_forward_hook(lambda *given: given[-1] * (float("nan") if next(which) else 1.0))
        with pytest.raises(TrainingError, match=rf"^epoch 3 of 4: .*'{part}': nan"):
            train(found, images(), one_step, seed=SEED, path=tmp_path / "run")
        assert (tmp_path / "run").read_bytes() == before


class TestRandomness:
    def test_seeds(self):
        """They are distinct, and the same everywhere."""
        parts = [*product(range(10), range(10), ("order", "noise")), ("1", 2), (1, 2), (12,), (1, "2"), ()]
        assert len({derived_seed(*each) for each in parts}) == len(parts)
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
        assert torch.equal(binarised(data.round(), 0), data.round())
