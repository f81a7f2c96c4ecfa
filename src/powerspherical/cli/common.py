"""Helpers that the commands share: failures, checks of options, and progress. Imports no optional package."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

import torch

from powerspherical._extras import install_hint

LARGEST_SEED = 2**32 - 1  # NumPy's legacy generator accepts no larger seed
_ESCAPE = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\a\x1b]*(\a|\x1b\\)|[ -/]*[0-~])"
)  # CSI, OSC, and short ones


class Failure(Exception):
    """Ends the command with a one-line message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def describe(error: Exception) -> str:
    """The message of an error, preceded by its type unless the error is one of this project."""
    own = type(error).__module__.startswith("powerspherical")
    return str(error) if own else f"{type(error).__name__}: {error}"


def wrong(option: str, message: str) -> Exception:
    """The exception to raise for an invalid value of an option or argument."""
    if find_spec("typer") is None:  # a bare install, where `info` runs
        return Failure(f"Invalid value for '{option}': {message}", 2)
    from typer import BadParameter

    return BadParameter(message, param_hint=f"'{option}'")


def plain(text: object) -> str:
    """A text from the user in one line, without anything that a terminal would obey."""
    visible = " ".join(_ESCAPE.sub("", str(text)).split())
    return "".join(character if character.isprintable() else "\ufffd" for character in visible)


def tell(notice: str) -> None:
    """Print a one-line notice on the standard error."""
    print("powerspherical:", plain(notice), file=sys.stderr)


def require(*modules: str, needed_for: str) -> None:
    """Raise `Failure`, with the extra to install, unless all modules can be imported."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise Failure(f"{needed_for} needs {', '.join(missing)}; run: {install_hint('cli')}", 2)


def require_device(device: str) -> None:
    """Raise unless torch can allocate on the device."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise wrong("--device", str(error).splitlines()[0]) from error


def require_folder(folder: Path) -> None:
    """Create the folder if needed. Raises if the folder is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permission bits do not tell for root or on a read-only disk
    except OSError as error:
        raise wrong("--out", f"cannot write in the folder {folder}: {error.strerror}") from error


@contextmanager
def status(doing: str, *, hidden: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a status line on the standard error if it is a terminal. Yields a function that changes the text."""
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, quiet=hidden).status(Text(plain(doing))) as shown:
        yield lambda text: shown.update(Text(plain(text)))
