"""Copies the explorer, which is part of the package, into the site."""

import shutil
from pathlib import Path
from typing import Any

from powerspherical.cli.explore import PAGE


def copy_page(app: Any, failure: Exception | None) -> None:
    """Copy the folder of the page to ``explorer/`` of a finished HTML build."""
    if failure is None and app.builder.format == "html":
        shutil.copytree(PAGE.parent, Path(app.outdir) / "explorer", dirs_exist_ok=True)


def setup(app: Any) -> dict[str, bool]:
    """Register the copy with Sphinx."""
    app.connect("build-finished", copy_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
