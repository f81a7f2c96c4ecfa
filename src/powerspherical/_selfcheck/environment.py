"""The installed versions and the machine, for `powerspherical info` and for the results of experiments."""

import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import powerspherical

PACKAGES = ("powerspherical", "torch", "numpy", "scipy", "matplotlib")
"""Packages whose versions every result records."""


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """The versions of Python and of the packages; `None` for a package that is not installed."""
    # The metadata may omit the build of torch, and be missing for this package.
    known = {"torch": str(torch.__version__), "powerspherical": powerspherical.__version__}
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in [*packages, "torch"]:
        try:
            found[name] = known.get(name) or version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def hardware(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The machine, and the device of a computation."""
    device = torch.device(device)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def cpu_model() -> str:
    """The model name of the processor, as far as the system reports it."""
    with suppress(OSError):  # only Linux has this file
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if found := re.search(r"^model name\s*: (.+)$", text, re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine() or "unknown"
