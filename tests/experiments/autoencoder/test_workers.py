"""Processes that share one training under `torchrun` give the same result as a single one."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.processes import in_two_processes
from helpers.stopping import WITHIN_THIRD, Stopped, at_call, same, stop
from powerspherical.experiments.autoencoder import runs, training, training_time, vae, workers
from powerspherical.experiments.autoencoder.datasets import load
from powerspherical.experiments.autoencoder.models import build
from powerspherical.experiments.autoencoder.runs import Run
from powerspherical.experiments.autoencoder.scores import score
from powerspherical.experiments.autoencoder.training import Protocol, Step, binarised, train
from powerspherical.experiments.autoencoder.workers import Workers
from powerspherical.experiments.results import Outcome
from powerspherical.nn import load_checkpoint, save_checkpoint

CPU = torch.device("cpu")
# 353 images are trained on: of the last batch, a single one, the second process has none.
IMAGES, PROTOCOL = 403, Protocol(epochs=3, batch=16, validation=50)


class Squares(nn.Module):
    """A deterministic loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)

    def forward(self, bits):
        return (self.linear(bits) - 1).square().sum()


def descended(team):
    """The result of plain gradient descent, whose steps show the scale of the gradient, and its losses."""
    loss = Squares()
    shared = DistributedDataParallel(loss) if team.size > 1 else loss
    bits = torch.randint(2, (21, 6), generator=torch.Generator().manual_seed(1)).float()
    step = Step(shared, torch.optim.SGD(loss.parameters(), lr=0.1), bits, team)
    for rows in torch.arange(21).split(4):
        step(rows)
    return {"weights": loss.state_dict(), "loss": team.sum(step.total)}


def trained(path, team, **options):
    torch.manual_seed(0)
    model = build("power_spherical", 5, 64)
    state = train(model, digits().train[:IMAGES], PROTOCOL, seed=0, path=path, team=team, **options)
    scores = score(model, binarised(digits().test, 0), samples=20, seed=0, team=team)
    return {"weights": model.state_dict(), "history": state.history, "scores": list(scores)}


def digits():
    return load("digits")


def table(folder, team):
    """The files that the experiment reports."""
    training_time.run = lambda *_, **__: Outcome([])
    vae.write_figure = lambda *_, **__: []  # it takes seconds
    vae.workers = lambda device: nullcontext(team)  # torch forms one group in the life of a process
    runs = [Run("power_spherical", 5, 0, Protocol(epochs=1))]
    outcome = vae.run(folder / "table", data="digits", runs=runs, samples=5)
    return sorted(path.name for path in outcome.files)


def in_each_process(folder):
    """The program that `torchrun` runs. Each process writes its result to a file named after its rank."""
    first = os.environ["RANK"] == "0"
    if not first:  # it writes nothing
        training.save_checkpoint = runs.write_text = vae.write_json = vae._figures = None
    with workers.workers(CPU) as team:
        found = {"descended": descended(team), "trained": trained(folder / "whole", team)}
        try:
            trained(folder / "parts", team, progress=at_call(WITHIN_THIRD, stop))
        except Stopped:
            found["stopped"] = load_checkpoint(folder / "parts")["epoch"]
        found["resumed"] = trained(folder / "parts", team)
        found["files"] = table(folder, team)
    save_checkpoint(folder / f"rank{team.rank}", found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the results of two processes."""
    folder = tmp_path_factory.mktemp("shared")
    in_two_processes(Path(__file__), "in_each_process", folder)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [load_checkpoint(folder / f"rank{rank}") for rank in range(2)]


@pytest.mark.slow
class TestTwoProcesses:
    def test_they_end_with_the_same(self, ranks):
        files = [rank.pop("files") for rank in ranks]
        assert same(*ranks)
        assert files == [["vae.json"], []]

    def test_their_gradient_is_that_of_the_whole_batch(self, ranks):
        torch.testing.assert_close(ranks[0]["descended"], descended(Workers()), rtol=1e-6, atol=1e-6)

    def test_stopped_and_resumed(self, ranks, folder):
        found = ranks[0]
        assert found["stopped"] == 2
        assert same(found["resumed"], found["trained"])
        one, two = (load_checkpoint(folder / name) for name in ("whole", "parts"))
        assert all(same(one[key], two[key]) for key in ("model", "optimizer", "history", "best"))

    def test_they_learn_what_one_does(self, ranks):
        alone = trained(None, Workers())
        for expected, found in zip(alone["history"], ranks[0]["trained"]["history"], strict=True):
            assert found == pytest.approx(expected, abs=1)
        assert ranks[0]["trained"]["scores"] == pytest.approx(alone["scores"], abs=1)
        assert not same(alone["weights"], ranks[0]["trained"]["weights"])  # they draw other numbers

    def test_the_table(self, folder):
        rows = json.loads((folder / "table" / "vae.json").read_text(encoding="utf-8"))["results"]
        assert [(row["posterior"], row["dim"]) for row in rows] == [("power_spherical", 5)]
        (known,) = (folder / "table" / "vae").glob("*/*.json")
        assert json.loads(known.read_text(encoding="utf-8"))["identity"]["processes"] == 2

    def test_nothing_else_is_left(self, folder):
        names = {path.name for path in folder.iterdir()}
        assert names == {"script.py", "whole", "parts", "table", "rank0", "rank1"}


class TestAlone:
    def test_one_process_needs_no_group(self, monkeypatch):
        for size in (None, "1"):
            if size:
                monkeypatch.setenv("WORLD_SIZE", size)
            with workers.workers(CPU) as team:
                assert team == Workers(0, 1)
                assert team.first
                assert not torch.distributed.is_initialized()
        assert team.sum(torch.tensor(3.0)) == 3

    def test_shares_are_all_rows_once(self):
        rows = torch.arange(7)
        shares = [Workers(rank, 3).share(rows) for rank in range(3)]
        assert [share.tolist() for share in shares] == [[0, 3, 6], [1, 4], [2, 5]]
        assert torch.equal(Workers().share(rows), rows)
        assert [Workers(rank, 3).first for rank in range(3)] == [True, False, False]


class TestGpus:
    """The choice of a GPU, tested without one."""

    @pytest.fixture
    def taken(self, monkeypatch):
        taken = []
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.distributed, "init_process_group", taken.append)
        monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
        monkeypatch.setenv("WORLD_SIZE", "8")
        return taken

    def test_each_takes_its_own(self, taken, monkeypatch):
        monkeypatch.setenv("LOCAL_RANK", "1")
        with workers.workers(torch.device("cuda")) as team:
            assert team == Workers(5, 8)
        assert taken == [1, "nccl"]

    def test_too_few(self, taken, monkeypatch):
        monkeypatch.setenv("LOCAL_RANK", "2")
        with (
            pytest.raises(ValueError, match="--nproc-per-node 2 or less"),
            workers.workers(torch.device("cuda")),
        ):
            pass
        assert taken == []
