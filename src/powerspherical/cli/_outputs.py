"""What a command may write over: nothing that it reads, and only files that an earlier run of it made.

JSON, figures, pages and model files say which command made them. Arrays and tables of numbers do not: a command that
writes them must know in another way that one is its own, or else ask for --force.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from powerspherical.cli._common import wrong
from powerspherical.nn import CheckpointError, load_checkpoint

_HEAD = 4096  # bytes: the mark of a figure or a page is among its first


def require_free(
    outputs: Iterable[Path],
    *,
    force: bool,
    inputs: Iterable[Path] = (),
    is_own: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Raise for wrong use if writing `outputs` would destroy an input, or a file that is not the command's own.

    `force` allows the second, never the first. Inputs are found under any name: links, relative paths, other case.
    """
    sources = [file for path in inputs for file in (path.iterdir() if path.is_dir() else [path])]
    for path in outputs:
        if not os.path.lexists(path):
            continue
        if path.is_dir():
            raise wrong("--out", f"{path} is a folder")
        for source in sources:
            if path.exists() and source.exists() and path.samefile(source):
                raise wrong("--out", f"{path} is the input {source}: choose another name")
        if not force and not is_own(path):
            raise wrong(
                "--out",
                f"{path} exists, and nothing shows that this command made it: choose another name, or replace it"
                " with --force",
            )


def is_made_by(command: str, path: Path) -> bool:
    """Whether a file says that `powerspherical COMMAND` made it."""
    mark = f"powerspherical {command}"
    try:
        if path.suffix == ".safetensors":
            return bool(load_checkpoint(path)["notes"]["made_by"] == mark)
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))["command"]
            return found == mark or found.startswith(f"{mark} ")
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("latin-1")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, CheckpointError):
        return False  # another file of that name
    ways = (f"Software\0{mark}", f"<dc:title>{mark}</dc:title>", f'<meta name="generator" content="{mark}">')
    return head.startswith(f"{mark} ") or any(way in head for way in ways)
