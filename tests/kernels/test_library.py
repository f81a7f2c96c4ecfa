"""The C library: how it is built, loaded, switched off and installed, and its code at every level of the processor."""

from __future__ import annotations

import ctypes
import inspect
import json
import math
import os
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest
import torch
from packaging import tags
from torch import Tensor
from torch.distributions import kl_divergence

from helpers.directions import unit
from helpers.examples import FAMILIES
from helpers.library import BITS, LEVELS, compiled, needs_compiler, needs_library
from powerspherical import HypersphericalUniform, PowerSpherical
from powerspherical.engines import engine
from powerspherical.kernels import build, library
from powerspherical.kernels.native import check
from powerspherical.nn import SphericalHead

ROOT = Path(__file__).parents[2]


@needs_compiler
def test_it_was_built() -> None:
    """With a C compiler the installation has built the library, from the sources as they are."""
    found = library.loaded()
    if found == f"switched off by {library.SWITCH}=0":
        pytest.skip(found)
    assert not isinstance(found, str), found
    assert library.description() in ("SSE2", "AVX2", "AVX-512", "compiled for this processor")


@pytest.fixture
def _loaded_anew() -> Iterator[None]:
    library.loaded.cache_clear()
    yield
    library.loaded.cache_clear()


@pytest.mark.usefixtures("_loaded_anew")
def test_why_it_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reason() -> str:
        library.loaded.cache_clear()
        return library.description()

    path = tmp_path / build.NAME
    monkeypatch.setattr(build, "location", lambda: path)
    monkeypatch.delenv(library.SWITCH, raising=False)
    assert reason().startswith("not used: it was not built, which takes a C compiler; run: ")
    path.write_text("no library")
    assert "python -m powerspherical.kernels.build" in reason()
    monkeypatch.setenv(library.SWITCH, "0")
    assert reason() == "not used: switched off by POWERSPHERICAL_NATIVE=0"
    draws = []
    for name in ("auto", "torch"):
        torch.manual_seed(1)
        with engine(name):
            draws.append(PowerSpherical(torch.eye(3), 2.0).sample())
    assert torch.equal(*draws)


@needs_library
@pytest.mark.usefixtures("_loaded_anew")
def test_an_outdated_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "source_digest", lambda: "another")
    assert library.description().startswith("not used: it was built from other sources")


# The C code


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("bits", "level"), [(32, LEVELS[0]), (64, LEVELS[-1])])
def test_sanitizers(bits: int, level: str | None, tmp_path: Path) -> None:
    """No access outside of an array and no undefined behaviour, on shapes with edges and with threads."""
    flags = [
        "-g",
        "-O0",
        "-std=gnu11",
        "-pthread",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }")
    try:
        compiled(empty, tmp_path / "empty", bits, level, common=flags)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no sanitizers")
    program = compiled(
        Path(__file__).with_name("native_fuzz.c"), tmp_path / "fuzz", bits, level, common=flags
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 5000


def at_level(level: str | None, folder: Path) -> dict[str, Callable[[bytes], int]]:
    """Return the functions of the library, compiled for one level and nothing else."""
    # At -O1 gcc fuses multiplications and additions with "expensive optimizations" only. -O2 takes half as long again.
    flags, kernels = ("-O1", "-fexpensive-optimizations", "-shared", "-fvisibility=default"), {}
    for bits in BITS:
        target = folder / f"{bits}{level}.so"
        kernels[bits // 8] = ctypes.CDLL(
            str(compiled(build.SOURCES / "kernel.c", target, bits, level, *flags))
        )

    def function(name: str) -> Callable[[bytes], int]:
        by_size = {size: getattr(kernel, f"sphere_{name}_{8 * size}") for size, kernel in kernels.items()}
        return lambda packed: by_size[int.from_bytes(packed[:8], sys.byteorder)](packed)

    return {name: function(name) for name in library.FUNCTIONS}


def with_gradients(value: Tensor, *leaves: Tensor) -> list[Tensor]:
    return [value.detach(), *torch.autograd.grad(value.cumsum(-1).sum(), leaves)]


def everything(dtype: torch.dtype) -> dict[str, list[Tensor]]:
    """Return results of all functions of the library, the same whenever the code is the same."""
    torch.manual_seed(1)
    found: dict[str, list[Tensor]] = {}
    vectors = unit(70, 9, dtype=dtype).repeat(2, 1)
    vectors[:70, 8] += torch.logspace(-1, -8, 70)
    numbers = torch.tensor([0.0, 1.0, 5.0, -1.0, math.nan, math.inf], dtype=dtype)
    verdicts = [check(v, None, 1e-5, 1.0) for v in vectors] + [
        check(vectors[99], n, 1e-5, 2.0) for n in numbers
    ]
    found["checks"] = [torch.tensor(verdicts).float()]
    for family in FAMILIES:
        kappa = torch.cat([torch.zeros(1), torch.logspace(-6, 9, 400)]).to(dtype).requires_grad_()
        for dim in (2, 3, 64):
            rate = kl_divergence(family(unit(dim, dtype=dtype), kappa), HypersphericalUniform(dim))
            found[f"rate of {family.__name__}, d = {dim}"] = with_gradients(rate, kappa)
    for dim in (2, 3, 4, 6, 11, 40, 101):
        outputs = torch.randn(1000, dim + 1, dtype=dtype, requires_grad=True)
        head = SphericalHead(None, dim, minimum=0.5, maximum=60.0)(outputs)
        found[f"head, d = {dim}"] = with_gradients(head.loc * head.concentration[:, None], outputs)
        kappa = 50 * torch.rand(1000, dtype=dtype)
        x, loc = unit(10, 100, dim, dtype=dtype), unit(10, 1, dim, dtype=dtype)
        leaves = x.requires_grad_(), loc.requires_grad_(), kappa[:100].clone().requires_grad_()
        for family in FAMILIES:
            density = family(*leaves[1:]).log_prob(leaves[0])
            found[f"density of {family.__name__}, d = {dim}"] = with_gradients(density, *leaves)
            rows = x.detach().view(1000, dim).requires_grad_(), kappa.requires_grad_()
            found[f"draws of {family.__name__}, d = {dim}"] = with_gradients(family(*rows).rsample(), *rows)
    return found


#: Relative tolerances, in roundings.
TOLERANCES = {"checks": 0, "rate": 16, "head": 8, "density": 16, "draws": 32}


@needs_library
@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(len(LEVELS) < 2, reason="the processor has one level")
def test_every_level_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Up to rounding, which can change whether a candidate is rejected: in one row in thousands at most."""
    dtypes = torch.float32, torch.float64
    results = [{dtype: everything(dtype) for dtype in dtypes}]  # the library chooses the highest
    for level in LEVELS[1:]:
        monkeypatch.setattr(library, "function", at_level(level, tmp_path).__getitem__)
        results.append({dtype: everything(dtype) for dtype in dtypes})
    for dtype, expected in results[0].items():
        for name, tensors in expected.items():
            kind = name.split(maxsplit=1)[0].rstrip(",")
            tolerance = TOLERANCES[kind] * torch.finfo(dtype).eps
            for found in results[1:]:
                for one, two in zip(tensors, found[dtype][name], strict=True):
                    scale = 0.0 if kind == "rate" else tolerance * one.abs().max().item()
                    close = torch.isclose(one, two, rtol=tolerance, atol=scale)
                    rows = close.view(len(one), -1).all(-1)
                    assert rows.sum() >= len(rows) - (3 if kind == "draws" else 0), (dtype, name)


# The installation


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -flag")
    with pytest.raises(FileNotFoundError, match=r"no-such-compiler was not found; set CC"):
        build.build(tmp_path / "library.so")
    assert build.main() == 0
    assert "no-such-compiler" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Hook:
    """The installation's hook in a copy of the project, with a compiler that only records its arguments."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = tmp_path / "tree"
        shutil.copytree(
            ROOT / "src", self.root / "src", ignore=shutil.ignore_patterns("*.native", "__pycache__")
        )
        for name in ("LICENSE", "README.md", "hatch_build.py", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        self.compiler, self.commands = tmp_path / "cc", tmp_path / "commands"
        self.answers("__x86_64__")
        self.compiler.chmod(0o755)
        monkeypatch.setenv("CC", str(self.compiler))
        for variable in ("POWERSPHERICAL_PLATFORM", "POWERSPHERICAL_REQUIRE_NATIVE"):
            monkeypatch.delenv(variable, raising=False)

    def answers(self, *macros: str) -> None:
        """Let the compiler define these macros."""
        lines = "".join(f"  *-dM*) echo '#define {macro} 1';;\n" for macro in macros)
        self.compiler.write_text(
            f'#!/bin/sh\necho "$@" >> {self.commands}\ncase "$*" in\n{lines}esac\n'
            'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo built > "$2"; fi; shift; done\n'
        )

    def __call__(self, version: str = "standard") -> tuple[str, str, set[str]]:
        """Build a wheel. Return its name, the text of its file WHEEL and the names of its other files."""
        from hatchling.builders.wheel import WheelBuilder

        (wheel,) = WheelBuilder(str(self.root)).build(directory=str(self.root / "dist"), versions=[version])
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            (metadata,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
            text = archive.read(metadata).decode()
        return Path(wheel).name, text, {name for name in names if ".dist-info/" not in name}


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hook:
    pytest.importorskip("hatchling")
    return Hook(tmp_path, monkeypatch)


needs_shell = pytest.mark.skipif(os.name == "nt", reason="the recording compiler is a shell script")


def sources() -> set[str]:
    """The files of the package that git knows."""
    listed = subprocess.check_output(["git", "ls-files", "src"], cwd=ROOT, text=True)
    return {name.removeprefix("src/") for name in listed.split() if (ROOT / name).exists()}


@needs_shell
def test_installation_with_a_compiler(hook: Hook) -> None:
    """The wheel has all of the package and the library, and pip accepts its tag."""
    name, metadata, files = hook()
    assert files == sources() | {build.INSTALLED}
    tag, accepted = name.removesuffix(".whl").partition("-py3-none-")[2], list(tags.platform_tags())
    assert tag in accepted
    assert not tag.startswith("linux_") or accepted == [
        tag
    ]  # manylinux or musllinux, which package indexes take
    assert f"Tag: py3-none-{tag}\n" in metadata
    assert "Root-Is-Purelib: false\n" in metadata
    commands = hook.commands.read_text()
    assert all(f"-DREAL_BITS={bits} -DLEVEL={level} " in commands for bits in BITS for level in build.LEVELS)
    assert {path.name for path in (hook.root / "build").iterdir()} == {build.NAME}


@needs_shell
def test_editable_installation(hook: Hook) -> None:
    """The library is in site-packages, where pip removes it, and nothing is written to the sources."""
    _, _, files = hook("editable")
    assert {name for name in files if not name.endswith(".pth")} == {build.INSTALLED}
    assert not list((hook.root / "src").rglob(build.NAME))


@needs_shell
def test_installation_for_another_system(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler says what it compiles for; the release says the tag."""
    monkeypatch.setenv("POWERSPHERICAL_PLATFORM", "win_arm64")
    hook.answers("_WIN32")
    assert hook()[0].endswith("-py3-none-win_arm64.whl")
    commands = hook.commands.read_text()
    assert all(f"-DREAL_BITS={bits} -DLEVEL= " in commands for bits in BITS)
    assert commands.count("-DLEVEL=") == commands.count("-DLEVEL= ")
    assert "-mavx" not in commands
    assert "-shared -s -pthread -static-libgcc -Wl,-Bstatic " in commands


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_installation_without_a_compiler(
    hook: Hook, compiler: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (hook.root / "build").mkdir()
    (hook.root / "build" / build.NAME).write_text("of another build")
    monkeypatch.setenv("CC", compiler)
    name, metadata, files = hook()
    assert (name.endswith("-py3-none-any.whl"), "Root-Is-Purelib: true\n" in metadata) == (True, True)
    assert files == sources()
    said = capsys.readouterr()
    assert compiler in said.out + said.err


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_release_needs_a_compiler(hook: Hook, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("POWERSPHERICAL_REQUIRE_NATIVE", "1")
    with pytest.raises((FileNotFoundError, subprocess.CalledProcessError), match=compiler):
        hook()


def test_no_file_is_taken_for_a_module() -> None:
    """What pkgutil finds in the package are its Python files, whether the library is there or not."""
    package = build.FOLDER.parent
    files = (path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py"))
    names = {".".join(path.parts).removesuffix(".__init__") for path in files} - {"powerspherical"}
    # Packages whose requirements are missing have no modules here.
    walk = pkgutil.walk_packages([str(package)], "powerspherical.", onerror=lambda name: None)
    found = {module.name for module in walk}
    assert found <= names
    assert "powerspherical.kernels.library" in found
    assert inspect.getmodulename(build.NAME) is None


class Installed:
    """An installation of these sources, as importlib.metadata describes it."""

    def __init__(self, folder: Path, origin: str | None, files: str = "") -> None:
        metadata = folder / "powerspherical-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Name: powerspherical\n")
        self.record = metadata / "RECORD"
        self.record.write_text(f"powerspherical-0.dist-info/RECORD,,\n{files}")
        if origin:
            (metadata / "direct_url.json").write_text(origin)
        self.found = Distribution.at(metadata)


@pytest.mark.parametrize("editable", [True, False])
def test_uninstalling_removes_the_library(
    editable: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In an editable installation of these sources it is in site-packages, and RECORD lists it once."""
    origin = json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": editable}})
    installed = Installed(tmp_path, origin)
    monkeypatch.setattr(build, "distribution", lambda name: installed.found)
    assert build.location() == (tmp_path / build.INSTALLED if editable else build.FOLDER.parent / build.NAME)
    (tmp_path / build.INSTALLED).parent.mkdir()
    (tmp_path / build.INSTALLED).touch()  # from Python 3.12 on, missing files are not listed
    for _ in range(2):
        build._record()
    assert installed.record.read_text().count(f"{build.INSTALLED},,\n") == editable
