"""Checkpoints: exact round trips, errors that name a damaged or forged file, and atomic writes."""

import hashlib
import os
import pickle
import stat
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from helpers.stopping import same
from powerspherical.nn import CheckpointError, load_checkpoint, save_checkpoint

STATE = {"weights": torch.arange(6.0).reshape(2, 3), "epoch": 3, "history": [{"elbo": -1.5}, {"elbo": -1.25}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "folder" / "run.safetensors"


class TestRoundTrip:
    def test_model_and_optimizer(self, path):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2))
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "epoch": 1}
        assert save_checkpoint(path, state) == path
        assert same(load_checkpoint(path), state)

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.randn(3, dtype=torch.bfloat16),
            torch.randn(3, dtype=torch.complex64),
            torch.tensor([True, False]),
            torch.tensor(2.5),
            torch.zeros(0, 4),
            torch.tensor([float("inf"), -0.0]),
            torch.arange(6.0).reshape(2, 3).T,
            torch.arange(6.0)[::2],
            torch.tensor(1.0).expand(2, 1, 3),
            torch.ones(2, 3)[:, :1][:1, 0],
            torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
            torch.tensor([1 + 2j]).conj().imag,
            torch.ones(3, dtype=torch.float8_e4m3fn),
            torch.tensor([2**63], dtype=torch.uint64),
        ],
        ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}{tensor.stride()}",
    )
    def test_tensors(self, tensor, path):
        save_checkpoint(path, {"it": tensor})
        assert same(load_checkpoint(path), {"it": tensor})

    @pytest.mark.parametrize(
        "state",
        [
            {},
            {"plain": [None, True, 0, 1e-300, float("inf"), "μ\n\"'\0"]},
            {"empty": [{}, [], (), ""], "deep": [[({"a": (1, [2.0])},)]]},
            {0: "zero", "0": "text", None: 1, 1.5: 2},
            {"$tensor": 3, "$items": [4], "$tuple": {"$tensor": "x"}},
            {"__metadata__": torch.ones(1), "powerspherical.state": torch.zeros(1)},
            {"a/b": torch.zeros(1), "a": {"b": torch.ones(1), 0: torch.ones(3)}, "a['b']": torch.ones(2)},
        ],
        ids=["empty", "plain", "nested", "keys", "own marks", "own names", "names that look alike"],
    )
    def test_all_else(self, state, path):
        save_checkpoint(path, state)
        assert same(load_checkpoint(path), state)

    def test_tied_weights_become_separate_tensors(self, path):
        weight = torch.randn(4, 4)
        state = {"encoder": weight, "decoder": weight, "transposed": weight.T, "row": weight[1]}
        save_checkpoint(path, state)
        found = load_checkpoint(path)
        found["encoder"].zero_()
        assert same(found["decoder"], weight)
        assert same(load_checkpoint(path), state), "the file stays as it was"

    def test_parameters_and_ordered_dicts_become_tensors_and_dicts(self, path):
        save_checkpoint(path, {"model": OrderedDict(w=nn.Parameter(torch.ones(2)))})
        found = load_checkpoint(path)
        assert same(found, {"model": {"w": torch.ones(2)}})
        assert not found["model"]["w"].requires_grad
        assert load_checkpoint(str(path), "meta")["model"]["w"].is_meta
        # Any safetensors reader finds the tensors, named by their path in the state.
        assert same(load_file(path), {"state['model']['w']": torch.ones(2)})


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"model": {"bad": {1, 2}}}, "state['model']['bad'] of type set"),
        ({"list": [0, np.float32(1)]}, "state['list'][1] of type float32"),
        ({"tuple": (b"bytes",)}, "state['tuple'][0] of type bytes"),
        ({"model": {("a", 1): 0}}, "state['model'], which has the key ('a', 1)"),
        ({"z": torch.zeros(2, dtype=torch.complex128)}, "state['z'], a torch.strided torch.complex128"),
        ({"sparse": torch.eye(2).to_sparse()}, "state['sparse'], a torch.sparse_coo"),
        ({"empty": torch.zeros(2, device="meta")}, "state['empty'], a torch.strided torch.float32 on meta"),
    ],
)
def test_what_it_cannot_hold_is_named(state, names, path):
    save_checkpoint(path, STATE)
    with pytest.raises(TypeError) as raised:
        save_checkpoint(path, state)
    assert names in str(raised.value)
    assert same(load_checkpoint(path), STATE)


@pytest.fixture
def content(path):
    return save_checkpoint(path, STATE).read_bytes()


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def assert_refused(path, content, says):
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(path)
    assert str(path) in str(raised.value)
    assert says in str(raised.value)


class TestDamage:
    def test_truncated_longer_or_flipped_anywhere(self, path, content):
        for length in (0, 7, 8, 100, len(content) - 1):
            assert_refused(path, content[:length], "delete it to start again")
        assert_refused(path, content + b"\0", "delete it to start again")
        assert_refused(path, content.replace(b"[2,3]", b"[3,2]"), "its digest does not match its content")
        for place in range(len(content)):
            assert_refused(path, flipped(content, place), "")

    def test_not_ours(self, path, content, tmp_path):
        class Attack:
            def __reduce__(self):
                return Path.touch, (tmp_path / "attacked",)

        save_file({"w": torch.ones(2)}, path)
        assert_refused(path, path.read_bytes(), "not a checkpoint of this library")
        assert_refused(path, pickle.dumps(Attack()), "is truncated or damaged")
        assert not (tmp_path / "attacked").exists()

    def test_nothing_there(self, path, tmp_path):
        for place in (path, tmp_path):
            with pytest.raises(FileNotFoundError, match=f"no checkpoint {place}"):
                load_checkpoint(place)

    @pytest.mark.parametrize(
        "header",
        [
            *('{"$tensor": "none"}', '{"$tensor": []}', '{"$tuple": 3}'),
            *('{"$items": [["a"]]}', '{"$items": [[[], 1]]}', '{"other": 1}'),
            *("[1, 2]", "{", "[" * 100_000),
        ],
        ids=lambda header: header[:12],
    )
    def test_a_forged_header(self, header, path):
        """Its digest is right, but its content is not a state."""
        save_checkpoint(path, {})
        with safe_open(path, "pt") as file:
            state, digest = sorted(file.metadata(), key=lambda name: name.endswith("digest"))
        forged = hashlib.blake2b(header.encode(), digest_size=16).hexdigest()
        save_file({}, path, {state: header, digest: forged})
        assert_refused(path, path.read_bytes(), "is truncated or damaged")


class TestWriting:
    @pytest.mark.parametrize("stage", ["fsync", "replace"])
    @pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
    def test_a_failure_leaves_the_previous_file(self, stage, error, path, monkeypatch):
        path.parent.mkdir(parents=True)
        path.with_name(f".{path.name}.draft").write_text("half")  # of a process that was killed
        save_checkpoint(path, STATE)
        assert list(path.parent.iterdir()) == [path]

        def fail(*_):
            raise error

        monkeypatch.setattr(os, stage, fail)
        with pytest.raises(type(error)):
            save_checkpoint(path, {"epoch": 4})
        monkeypatch.undo()
        assert list(path.parent.iterdir()) == [path]
        assert same(load_checkpoint(path), STATE)

    def test_the_draft_is_on_the_disk_before_it_takes_its_place(self, path, monkeypatch):
        calls = []

        def noted(name, function):
            def call(*given):
                # Windows cannot replace an open file.
                is_open = [entry.exists() and entry.samefile(draft) for entry in Path("/dev/fd").iterdir()]
                calls.append((name, any(is_open)))
                return function(*given)

            return call

        draft = path.with_name(f".{path.name}.draft")
        for name in ("fsync", "replace"):
            monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
        save_checkpoint(path, STATE)
        assert calls == [("fsync", True), ("replace", False)]

    def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual_mode(self, path):
        save_checkpoint(path, STATE)
        plain = path.with_name("plain")
        plain.write_text("")
        assert path.stat().st_mode == plain.stat().st_mode
        for mode in (0o600, 0o444):
            path.chmod(mode)
            save_checkpoint(path, STATE)
            assert stat.S_IMODE(path.stat().st_mode) == mode

    def test_a_link_stays_a_link(self, path, tmp_path):
        save_checkpoint(path, STATE)
        link = tmp_path / "latest"
        link.symlink_to(path)
        save_checkpoint(link, {"epoch": 4})
        assert link.readlink() == path
        assert load_checkpoint(path) == {"epoch": 4}
        assert [file.name for file in path.parent.iterdir()] == [path.name]
