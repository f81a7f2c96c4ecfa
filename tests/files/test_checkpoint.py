"""Checkpoints: exact round trips, errors that name a damaged file, and atomic writes."""

import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from helpers.stopping import same
from powerspherical._extras import install_hint
from powerspherical.nn import CheckpointError, load_checkpoint, save_checkpoint


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "folder" / "run.safetensors"


STATE = {"weights": torch.arange(6.0).reshape(2, 3), "epoch": 3, "history": [{"elbo": -1.5}, {"elbo": -1.25}]}


class TestRoundTrip:
    def test_model_and_optimizer(self, path):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2))
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "epoch": 1}
        assert save_checkpoint(path, state) == path
        found = load_checkpoint(path)
        assert same(found, state)
        assert 0 in found["optimizer"]["state"]  # a number, not "0"
        assert found["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
        other = torch.optim.Adam(model.parameters())
        other.load_state_dict(found["optimizer"])
        assert same(other.state_dict(), state["optimizer"])

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.randn(3, dtype=torch.bfloat16),
            torch.randn(3, dtype=torch.float16),
            torch.randn(3, dtype=torch.float64),
            torch.randn(3, dtype=torch.complex64),
            torch.tensor([1, -(2**62)]),
            torch.tensor([0, 255], dtype=torch.uint8),
            torch.tensor([True, False]),
            torch.tensor(2.5),
            torch.tensor(False),
            torch.zeros(0, 4),
            torch.tensor([float("inf"), -0.0]),
            torch.arange(6.0).reshape(2, 3).T,
            torch.arange(6.0)[::2],
            torch.ones(1).expand(4),
            torch.tensor(1.0).expand(1),
            torch.tensor(1.0).expand(2, 1, 3),
            torch.tensor(1.0).expand(0),
            torch.ones(2, 3)[:, :1][:1, 0],
            torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
            torch.tensor([1 + 2j]).conj(),
            torch.tensor([1 + 2j]).conj().imag,
            torch.ones(3, dtype=torch.float8_e4m3fn),
            torch.tensor([2**63], dtype=torch.uint64),
            nn.Parameter(torch.ones(2)).data,
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
            {
                "nothing": None,
                "flag": True,
                "count": 0,
                "rate": 1e-300,
                "far": float("inf"),
                "name": "μ\n\"'\0",
            },
            {"empty": [{}, [], (), ""], "deep": [[({"a": (1, [2.0])},)]]},
            {
                0: "zero",
                "0": "text",
                None: 1,
                1.5: 2,
                "$tensor": 3,
                "$items": [4],
                "$tuple": {"$tensor": "x"},
            },
            {"__metadata__": torch.ones(1), "powerspherical.state": torch.zeros(1)},
        ],
    )
    def test_all_else(self, state, path):
        save_checkpoint(path, state)
        assert same(load_checkpoint(path), state)

    def test_names_that_look_alike_stay_apart(self, path):
        one, two, three, four = torch.arange(4.0).unbind()
        state = {
            "a/b": one,
            "a": {"b": two},
            "a['b']": three,
            "x": {0: three, "0": four},
            "l": [one, {"0": two}],
        }
        save_checkpoint(path, state)
        assert same(load_checkpoint(path), state)

    def test_tied_weights(self, path):
        weight = torch.randn(4, 4)
        state = {"encoder": weight, "decoder": weight, "transposed": weight.T, "row": weight[1]}
        save_checkpoint(path, state)
        found = load_checkpoint(path)
        assert same(found, state)
        found["encoder"].zero_()
        assert same(found["decoder"], weight)  # each tied weight is saved as a separate tensor

    def test_what_is_read_can_be_changed_and_leaves_the_file_alone(self, path):
        save_checkpoint(path, STATE)
        load_checkpoint(path)["weights"].add_(1)
        assert same(load_checkpoint(path), STATE)

    def test_ordered_dicts_are_dicts(self, path):
        save_checkpoint(path, {"model": OrderedDict(a=1)})
        assert same(load_checkpoint(path), {"model": {"a": 1}})

    def test_gradients_are_not_kept(self, path):
        save_checkpoint(path, {"w": nn.Parameter(torch.ones(2))})
        assert not load_checkpoint(path)["w"].requires_grad

    def test_device(self, path):
        save_checkpoint(path, STATE)
        assert load_checkpoint(str(path), "meta")["weights"].is_meta


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"model": {"bad": {1, 2}}}, "state['model']['bad'] of type set"),
        ({"list": [0, np.float32(1)]}, "state['list'][1] of type float32"),
        ({"tuple": (b"bytes",)}, "state['tuple'][0] of type bytes"),
        ({"model": {("a", 1): 0}}, "state['model'], which has the key ('a', 1)"),
        ({"z": torch.zeros(2, dtype=torch.complex128)}, "state['z'], a torch.strided torch.complex128"),
        ({"four bits": torch.zeros(2, dtype=torch.float4_e2m1fn_x2)}, "state['four bits'], a torch.strided"),
        ({"sparse": torch.eye(2).to_sparse()}, "state['sparse'], a torch.sparse_coo"),
        ({"empty": torch.zeros(2, device="meta")}, "state['empty'], a torch.strided torch.float32 on meta"),
        (object(), "state of type object"),
    ],
)
def test_what_it_cannot_hold_is_named(state, names, path):
    save_checkpoint(path, STATE)
    with pytest.raises(TypeError) as raised:
        save_checkpoint(path, state)
    assert names in str(raised.value)
    assert same(load_checkpoint(path), STATE)


