"""The command `powerspherical`.

    powerspherical reproduce [figure1|properties|stability|efficiency|vae|all]   the paper's figures and tables
    powerspherical sample [FAMILY|uniform]                                       random unit vectors, in a file
    powerspherical fit DATA                                                      a distribution for the rows of a file
    powerspherical cluster DATA -k K --out DIR                                   clusters, in a folder
    powerspherical predict MODEL DATA                                            the clusters of new rows
    powerspherical info                                                          versions, devices, accuracy

Each has its module here, and `--help` lists its options. The exit status is 0 when everything was written and every
check held, 1 when a check failed or something went wrong, 2 for wrong use or a missing extra, and 130 after Ctrl-C,
SIGTERM or SIGHUP. An error takes one line. Without arguments the command shows its help, and its exit status is 2.

Under `torchrun` every process runs the same command; the first one speaks for all, and another only when it fails.
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
    """Run the command and leave the process; `arguments` default to the process's own."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without κ must not cost the results of hours
    for name in ("SIGTERM", "SIGHUP"):  # end as Ctrl-C does, and so remove drafts; Windows has no SIGHUP
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
        with _one_voice():
            status = application()(args=list(arguments), prog_name="powerspherical", standalone_mode=False)
    except typer.TyperException as error:  # an unknown command or option, or a value that does not fit
        if not arguments and is_first_process():  # the message is the help
            print(error.format_message(), file=sys.stderr)
            return 2
        return _fail(f"{error.format_message()} (see powerspherical --help)", 2)
    except Failure as failure:
        return _fail(str(failure), failure.status)
    except Exception as error:
        return _fail(describe(error), 1)
    if status == 130:  # what typer makes of Ctrl-C
        return _fail("interrupted", 130)
    return status if isinstance(status, int) else 0


def application() -> "Typer":
    """The typer application, made when called: this module can be imported without the extra."""
    import typer

    from powerspherical import __version__
    from powerspherical.cli import cluster, fit, info, predict, reproduce, sample

    # Plain help: rich's boxes leave the texts a narrow column of an ordinary terminal.
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
        """The Power Spherical distribution, mixtures of it, and its paper, from a shell."""

    for command in (reproduce, sample, fit, cluster, predict, info):
        command.add_to(app)
    return app


def _fail(message: str, status: int) -> int:
    """Say in one line what went wrong, and return the status; a later process says only what befell itself."""
    first = is_first_process()
    if first or status == 1:
        speaker = "powerspherical" if first else f"powerspherical (rank {os.environ['RANK']})"
        print(f"{speaker}:", " ".join(message.split()), file=sys.stderr)
    return status


@contextmanager
def _one_voice() -> Iterator[None]:
    """Only the first of the processes that `torchrun` started is heard."""
    if is_first_process():
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield
