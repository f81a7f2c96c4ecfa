"""What the commands share: how they fail, what they check of an option, and how they show progress."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import torch

from powerspherical._extras import install_hint
from powerspherical._files.drafts import remove_stale_drafts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


LARGEST_SEED = 2**32 - 1  # that all generators take, NumPy's old one included


class Failure(Exception):
    """An end that is not a success: one line for a person, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> int:
    """How many processes `torchrun` started, or one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def describe(error: Exception) -> str:
    """An error for a person: the package's own messages speak for themselves, others also need their type."""
    own = type(error).__module__.partition(".")[0] == "powerspherical"
    return str(error) if own else f"{type(error).__name__}: {error}"


def hyphenated(name: str) -> str:
    """A family's name as the command line spells it."""
    return name.replace("_", "-")


def underscored(choice: str) -> str:
    """The name of the family that the command line spells so."""
    return choice.replace("-", "_")


def wrong(option: str, message: str) -> Exception:
    """What to raise for a value that does not fit its option."""
    from typer import BadParameter

    return BadParameter(message, param_hint=f"'{option}'")


def require(*modules: str, needed_for: str, extra: str = "cli") -> None:
    """Raise for a missing extra unless these modules can be imported."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise Failure(f"{needed_for} needs {', '.join(missing)}; run: {install_hint(extra)}", 2)


def require_device(device: str) -> None:
    """Raise for wrong use unless torch knows the device and has it."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise wrong("--device", str(error).splitlines()[0]) from error


def require_folder(folder: Path) -> None:
    """Make the folder if need be, and remove stale drafts; raise for wrong use where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not tell: the superuser, read-only disks
    except OSError as error:
        raise wrong("--out", f"cannot write in the folder {folder}: {error.strerror}") from error
    for draft in remove_stale_drafts(folder):
        print(f"powerspherical: removed {draft}, which a run that was killed left behind", file=sys.stderr)


@contextmanager
def status(doing: str) -> Iterator[Callable[[str], None]]:
    """A line on the standard error that says what is being done, while it is done and if a terminal shows it."""
    from rich.console import Console

    with Console(stderr=True).status(doing) as shown:
        yield shown.update


def bars(console: "Console", *, hidden: bool = False) -> "Progress":
    """Progress bars that go away when they end, and are not there at all where no terminal shows them."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    )