class TestDamage:
    @pytest.fixture
    def content(self, path):
        return save_checkpoint(path, STATE).read_bytes()

    def refused(self, path, content):
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as raised:
            load_checkpoint(path)
        assert str(path) in str(raised.value)
        return str(raised.value)

    @pytest.mark.slow
    def test_truncated_anywhere(self, path, content):
        for length in range(len(content)):
            assert "delete it to start again" in self.refused(path, content[:length])

    def test_zeros(self, path, content):
        self.refused(path, bytes(64) + content[64:])
        self.refused(path, bytes(len(content)))

    def test_something_added(self, path, content):
        self.refused(path, content + b"\0")

    def test_a_flipped_bit_anywhere(self, path, content):
        for place in range(len(content)):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            self.refused(path, bytes(flipped))

    def test_not_ours(self, path, content):
        save_file({"w": torch.ones(2)}, path)
        assert "not a checkpoint of this library" in self.refused(path, path.read_bytes())
        self.refused(path, b"PK\3\4 a zip file, as torch.save writes")

    def test_a_pickle_is_not_run(self, path, content, tmp_path):
        class Attack:
            def __reduce__(self):
                return Path.touch, (tmp_path / "attacked",)

        self.refused(path, pickle.dumps(Attack()))
        assert not (tmp_path / "attacked").exists()

    def test_nothing_there(self, path, tmp_path):
        for place in (path, tmp_path):
            with pytest.raises(FileNotFoundError, match=f"no checkpoint {place}"):
                load_checkpoint(place)


@pytest.mark.slow
def test_a_core_install_names_the_extra(tmp_path):
    code = """
import sys
sys.modules["safetensors"] = None
from powerspherical.nn import load_checkpoint, save_checkpoint
for call in (lambda: save_checkpoint("a", {}), lambda: load_checkpoint("a")):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"checkpoints need safetensors: {install_hint('nn')}"] * 2
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_plain_safetensors(path):
    """Any safetensors reader finds the tensors, named by their path in the state."""
    save_checkpoint(path, {"model": {"w": STATE["weights"]}, "epoch": 3})
    assert same(load_file(path), {"state['model']['w']": STATE["weights"]})


@pytest.mark.parametrize("stage", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
def test_a_failure_while_writing_leaves_the_previous_one(stage, error, path, monkeypatch):
    save_checkpoint(path, STATE)

    def fail(*_):
        raise error

    monkeypatch.setattr(os, stage, fail)
    with pytest.raises(type(error)):
        save_checkpoint(path, {"epoch": 4})
    monkeypatch.undo()
    assert list(path.parent.iterdir()) == [path]
    assert same(load_checkpoint(path), STATE)


def test_it_is_on_the_disk_before_it_is_in_its_place(path, monkeypatch):
    save_checkpoint(path, STATE)
    calls = []

    def noted(name, function):
        return lambda *given: calls.append(name) or function(*given)

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    save_checkpoint(path, {"epoch": 4})
    assert calls == ["fsync", "replace"]
    assert load_checkpoint(path) == {"epoch": 4}
