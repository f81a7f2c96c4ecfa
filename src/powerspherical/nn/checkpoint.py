"""Checkpoints that are whole or not there, and that run no code when they are read.

A checkpoint is one safetensors file: the tensors, and in its header as JSON all the rest of the state. It is written
beside its place, flushed to the disk and then moved there, so that a process killed at any moment leaves the previous
checkpoint or the new one, never half of one. Needs `safetensors`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: The entry of the file's header that holds the state; its tensors are replaced by their names.
HEADER = "powerspherical.state"
TENSOR, ITEMS = "$tensor", "$items"


class CheckpointError(Exception):
    """A checkpoint that cannot be read; the message names the file."""


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> Path:
    """Write a state in one step and return its path.

    The state is a dict of tensors, numbers, strings, booleans, None, and lists and dicts of these, such as
    ``{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}``.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "run.safetensors"
    >>> _ = save_checkpoint(path, {"weights": torch.ones(2), "epoch": 3})
    >>> load_checkpoint(path)
    {'weights': tensor([1., 1.]), 'epoch': 3}
    """
    from safetensors.torch import save

    path = Path(path)
    tensors: dict[str, Tensor] = {}
    skeleton = _detached(state, "", tensors)
    content = save(tensors, {HEADER: json.dumps(skeleton)})
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the move must not reach the disk before the content
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def load_checkpoint(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that ``save_checkpoint`` wrote, with its tensors on a device.

    Raises ``FileNotFoundError`` if there is none, ``CheckpointError`` if it is truncated, damaged or not ours.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = (file.metadata() or {}).get(HEADER)
            if header is None:
                raise CheckpointError(f"{path} is a safetensors file, but no checkpoint of this library")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return _attached(json.loads(header), tensors)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is truncated or damaged ({error}); delete it to start again"
        ) from error


def _detached(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with each tensor moved to ``tensors`` and a reference to it left behind."""
    if isinstance(value, Tensor):
        # safetensors refuses tensors that share memory, as tied weights do; each is saved as its own.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: name}
    if isinstance(value, dict):
        # JSON has only strings as keys, and optimisers count their parameters: pairs keep the numbers.
        pairs = [[key, _detached(item, f"{name}/{key}", tensors)] for key, item in value.items()]
        return {ITEMS: pairs}
    if isinstance(value, list | tuple):
        return [_detached(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold {name or 'the state'} of type {type(value).__name__}")


def _attached(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of ``_detached``."""
    if isinstance(value, dict) and TENSOR in value:
        return tensors[value[TENSOR]]
    if isinstance(value, dict):
        return {key: _attached(item, tensors) for key, item in value[ITEMS]}
    if isinstance(value, list):
        return [_attached(item, tensors) for item in value]
    return value
