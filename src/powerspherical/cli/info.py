"""`powerspherical info`: installed versions, devices, and a check of the numerical accuracy on this machine."""

import json
import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from rich.console import Console
from rich.table import Table
from typer import Option, Typer

from powerspherical.cli._common import Failure, require_device

PACKAGES = (
    *(
        "powerspherical",
        "torch",
        "numpy",
        "scipy",
        "scikit-learn",
        "dask",
        "pyarrow",
        "matplotlib",
        "pyro-ppl",
    ),
    *("safetensors", "pooch", "jinja2", "rich", "typer"),
)

Facts = dict[str, Any]


def add_to(app: Typer) -> None:
    """Add the command to the application."""

    @app.command()
    def info(
        device: Annotated[
            str,
            Option("--device", metavar="DEVICE", help="Where to check the accuracy: cpu, cuda, cuda:1, …"),
        ] = "cpu",
        as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
    ) -> None:
        """Show versions and devices, and check the accuracy.

        The check compares functions with exact values that ship with the package. The exit status is 1 if they are
        not accurate on this machine. Please include the output in bug reports.

        With --json the output is one object with three keys.

        "versions" maps "python" and package names to versions, or to null for a package that is not installed.

        "hardware" has "system", "cpu", "cores", "torch_threads", "device" (where the accuracy was checked), "cuda" (a
        list of GPUs) and "native_kernel" (which C library draws on the CPU, or why none does).

        "accuracy" is a list of checks. Each has "family", "quantity", "dtype", "worst" (the largest error, or null if
        it is not finite), "tolerance" and "passed".
        """
        require_device(device)
        with Console(stderr=True).status("comparing with exact values"):
            facts = gather(device)
        if as_json:
            print(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False))
        else:
            console = Console()
            for table in tables(facts):
                console.print(table)
        failed = [check for check in facts["accuracy"] if not check["passed"]]
        if failed:
            names = ", ".join(
                f"{check['family']} {check['quantity']} in {check['dtype']}" for check in failed
            )
            raise Failure(f"not accurate on this machine: {names}", 1)


def gather(device: str) -> Facts:
    """Everything to show, as JSON values. The help of the command describes the keys."""
    from powerspherical._native.library import description as native_kernel
    from powerspherical.experiments import accuracy
    from powerspherical.experiments.results import hardware, versions

    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    cuda = [f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus]
    return {
        "versions": versions(PACKAGES),
        "hardware": hardware(device) | {"cuda": cuda, "native_kernel": native_kernel()},
        "accuracy": [
            check._asdict()
            | {"worst": check.worst if math.isfinite(check.worst) else None, "passed": check.passed}
            for check in accuracy.check(device)
        ],
    }


def tables(facts: Facts) -> Iterator[Table]:
    """The facts as tables for the terminal."""
    versions = Table("package", "version", title="Versions", title_justify="left")
    for name, version in facts["versions"].items():
        versions.add_row(name, version or "not installed")
    yield versions

    machine = facts["hardware"]
    hardware = Table("device", "description", title="Devices", title_justify="left")
    hardware.add_row(
        "cpu", f"{machine['cpu']}, cores: {machine['cores']}, torch threads: {machine['torch_threads']}"
    )
    hardware.add_row("native kernel", machine["native_kernel"])
    for index, name in enumerate(machine["cuda"]):
        hardware.add_row(f"cuda:{index}", name)
    yield hardware

    title = f"Accuracy on {machine['device']}: the largest error against exact values"
    accuracy = Table("family", "quantity", "type", title=title, title_justify="left")
    for heading in ("worst", "allowed", ""):
        accuracy.add_column(heading, justify="right")
    for check in facts["accuracy"]:
        accuracy.add_row(
            *(check[key].replace("_", " ") for key in ("family", "quantity", "dtype")),
            "not finite" if check["worst"] is None else f"{check['worst']:.1e}",
            f"{check['tolerance']:.0e}",
            "passes" if check["passed"] else "[red]FAILS[/red]",
        )
    yield accuracy
