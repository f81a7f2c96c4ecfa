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
import yaml

import powerspherical
from powerspherical._extras import install_hint
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "tests.yml"
PACKAGE = ROOT / "src" / "powerspherical"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A part may import itself and the parts on earlier lines; parts on one line do not know each other.
LAYERS = [
    ["_extras", "engines"],
    ["_files", "_native", "_torch"],
    ["special"],
    ["families"],
    ["sampling"],
    ["distributions"],
    ["__init__"],  # the public names
    ["compat", "pyro", "nn", "mixture", "plot", "stats", "testing"],
    ["_selfcheck"],
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
        "def f():\n    from powerspherical import sampling\nimport powerspherical.cli\nfrom .. import nn\n"
    )
    assert sorted(name for _, name in imports(module)) == [
        "powerspherical.cli",
        "powerspherical.nn",
        "powerspherical.sampling",
    ]


PRIVATE_FOR_THE_PAPER = {"powerspherical._files", "powerspherical._selfcheck"}


def test_the_paper_uses_few_private_parts():
    """It has the same version as the library, and may use these parts. The library imports nothing of it."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "paper" / "src").rglob("*.py"))
    found = re.findall(r"\b(?:from|import) (powerspherical(?:\.\w+)*\._\w+)", text)
    assert set(found) == PRIVATE_FOR_THE_PAPER
    assert not [path for path in MODULES if "powerspherical_paper" in path.read_text(encoding="utf-8")]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_torch_names(path: Path) -> Iterator[str]:
    """Names with a leading underscore that a file imports from torch or reads from something of torch's."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    torch_names = set()  # what the file calls torch and its parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [(alias.name, alias.asname or alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        for name, bound in found:
            if name.split(".")[0] == "torch":
                torch_names.add(bound)
                if any(map(is_private, name.split("."))):
                    yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            name = ast.unparse(node)
            if name.split(".")[0] in torch_names:
                yield name


@pytest.mark.parametrize("path", [path for path in MODULES if part(dotted(path)) != "_torch"], ids=dotted)
def test_private_names_of_torch_are_in_one_part(path):
    assert list(private_torch_names(path)) == []


def test_private_names_of_torch_are_seen(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "import torch\nfrom torch._functorch import utils\nfrom torch.autograd.function import _SingleLevelFunction\n"
        "from torch.autograd import forward_ad\nfrom torch.distributions import Distribution as D\n"
        "torch._C._functorch, forward_ad._current_level, D._validate_args, torch.__version__, self._validate_args\n"
    )
    assert sorted(private_torch_names(module)) == [
        "D._validate_args",
        "forward_ad._current_level",
        "torch._C",
        "torch._C._functorch",
        "torch._functorch.utils",
        "torch.autograd.function._SingleLevelFunction",
    ]


@pytest.mark.slow
def test_modules_on_first_use():
    code = (
        "import powerspherical; powerspherical.nn.SphericalBottleneck; powerspherical.compat.PowerSpherical"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="module 'powerspherical' has no attribute 'nothing'"):
        powerspherical.nothing  # noqa: B018


def test_importing_the_package_imports_nothing_optional():
    code = f"import sys, powerspherical; print([m for m in {OPTIONAL!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["sample"], 2, f"powerspherical: the command needs rich, typer; run: {install_hint('cli')}\n"),
        (["info"], 0, ""),
        (["info", "--json"], 0, ""),
        (["info", "--device", "toaster"], 2, "powerspherical: Invalid value for '--device': "),
    ],
)
def test_a_bare_install(arguments, status, says):
    """Without the extras, `info` works, and other commands say in one line what to install."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"  # None makes an import fail
    code = f"{hide}; from powerspherical.cli import main; main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == (status > 0)
    assert ("torch threads" in done.stdout or '"torch_threads"' in done.stdout) == (status == 0)


def test_the_version_is_the_same_everywhere():
    version = powerspherical.__version__
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    paper = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert paper["version"] == version
    assert f"powerspherical[cli]=={version}" in paper["dependencies"]


def test_the_citation_has_what_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["license"]
    for work, required in ((citation, {"message"}), (citation["preferred-citation"], {"type"})):
        assert required | {"authors", "title"} <= set(work)
        assert all({"name"} <= set(author) or {"family-names"} <= set(author) for author in work["authors"])


def test_the_metadata_say_what_is_supported():
    classifiers = PROJECT["classifiers"]
    minors = [one.rpartition(".")[2] for one in classifiers if re.search(r":: 3\.\d+$", one)]
    assert minors == [str(minor) for minor in range(11, 11 + len(minors))]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert not any(one.startswith("License ::") for one in classifiers)  # the SPDX expression says it
    for title in (
        *(family.title for family in (POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER)),
        "uniform",
    ):
        assert title in PROJECT["description"]

    matrix = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == [f"3.{minor}" for minor in minors]
    systems = {"ubuntu": "POSIX :: Linux", "macos": "MacOS", "windows": "Microsoft :: Windows"}
    named = {f"Operating System :: {systems[os.partition('-')[0]]}" for os in matrix["os"]}
    assert named == {one for one in classifiers if one.startswith("Operating System ::")}


def recipes() -> dict[str, list[str]]:
    """The targets of the Makefile, with the lines of their recipes."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if target := re.match(r"([a-z-]+):(?!=)", line):
            lines = found[target[1]] = []
        elif line.startswith("\t"):
            lines.append(line.strip())
        else:
            lines = []
    return found


def test_the_workflow_runs_targets_of_the_makefile():
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = [command.split()[1] for command in commands if command.startswith("make ")]
    assert {"test", "docs", "dist"} <= set(targets)
    assert set(targets) <= set(recipes())


def test_pre_commit_runs_what_make_lint_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert local["repo"] == "local"  # so that the versions are those of the environment
    entries = [hook["entry"] for hook in local["hooks"]]
    assert entries == [line.replace("$(BIN)", ".venv/bin") for line in recipes()["lint"]]
    assert all(hook["always_run"] and not hook["pass_filenames"] for hook in local["hooks"])


def test_constraints_pin_releases_not_builds():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    assert any(pin.startswith("torch==") for pin in pins)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "package", "name"), [("plot", "matplotlib", "Matplotlib"), ("pyro", "pyro", "Pyro")]
)
def test_a_part_asks_for_what_it_needs(part, package, name):
    code = f"import sys; sys.modules['{package}'] = None; import powerspherical.{part}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = f"ImportError: powerspherical.{part} needs {name}: {install_hint(part)}"
    assert done.stderr.splitlines()[-1] == told


def installed(extra):
    """The modules that an extra installs, those of the extras it names included."""
    modules = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, inner = re.match(r"([\w-]+)(?:\[(\w+)\])?", requirement).groups()
        imported = {"pillow": "PIL", "scikit-learn": "sklearn"}.get(name, name)
        modules |= installed(inner) if name == "powerspherical" else {imported}
    return modules


def test_extras_install_what_the_commands_need():
    """What each command needs is tested in tests/cli."""
    assert installed("mixture") == {"safetensors", "scipy", "sklearn"}
    assert installed("cli") == {
        "dask", "matplotlib", "pyarrow", "rich", "safetensors", "scipy", "sklearn", "typer"
    }  # fmt: skip
    page = (ROOT / "docs" / "clustering.md").read_text(encoding="utf-8")
    assert re.search(r"pip install '\.\[(\w+)\]'", page)[1] == "cli"  # all that its blocks and commands use


def test_ci_runs_the_tests():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")
