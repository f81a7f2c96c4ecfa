"""Compiles the C library of ``powerspherical.kernels`` while a wheel or an editable install is built.

Without a C compiler the installation succeeds, as a pure Python package. Two environment variables are for releases:

    POWERSPHERICAL_REQUIRE_NATIVE=1    a missing or failing compiler is an error; pip would not show a warning
    POWERSPHERICAL_PLATFORM=TAG        platform tag of the wheel, for instance manylinux_2_17_x86_64

The library has no Python inside, so that one wheel per platform serves every version of Python.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/powerspherical/kernels"


class NativeLibrary(BuildHookInterface):
    """Adds the library to the wheel, if it can be compiled."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling about the result; ``version`` is "standard" or "editable"."""
        build = _build_module(Path(self.root))
        tag = os.environ.get("POWERSPHERICAL_PLATFORM") or sysconfig.get_platform()
        tag = tag.replace("-", "_").replace(".", "_")
        tag = tag.replace("universal2", platform.machine())  # the library is for one processor
        try:
            build.build(machine="x86_64" if tag.endswith(("x86_64", "amd64")) else tag)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            if os.environ.get("POWERSPHERICAL_REQUIRE_NATIVE") == "1":
                raise
            # One of an earlier build may be there, from other sources: it must not get into this wheel.
            build.LIBRARY.unlink(missing_ok=True)
            self.app.display_warning(f"without the native library, draws on the CPU take longer: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        build_data["artifacts"].append(f"{NATIVE}/{build.LIBRARY.name}")  # git ignores it


def _build_module(root: Path) -> ModuleType:
    """The module that compiles, without the package around it, which would import torch."""
    spec = importlib.util.spec_from_file_location("native_build", root / NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
