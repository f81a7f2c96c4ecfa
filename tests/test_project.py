"""Promises about the project as a whole: which part may import which, what an import costs, versions."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mutants
from powerspherical import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "powerspherical"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}

# A part may import itself and the parts on earlier lines; parts on one line do not know each other.
LAYERS = [
    ["_extras", "engines", "formulas"],
    ["_files", "_torch"],
    ["kernels"],
    ["special"],
    ["quadrature", "jax"],
    ["families"],
    ["sampling"],
    ["distributions"],
    ["__init__"],  # the public names
    ["compat", "pyro", "nn", "mixture", "numpyro", "plot", "stats", "testing"],
    ["_selfcheck"],
    ["cli"],
    ["__main__"],
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
OPTIONAL = [
    *("dask", "jax", "jinja2", "matplotlib", "numpyro", "pooch", "pyarrow", "pyro"),
    *("rich", "safetensors", "scipy", "sklearn", "typer"),
]


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """The dotted name of everything that a file imports, at any depth, with its name in the file."""
    package = ".".join(path.relative_to(PACKAGE.parent).parent.parts)
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((f"{source}.{alias.name}", alias.asname or alias.name) for alias in node.names)


def test_imports_follow_the_arrow():
    found = set()
    for path in TREES:
        for name, _ in imported(path):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            other = other if other in RANK else "__init__"
            if top == "powerspherical" and other != part(path) and RANK[other] >= RANK[part(path)]:
                found.add((str(path.relative_to(ROOT)), name))
    assert found == set()


def test_the_paper_uses_few_private_parts():
    """It has the same version as the library, and may use these parts. The library imports nothing of it."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "paper" / "src").rglob("*.py"))
    found = re.findall(r"\b(?:from|import) powerspherical(?:\.\w+)*\.(_\w+)", text)
    assert set(found) <= {"_files", "_selfcheck"}
    names = {name.partition(".")[0] for path in TREES for name, _ in imported(path)}
    assert "powerspherical_paper" not in names


def test_private_names_of_torch_are_in_one_file():
    found = set()
    for path in TREES:
        names = {bound: name for name, bound in imported(path) if name.split(".")[0] == "torch"}
        nodes = (node for node in ast.walk(TREES[path]) if isinstance(node, ast.Attribute))
        attributes = (re.sub(r"\(.*\)|\[.*\]", "", ast.unparse(node)) for node in nodes)  # without arguments
        used = [*names.values(), *(one for one in attributes if one.split(".")[0] in names)]
        private = (name for name in used if re.search(r"(^|\.)_(?!\w*__(\.|$))", name))
        if path != PACKAGE / "_torch" / "private.py":
            found |= {(str(path.relative_to(ROOT)), name) for name in private}
    assert found == set()


def test_mutants_fit_the_source():
    assert [mutant for mutant in mutants.mutants() if mutants.misfit(ROOT, mutant)] == []


# Without any optional package: what an import loads, and what the parts say that need one.
BARE = f"""
import sys
optional = {OPTIONAL!r}
import powerspherical
print([name for name in optional if name in sys.modules])
sys.modules.update(dict.fromkeys(optional))  # None makes an import fail
powerspherical.nn.SphericalBottleneck, powerspherical.compat.PowerSpherical
for name in ("plot", "pyro", "nothing"):
    try:
        getattr(powerspherical, name)
    except (AttributeError, ImportError) as error:
        print(error)
from powerspherical import cli
print(cli.run(["sample"]), cli.run(["info", "--device", "toaster"]), cli.run(["info", "--json"]))
"""


def test_a_bare_installation():
    """Importing the package loads nothing optional. Parts, and commands other than `info`, say what to install."""
    torchs_own = (
        "ignore:Implicitly cleaning up:ResourceWarning"  # torch 2.6 leaves a folder to the interpreter
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", torchs_own, "-c", BARE],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, plot, pyro, nothing, *info, statuses = done.stdout.splitlines()
    assert loaded == "[]"
    assert plot.startswith("powerspherical.plot needs Matplotlib: pip install 'powerspherical[plot]'")
    assert pyro.startswith("powerspherical.pyro needs Pyro: pip install 'powerspherical[pyro]'")
    assert nothing == "module 'powerspherical' has no attribute 'nothing'"
    assert any('"torch_threads"' in line for line in info)
    assert statuses == "2 2 0"
    sample, device = done.stderr.splitlines()
    assert sample.startswith(
        "powerspherical: the command needs rich, typer; run: pip install 'powerspherical[cli]'"
    )
    assert device.startswith("powerspherical: Invalid value for '--device': ")


def test_a_torch_that_is_too_old(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "powerspherical"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(ImportError) as caught:
        importlib.import_module("powerspherical.distributions")
    expected = "powerspherical needs torch 2.6 or newer, found 2.5.1+cu124: pip install -U torch"
    assert str(caught.value) == expected


def test_the_version_is_the_same_everywhere():
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read TOML")
    paper = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert paper["version"] == __version__
    assert f"powerspherical[cli]=={__version__}" in paper["dependencies"]
