"""`powerspherical info`: installed versions, devices, and a check of the numerical accuracy on this machine.

It also runs without typer, so that it works in a bare install; `argparse` then reads its two options.
"""

import argparse
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch

from powerspherical._selfcheck import accuracy
from powerspherical._selfcheck.environment import hardware, versions
from powerspherical.cli.common import Failure, require_device
from powerspherical.kernels import launch, library

if TYPE_CHECKING:
    from typer import Typer

PACKAGES = (
    *("powerspherical", "torch", "numpy", "scipy", "scikit-learn", "dask", "pyarrow", "matplotlib"),
    *("pyro-ppl", "safetensors", "rich", "typer"),
)

Facts = dict[str, Any]


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Option

    from powerspherical.cli._options import Device

    @app.command()
    def info(
        device: Device = "cpu",
        as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
    ) -> None:
        """Show versions and devices, and check the accuracy.

        The check compares functions with exact values that ship with the package. The exit status is 1 if they are
        not accurate on this machine. Please include the output in bug reports.

        With --json the output is one object with three keys.

        "versions" maps "python" and package names to versions, or to null for a package that is not installed.

        "hardware" has "system", "cpu", "cores", "torch_threads", "device" (where the accuracy was checked), "cuda" (a
        list of GPUs), "native_kernel" (which C library draws on the CPU, or why none does) and "fused_kernels" (which
        Triton compiles the kernels for CUDA, or why none does).

        "accuracy" is a list of checks. Each has "family", "quantity", "dtype", "worst" (the largest error, or null if
        it is not finite), "tolerance" and "passed".
        """
        show(device, as_json=as_json)


def run(arguments: Sequence[str]) -> None:
    """Run the command without typer."""
    parser = argparse.ArgumentParser("powerspherical info", description="Show versions, check the accuracy.")
    parser.add_argument("--device", default="cpu", help="where to check the accuracy: cpu, cuda, cuda:1, …")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = parser.parse_args(arguments)
    show(given.device, as_json=given.json)


def show(device: str, *, as_json: bool) -> None:
    """Print the facts. Raises `Failure` if a function is not accurate on this machine."""
    require_device(device)
    facts = gather(device)
    print(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) if as_json else text(facts))
    failed = [check for check in facts["accuracy"] if not check["passed"]]
    if failed:
        names = ", ".join("{family} {quantity} in {dtype}".format(**check) for check in failed)
        raise Failure(f"not accurate on this machine: {names}", 1)


def gather(device: str) -> Facts:
    """Everything to show, as JSON values. The help of the command describes the keys."""
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    cuda = [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus]
    kernels = {"native_kernel": library.description(), "fused_kernels": launch.description()}
    machine = hardware(device) | {"cuda": cuda} | kernels
    checks = []
    for check in accuracy.check(device):
        worst = check.worst if math.isfinite(check.worst) else None
        checks.append(check._asdict() | {"worst": worst, "passed": check.passed})
    return {"versions": versions(PACKAGES), "hardware": machine, "accuracy": checks}


def text(facts: Facts) -> str:
    """The facts in tables for a person."""
    machine = facts["hardware"]
    shown = {key: value for key, value in machine.items() if key not in ("cuda", "device")}
    shown |= {f"cuda:{index}": name for index, name in enumerate(machine["cuda"])}
    checks: list[tuple[str, ...]] = [("family", "quantity", "type", "worst", "allowed", "")]
    for check in facts["accuracy"]:
        names = (check[key].replace("_", " ") for key in ("family", "quantity", "dtype"))
        worst = "not finite" if check["worst"] is None else f"{check['worst']:.1e}"
        checks.append((*names, worst, f"{check['tolerance']:.0e}", "passes" if check["passed"] else "FAILS"))
    tables: dict[str, list[tuple[str, ...]]] = {
        "Versions": [(name, number or "not installed") for name, number in facts["versions"].items()],
        "Hardware": [(name.replace("_", " "), str(value)) for name, value in shown.items()],
        f"Accuracy on {machine['device']}: the largest error against exact values": checks,
    }
    lines = []
    for title, rows in tables.items():
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [title, *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), ""]
    return "\n".join(lines)
