"""Promises about the project as a whole: which part may import which, what an import costs, a few facts."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerspherical
from powerspherical.cli import EXTRA

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "powerspherical"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A part may import itself and the parts on earlier lines; parts on one line do not know each other.
LAYERS = [
    ["_files", "special"],
    ["kernels"],
    ["distributions"],
    ["__init__"],  # the public names
    ["pyro", "nn", "mixture", "stats"],
    ["experiments"],
    ["cli"],
    ["__main__"],
]
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
OPTIONAL = [
    "dask",
    "jinja2",
    "matplotlib",
    "pooch",
    "pyarrow",
    "pyro",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "typer",
]


def part(module: str) -> str:
    """The part of the package that a dotted module name of it belongs to."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def dotted(path: Path) -> str:
    names = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each module of this package that a file imports, at any depth."""
    own = dotted(path)
    base = own if path.name == "__init__.py" else own.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), base)
            # `from powerspherical import special` names a part, `... import PowerSpherical` does not
            found = [
                f"{source}.{alias.name}" if source == "powerspherical" and alias.name in RANK else source
                for alias in node.names
            ]
        else:
            continue
        yield from ((node.lineno, name) for name in found if name.split(".")[0] == "powerspherical")


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_follow_the_arrow(path):
    own = part(dotted(path))
    assert own in RANK, f"{dotted(path)} has no place in LAYERS"
    for line, name in imports(path):
        other = part(name)
        assert other == own or RANK[other] < RANK[own], (
            f"{path.relative_to(ROOT)}:{line} imports {name}, which does not come before {own} in LAYERS"
        )


def test_the_arrow_is_seen_to_be_broken(tmp_path, monkeypatch):
    """The test above can fail: both spellings of a forbidden import, and a relative one, are found."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "powerspherical")
    module = tmp_path / "powerspherical" / "special" / "gamma.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "def f():\n    from powerspherical import kernels\nimport powerspherical.cli\nfrom .. import nn\n"
    )
    assert sorted(name for _, name in imports(module)) == [
        "powerspherical.cli",
        "powerspherical.kernels",
        "powerspherical.nn",
    ]


def test_importing_the_package_imports_nothing_optional():
    code = f"import sys, powerspherical; print([m for m in {OPTIONAL!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_command_module_needs_no_extra():
    """Without the extra, `powerspherical` says in one line what to install."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"  # None makes an import fail
    code = f"{hide}; from powerspherical.cli import main; main(['reproduce'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"powerspherical: .* pip install 'powerspherical\[experiments\]'\n", done.stderr)


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_no_file_is_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_the_version_is_the_same_everywhere():
    version = powerspherical.__version__
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_constraints_pin_releases_not_builds():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    assert any(pin.startswith("torch==") for pin in pins)


def test_the_command_asks_for_what_the_extra_installs():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    installed = {re.match(r"[\w-]+", requirement)[0] for requirement in extras["experiments"]}
    imported = {"pillow": "PIL", "scikit-learn": "sklearn"}
    assert set(EXTRA) == {imported.get(name, name) for name in installed}


def test_ci_runs_the_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")
