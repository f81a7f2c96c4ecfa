"""Compiles the C library of ``powerspherical.kernels`` while a wheel or an editable install is built.

Without a C compiler the installation succeeds, as a pure Python package. Two environment variables are for releases
(``tools/wheels.py``):

    POWERSPHERICAL_REQUIRE_NATIVE=1    a missing or failing compiler is an error; pip would not show a warning
    POWERSPHERICAL_PLATFORM=TAG        platform tag of the wheel, for instance manylinux_2_17_x86_64

The library has no Python inside, so that one wheel per platform serves every version of Python.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging import tags

NATIVE = "src/powerspherical/kernels"


class NativeLibrary(BuildHookInterface):
    """Adds the library to the wheel, if it can be compiled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling about the result; ``version`` is "standard" or "editable"."""
        build = _build_module(Path(self.root))
        library = Path(self.root, "build", build.NAME)
        try:
            build.build(library)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            if os.environ.get("POWERSPHERICAL_REQUIRE_NATIVE") == "1":
                raise
            self.app.display_warning(f"without the native library, draws on the CPU take longer: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        included = "force_include_editable" if version == "editable" else "force_include"
        build_data[included][str(library)] = build.INSTALLED


def platform_tag() -> str:
    """The platform tag of the wheel.

    By default the most specific one that pip accepts here. With glibc 2.36 that is manylinux_2_36_x86_64, because the
    library was linked against that version.
    """
    if released := os.environ.get("POWERSPHERICAL_PLATFORM"):
        return released
    accepted = list(tags.platform_tags())
    return next((tag for tag in accepted if not tag.startswith("linux_")), accepted[0])


def _build_module(root: Path) -> ModuleType:
    """The module that compiles, without the package around it, which would import torch."""
    spec = importlib.util.spec_from_file_location("native_build", root / NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
