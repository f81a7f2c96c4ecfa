"""Decides which existing files a command may overwrite: never its inputs, and otherwise only files it wrote before.

JSON files, figures, HTML pages and models record which command wrote them. Arrays and CSV files do not, so overwriting
them needs --force, unless the command can recognise them in another way.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from powerspherical.cli.common import wrong
from powerspherical.nn import CheckpointError, load_checkpoint

_HEAD = 4096  # bytes at the start of a figure or page that are searched for the command's name


def require_free(
    outputs: Iterable[Path],
    *,
    force: bool,
    inputs: Iterable[Path] = (),
    is_own: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Raise if writing `outputs` would overwrite an input, or a file that the command did not write.

    `force` allows overwriting foreign files, never inputs. Inputs are recognised under any name: through links,
    relative paths, or another case.
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
                f"{path} exists, and this command did not write it: choose another name, or overwrite it"
                " with --force",
            )


def is_made_by(command: str, path: Path) -> bool:
    """Whether a file records that `powerspherical COMMAND` wrote it."""
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
        return False  # unreadable, or without the record
    marks = (f"Software\0{mark}", f"<dc:title>{mark}</dc:title>", f'<meta name="generator" content="{mark}">')
    return head.startswith(f"{mark} ") or any(text in head for text in marks)
