"""Atomic file writes: the content goes to a draft beside the file, which replaces the file when it is complete.

The name of a draft ends in the host's name, and the writing process holds a lock on the draft. The lock is released
when the process ends, however it ends. So a draft of this host that can be locked is stale, and the next write to the
folder removes it.
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
except ImportError:  # Windows: drafts are not locked, so stale ones cannot be recognised
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".powerspherical-draft-"


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield the path of a draft to write. It replaces ``path`` if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(path.parent)
    draft, file = _new_draft(path.parent)
    try:
        with file:
            yield draft
            os.fsync(file.fileno())  # the content must reach the disk before the rename does
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
        # OSError: a living process holds the lock, another user owns the draft, or the file system has no locks.
        with suppress(OSError), draft.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
            removed.append(draft)
    return removed


def _new_draft(folder: Path) -> tuple[Path, IO[bytes]]:
    """Create an empty draft. Returns its path and the open file that holds its lock."""
    while True:
        draft = folder / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}@{platform.node()}"
        file = draft.open("xb")
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        if draft.exists():
            return draft, file
        file.close()  # another process removed the draft before we locked it: try again
