"""Writing a file in one step: its content goes to a draft beside it, which is moved into place when it is complete.

A draft's name ends in the name of the host, and its process holds a lock on it. The lock ends with the process, however
it ends. So a draft of this host that can be locked was left behind, and the next write to the folder removes it.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: drafts are not locked, so none is ever known to be left behind
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".powerspherical-draft-"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a draft beside ``path``; move it there, once it is on the disk, if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(path.parent)
    draft, file = _new_draft(path.parent)
    try:
        with file:
            yield draft
            os.fsync(file.fileno())  # the move must not reach the disk before the content
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def remove_stale_drafts(folder: Path) -> list[Path]:
    """Remove the drafts that dead processes of this host left in the folder, and return their paths."""
    removed: list[Path] = []
    if fcntl is None:
        return removed
    for draft in folder.glob(f"{_PREFIX}*"):
        if draft.name.partition("@")[2] != platform.node():
            continue
        # OSError: the process lives and holds the lock, the draft is another user's, or locks do not work here.
        with suppress(OSError), draft.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
            removed.append(draft)
    return removed


def _new_draft(folder: Path) -> tuple[Path, IO[bytes]]:
    """An empty draft, and the open file that holds its lock."""
    while True:
        draft = folder / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}@{platform.node()}"
        file = draft.open("xb")
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        if draft.exists():
            return draft, file
        file.close()  # another process removed it before it was locked
