"""Checkpoints that are written atomically and execute no code when they are read.

A checkpoint is one safetensors file. Its header holds the rest of the state as JSON, and a digest of everything. A
killed process leaves the previous checkpoint or the new one, never a partial one. Needs `safetensors` (extra ``nn``).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor

from powerspherical._extras import install_hint
from powerspherical._files.drafts import atomic_write

#: Header entries: the state with each tensor replaced by its name, and the digest.
HEADER, DIGEST = "powerspherical.state", "powerspherical.digest"
TENSOR, ITEMS, TUPLE = "$tensor", "$items", "$tuple"
#: The dtypes that safetensors can both write and read.
DTYPES = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}
#: What JSON represents as it is.
PLAIN = (NoneType, bool, int, float, str)
#: What reading the fields of a forged checkpoint may raise.
UNUSABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)


class CheckpointError(Exception):
    """A checkpoint cannot be read. The message names the file."""


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> Path:
    """Write a state atomically and return its path.

    The state is a dict of tensors, numbers, strings, booleans, None, and lists, tuples and dicts of these, such as
    ``{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}``. Other types raise
    ``TypeError`` before anything is written.

    >>> import tempfile, torch
    >>> path = save_checkpoint(f"{tempfile.mkdtemp()}/run.safetensors", {"weights": torch.ones(2), "epoch": 3})
    >>> load_checkpoint(path)
    {'weights': tensor([1., 1.]), 'epoch': 3}
    """
    safetensors, path = _safetensors(), Path(path)
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_without_tensors(state, "state", tensors))
    content = safetensors.torch.save(tensors, {HEADER: skeleton, DIGEST: _digest(skeleton, tensors)})
    with atomic_write(path) as draft:
        draft.write_bytes(content)
    return path


def load_checkpoint(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the state that ``save_checkpoint`` wrote, with its tensors on ``device``.

    Raises ``FileNotFoundError`` if there is no file, ``CheckpointError`` if it is truncated, damaged or not a
    checkpoint.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> path = save_checkpoint(f"{tempfile.mkdtemp()}/run.safetensors", {"model": model.state_dict()})
    >>> model.load_state_dict(load_checkpoint(path)["model"])
    <All keys matched successfully>
    """
    safetensors, device = _safetensors(), torch.device(device)
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:  # on the CPU, for the digest
            header = file.metadata() or {}
            if HEADER not in header:
                raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of this library")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if header.get(DIGEST) != _digest(header[HEADER], tensors):
            raise ValueError("its digest does not match its content")

        def restored(found: dict[str, Any]) -> Any:  # the inverse of ``_without_tensors``
            if TENSOR in found:
                return tensors[found[TENSOR]].to(device)
            return tuple(found[TUPLE]) if TUPLE in found else dict(found[ITEMS])

        state = json.loads(header[HEADER], object_hook=restored)
        if not isinstance(state, dict):
            raise ValueError("its header does not hold a state")
    except (safetensors.SafetensorError, *UNUSABLE) as error:
        raise CheckpointError(
            f"the checkpoint {path} is truncated or damaged ({error}); delete it to start again"
        ) from error
    return state


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f"checkpoints need safetensors: {install_hint('nn')}") from error
    return safetensors


def _digest(skeleton: str, tensors: dict[str, Tensor]) -> str:
    """Return a digest of everything in a checkpoint. safetensors itself does not detect a flipped bit."""
    digest = hashlib.blake2b(skeleton.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON. Each tensor moves to ``tensors`` under a unique name, which takes its place."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta or value.dtype not in DTYPES:
            raise TypeError(
                f"a checkpoint cannot hold {name}, a {value.layout} {value.dtype} on {value.device}"
            )
        # Clone, because safetensors rejects tensors that share memory, such as tied weights. `contiguous()` would keep
        # the strides of an axis of length one, which `view` in `_digest` rejects.
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {TENSOR: name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, PLAIN):
                raise TypeError(f"a checkpoint cannot hold {name}, which has the key {key!r}")
        # Pairs, because JSON keys are strings, but optimisers number their parameters.
        items = [[key, _without_tensors(item, f"{name}[{key!r}]", tensors)] for key, item in value.items()]
        return {ITEMS: items}
    if isinstance(value, list | tuple):
        items = [_without_tensors(item, f"{name}[{index}]", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, PLAIN):
        return value
    raise TypeError(f"a checkpoint cannot hold {name} of type {type(value).__name__}")
