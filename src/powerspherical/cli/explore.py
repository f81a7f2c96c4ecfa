"""`powerspherical explore`: open the interactive page on distributions in a browser."""

import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Option

import powerspherical
from powerspherical.cli.common import Failure

PAGE = Path(powerspherical.__file__).parent / "explorer" / "index.html"


def explore(
    print_path: Annotated[bool, Option("--print-path", help="Print its path instead of opening it.")] = False,
) -> None:
    """Open an interactive page in the browser.

    The page shows draws and densities of two distributions, their KL divergences, entropies and cap angles, for the
    d, κ and angle that you choose. It is a local file and needs no network.
    """
    if print_path:
        print(PAGE)
    elif not webbrowser.open(PAGE.as_uri()):
        raise Failure(f"no browser was found: open this file in a browser: {PAGE}", 1)
