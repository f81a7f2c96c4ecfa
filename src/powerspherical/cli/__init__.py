"""The command `powerspherical`.

    powerspherical reproduce [figure1|properties|stability|efficiency|vae|all]   run the paper's experiments
    powerspherical sample [FAMILY|uniform]                                       draw random unit vectors
    powerspherical fit DATA                                                      fit one distribution to a file
    powerspherical cluster DATA -k K --out DIR                                   fit a mixture, write clusters
    powerspherical predict MODEL DATA                                            assign new rows to clusters
    powerspherical explore                                                       open an interactive page
    powerspherical info                                                          show versions, check accuracy

Each command has its own module here. The exit status is

- 0 if everything was written and every check passed,
- 1 if a check failed or an error occurred,
- 2 for wrong usage or a missing extra (also without arguments, when the command shows its help),
- 130 after Ctrl-C, SIGTERM or SIGHUP.

An error prints one line. Under `torchrun` every process runs the same command. Only rank 0 prints, except that every
process reports its own errors.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated

from powerspherical.cli._common import Failure, describe, is_first_process, require

if TYPE_CHECKING:
    from typer import Typer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit the process. `arguments` default to `sys.argv[1:]`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot encode κ must not make a long run fail when it prints its results.
        sys.stdout.reconfigure(errors="replace")
    # Treat these signals as Ctrl-C, so that drafts are removed. Windows has no SIGHUP.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_DFL:
            signal.signal(getattr(signal, name), signal.default_int_handler)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    try:
        extra = "experiments" if "reproduce" in arguments else "cli"
        require("rich", "typer", needed_for="the command", extra=extra)
    except Failure as failure:
        return _fail(str(failure), failure.status)
    import typer

    try:
        with _silent_unless_first():
            status = application()(args=list(arguments), prog_name="powerspherical", standalone_mode=False)
    except typer.TyperException as error:  # an unknown command or option, or an invalid value
        if not arguments and is_first_process():  # the message is the help text
            print(error.format_message(), file=sys.stderr)
            return 2
        context = getattr(error, "ctx", None)
        command = "powerspherical" if context is None else context.command_path
        return _fail(f"{error.format_message()} (see {command} --help)", 2)
    except Failure as failure:
        return _fail(str(failure), failure.status)
    except Exception as error:
        return _fail(describe(error), 1)
    if status == 130:  # typer turns Ctrl-C into this status
        return _fail("interrupted", 130)
    return status if isinstance(status, int) else 0


def application() -> "Typer":
    """Build the typer application. Imports typer only here, so that this module needs no extra."""
    import typer

    from powerspherical import __version__
    from powerspherical.cli import cluster, explore, fit, info, predict, reproduce, sample

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

    for command in (cluster, predict, fit, sample, explore, reproduce, info):
        command.add_to(app)
    return app


def _fail(message: str, status: int) -> int:
    """Print an error in one line and return the status. Other ranks stay silent about wrong usage."""
    first = is_first_process()
    if first or status == 1:
        speaker = "powerspherical" if first else f"powerspherical (rank {os.environ['RANK']})"
        print(f"{speaker}:", " ".join(message.split()), file=sys.stderr)
    return status


@contextmanager
def _silent_unless_first() -> Iterator[None]:
    """Discard the standard output of every `torchrun` process except rank 0."""
    if is_first_process():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield
