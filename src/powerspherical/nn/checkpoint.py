"""Checkpoints that are whole or not there, and that run no code when they are read.

A checkpoint is one safetensors file: the tensors, and in its header as JSON all the rest of the state and a digest of
everything. It is written beside its place, flushed to the disk and then moved there, so that a process killed at any
moment leaves the previous checkpoint or the new one, never half of one. Needs `safetensors`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: The entries of the file's header: the state, with its tensors replaced by their names, and the digest of all.
HEADER, DIGEST = "powerspherical.state", "powerspherical.digest"
TENSOR, ITEMS, TUPLE = "$tensor", "$items", "$tuple"


class CheckpointError(Exception):
    """A checkpoint that cannot be read; the message names the file."""


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> Path:
    """Write a state in one step and return its path.

    The state is a dict of tensors, numbers, strings, booleans, None, and lists, tuples and dicts of these, such as
    ``{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}``. Anything else raises
    ``TypeError``, before anything is written.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "run.safetensors"
    >>> _ = save_checkpoint(path, {"weights": torch.ones(2), "epoch": 3})
    >>> load_checkpoint(path)
    {'weights': tensor([1., 1.]), 'epoch': 3}
    """
    from safetensors.torch import save

    path = Path(path)
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_detached(state, "state", tensors))
    content = save(tensors, {HEADER: skeleton, DIGEST: _digest(skeleton, tensors)})
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
        # On the CPU first, where the digest is computed.
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if HEADER not in header:
                raise CheckpointError(f"{path} is a safetensors file, but no checkpoint of this library")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header.get(DIGEST) != _digest(header[HEADER], tensors):
            raise ValueError("its digest is not that of its content")
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is truncated or damaged ({error}); delete it to start again"
        ) from error
    return _attached(
        json.loads(header[HEADER]), {name: tensor.to(device) for name, tensor in tensors.items()}
    )


def _digest(skeleton: str, tensors: dict[str, Tensor]) -> str:
    """Of all that a checkpoint holds: safetensors itself does not see a flipped bit in a weight."""
    digest = hashlib.blake2b(skeleton.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _detached(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with each tensor moved to ``tensors``, under a name that is the way to it, and the name left behind."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.dtype == torch.complex128:
            raise TypeError(
                f"a checkpoint cannot hold {name}, a {value.layout} {value.dtype} on {value.device}"
            )
        # safetensors refuses tensors that share memory, as tied weights do; each is saved as its own.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: name}
    if isinstance(value, dict):
        for key in value:
            if not _is_plain(key):
                raise TypeError(f"a checkpoint cannot hold {name}, which has the key {key!r}")
        # JSON has only strings as keys, and optimisers count their parameters: pairs keep the numbers.
        return {ITEMS: [[key, _detached(item, f"{name}[{key!r}]", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_detached(item, f"{name}[{index}]", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if _is_plain(value):
        return value
    raise TypeError(f"a checkpoint cannot hold {name} of type {type(value).__name__}")


def _is_plain(value: Any) -> bool:
    """Whether JSON has it as it is."""
    return value is None or isinstance(value, bool | int | float | str)


def _attached(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of ``_detached``."""
    if isinstance(value, list):
        return [_attached(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if TUPLE in value:
        return tuple(_attached(item, tensors) for item in value[TUPLE])
    return {key: _attached(item, tensors) for key, item in value[ITEMS]}
