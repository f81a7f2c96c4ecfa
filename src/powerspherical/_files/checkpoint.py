"""Checkpoints that are whole or not there, and that run no code when they are read.

A checkpoint is one safetensors file: the tensors, and in its header as JSON all the rest of the state and a digest of
everything. It is written in one step, so a process that is killed leaves the previous checkpoint or the new one, never
half of one. Needs `safetensors` (extra ``nn``).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerspherical._extras import install_hint
from powerspherical._files.drafts import whole

#: The entries of the file's header: the state, with its tensors replaced by their names, and the digest of all.
HEADER, DIGEST = "powerspherical.state", "powerspherical.digest"
TENSOR, ITEMS, TUPLE = "$tensor", "$items", "$tuple"
#: The dtypes that safetensors can both write and read.
DTYPES = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
}


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
    _require_safetensors()
    from safetensors.torch import save

    path = Path(path)
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_detached(state, "state", tensors))
    content = save(tensors, {HEADER: skeleton, DIGEST: _digest(skeleton, tensors)})
    with whole(path) as draft:
        draft.write_bytes(content)
    return path


def load_checkpoint(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that ``save_checkpoint`` wrote, with its tensors on a device.

    Raises ``FileNotFoundError`` if there is none, ``CheckpointError`` if it is truncated, damaged or not ours.
    """
    _require_safetensors()
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


def _require_safetensors() -> None:
    """Raise an error that names the extra, where safetensors is missing."""
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise ImportError(f"checkpoints need safetensors: {install_hint('nn')}") from error


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
        if value.layout != torch.strided or value.is_meta or value.dtype not in DTYPES:
            raise TypeError(
                f"a checkpoint cannot hold {name}, a {value.layout} {value.dtype} on {value.device}"
            )
        # A copy, because safetensors refuses tensors that share memory, as tied weights do. `contiguous()` would keep
        # the strides of an axis of length one, which `view` in `_digest` does not accept.
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
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
