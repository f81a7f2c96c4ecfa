"""The command `powerspherical`.

Each command has its own module here. Other packages add commands through the entry-point group
`powerspherical.commands`: an entry point is a function that takes the typer application. The package in `paper/` adds
`reproduce` in this way. The exit status is

- 0 if everything was written and every check passed,
- 1 if a check failed or an error occurred,
- 2 for wrong usage or a missing extra (also without arguments, when the command shows its help),
- 130 after Ctrl-C, SIGTERM or SIGHUP.

An error prints one line.
"""

import ctypes
import io
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from powerspherical.cli import info
from powerspherical.cli.common import Failure, describe, require, tell

if TYPE_CHECKING:
    from typer import Typer

COMMANDS = "powerspherical.commands"
"""The entry-point group in which other packages name their commands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit the process. `arguments` default to `sys.argv[1:]`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot encode κ must not make a long run fail when it prints its results.
        sys.stdout.reconfigure(errors="replace")
    # Treat these signals as Ctrl-C, so that drafts are removed. Windows has no SIGHUP.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_DFL:
            signal.signal(getattr(signal, name), signal.default_int_handler)
    _return_freed_memory()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _return_freed_memory() -> None:
    """Have glibc return freed blocks to the system. By default it keeps tens of megabytes of them for each thread."""
    with suppress(AttributeError, OSError):  # other C libraries
        set_option = ctypes.CDLL(None).mallopt
        # M_ARENA_MAX, and M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes.
        for option, value in ((-8, 1), (-3, 2**22), (-1, 2**23)):
            set_option(option, value)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    try:
        return _run(arguments)
    except Exception as error:
        tell(describe(error))
        return error.status if isinstance(error, Failure) else 1


def _run(arguments: Sequence[str]) -> int:
    if "reproduce" in arguments[:1] and not metadata.entry_points(group=COMMANDS, name="reproduce"):
        where = "the package in paper/: in a checkout of the project, run pip install ./paper"
        raise Failure(f"reproduce comes with {where}", 2)
    if "info" in arguments[:1] and find_spec("typer") is None:
        info.run(arguments[1:])
        return 0
    require("rich", "typer", needed_for="the command")
    import typer

    try:
        status = application()(args=list(arguments), prog_name="powerspherical", standalone_mode=False)
    except typer.TyperException as error:  # an unknown command or option, or an invalid value
        if not arguments:  # the message is the help text
            print(error.format_message(), file=sys.stderr)
            return 2
        context = getattr(error, "ctx", None)
        command = "powerspherical" if context is None else context.command_path
        raise Failure(f"{error.format_message()} (see {command} --help)", 2) from error
    if status == 130:  # typer turns Ctrl-C into this status
        tell("interrupted")
    return status if isinstance(status, int) else 0


def application() -> "Typer":
    """Build the typer application. Imports typer only here, so that this module needs no extra."""
    import typer

    from powerspherical import __version__
    from powerspherical.cli import cluster, explore, fit, predict, sample

    # Plain help: rich's boxes leave only a narrow column for the text on an 80-column terminal.
    app = typer.Typer(
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            print(f"powerspherical {__version__}")
            raise typer.Exit

    @app.callback()
    def powerspherical(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Sample from, fit and cluster with distributions on the unit sphere.

        powerspherical COMMAND --help shows the options of a command.
        """

    for command in (cluster.cluster, predict.predict, fit.fit, sample.sample, explore.explore):
        app.command()(command)
    info.add_to(app)
    for point in metadata.entry_points(group=COMMANDS):
        try:
            point.load()(app)
        except Exception as error:  # must not stop the other commands
            tell(f"the command {point.name} cannot be loaded: {describe(error)}")
    return app
