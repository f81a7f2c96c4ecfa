"""`powerspherical info`: what is installed, on what machine, and whether the functions are accurate there."""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import torch

from powerspherical.cli._common import Failure, require_device

if TYPE_CHECKING:
    from rich.console import RenderableType
    from typer import Typer

PACKAGES = (
    "powerspherical",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "dask",
    "pyarrow",
    "matplotlib",
    "pyro-ppl",
    "safetensors",
    "pooch",
    "jinja2",
    "rich",
    "typer",
)
"""The distributions whose versions are told."""

Facts = dict[str, Any]


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Option

    @app.command()
    def info(
        device: Annotated[
            str, Option(metavar="DEVICE", help="Where to check the accuracy: cpu, cuda, cuda:1, …")
        ] = "cpu",
        as_json: Annotated[bool, Option("--json", help="The same, as JSON.")] = False,
    ) -> None:
        """Show versions and devices, and check the accuracy.

        The functions are compared with exact values that ship with the package; the exit status is 1 if they are not
        accurate on this machine. Good to have in a bug report.
        """
        from rich.console import Console

        require_device(device)
        with Console(stderr=True).status("comparing with exact values"):
            facts = gather(device)
        if as_json:
            print(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False))
        else:
            console = Console()
            for part in tables(facts):
                console.print(part)
        failed = [check for check in facts["accuracy"] if not check["passed"]]
        if failed:
            names = ", ".join(
                f"{check['family']} {check['quantity']} in {check['dtype']}" for check in failed
            )
            raise Failure(f"not accurate on this machine: {names}", 1)


def gather(device: str) -> Facts:
    """All there is to show, as JSON can hold it; an error that is no number is `None`."""
    from powerspherical.experiments import accuracy
    from powerspherical.experiments.results import hardware, versions
    from powerspherical.sampling.native.library import description as native_kernel

    return {
        "versions": versions(PACKAGES),
        "hardware": hardware(device) | {"cuda": cuda_devices(), "native_kernel": native_kernel()},
        "accuracy": [
            check._asdict()
            | {"worst": check.worst if math.isfinite(check.worst) else None, "passed": check.passed}
            for check in accuracy.check(device)
        ],
    }


def cuda_devices() -> list[str]:
    """The name and the memory of each CUDA device."""
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"{device.name}, {device.total_memory / 2**30:.0f} GiB" for device in found]


def tables(facts: Facts) -> Iterable["RenderableType"]:
    """The same for a person."""
    from rich.table import Table

    versions = Table("package", "version", title="Versions", title_justify="left")
    for name, version in facts["versions"].items():
        versions.add_row(name, version or "not installed")
    yield versions

    machine = facts["hardware"]
    hardware = Table("device", "what it is", title="Devices", title_justify="left")
    hardware.add_row(
        "cpu", f"{machine['cpu']}, cores: {machine['cores']}, torch threads: {machine['torch_threads']}"
    )
    hardware.add_row("native kernel", machine["native_kernel"])
    for index, name in enumerate(machine["cuda"]):
        hardware.add_row(f"cuda:{index}", name)
    yield hardware

    accuracy = Table(
        "family",
        "quantity",
        "type",
        title=f"Accuracy on {machine['device']}: the worst error beside exact values",
        title_justify="left",
    )
    for heading in ("worst", "allowed", ""):
        accuracy.add_column(heading, justify="right")
    for check in facts["accuracy"]:
        worst = "no number" if check["worst"] is None else f"{check['worst']:.1e}"
        verdict = "holds" if check["passed"] else "[red]FAILS[/red]"
        accuracy.add_row(
            *(check[key].replace("_", " ") for key in ("family", "quantity", "dtype")),
            worst,
            f"{check['tolerance']:.0e}",
            verdict,
        )
    yield accuracy
