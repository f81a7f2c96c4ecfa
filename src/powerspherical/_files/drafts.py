"""Atomic file writes: the content goes to a draft beside the file, which replaces the file when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield the path of a draft to write. It replaces ``path`` if the block ends without an error.

    A symbolic link stays a link: the file that it points to is replaced. A file that exists keeps its mode, and nobody
    else can read its draft. The draft is called ``.NAME.draft``. The next write of the same file replaces a draft that
    a killed process left behind, so two processes must not write one file at the same time.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if path.exists() else 0o666))
        yield draft
        with draft.open("r+b") as file:
            os.fsync(file.fileno())  # the content must reach the disk before the rename does
        if path.exists():
            shutil.copymode(path, draft)
        os.replace(draft, path)  # Windows needs all handles to be closed here
    finally:
        draft.unlink(missing_ok=True)
