"""Run the tests with another torch, Python or NumPy than those of `make setup`, and record how many pass.

    python tools/test_versions.py 2.6.0
    python tools/test_versions.py 2.13.0 --python python3.10 --numpy 1.26.4 --record

Each combination has an environment of its own in `build`. CUDA builds of torch bring several GB of libraries. With
`--record` the counts go to `results/versions.json`, from which `docs/tables.py` makes the table of what works where.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "versions.json"

CORE = ("distributions", "families", "integration", "kernels", "nn", "quadrature", "special", "stats")

#: What to run, and the arguments of pytest for it: the fast subset, that of the core, and all tests that compile or
#: export.
RUNS = {
    "fast": ["--fast"],
    "core": ["--fast", *(f"tests/{folder}" for folder in CORE)],
    "compiled": ["tests/integration/test_compile.py", "tests/integration/test_export.py"],
}

VERSIONS = """
import json, platform
from importlib.metadata import version
found = {name: version(name) for name in ("torch", "numpy", "triton")}
print(json.dumps(found | {"python": platform.python_version()}))
"""


def call(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the repository."""
    return subprocess.run([str(part) for part in command], cwd=ROOT, text=True, **options)


def environment(torch: str, python: str, numpy: str | None) -> Path:
    """Return the interpreter of an environment, which is made if it is not there."""
    query = "import sys; print(*sys.version_info[:2], sep='.')"
    number = call(python, "-c", query, check=True, capture_output=True).stdout.strip()
    name = f"torch-{torch}-python-{number}" + (f"-numpy-{numpy}" if numpy else "")
    folder = ROOT / "build" / name
    interpreter = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"making build/{name}", flush=True)
        call(python, "-m", "venv", folder, check=True)
        wanted = [f"torch=={torch}", *([f"numpy=={numpy}"] if numpy else [])]
        # The pins fit one set of versions: without them pip looks for others that fit together.
        if not numpy and number != "3.10":
            pins = [
                line
                for line in (ROOT / "constraints.txt").read_text().splitlines()
                if not fixed_by_torch(line)
            ]
            (folder / "constraints.txt").write_text("\n".join(pins))
            wanted += ["-c", str(folder / "constraints.txt")]
        extra = os.environ.get("PIP_ARGS", "").split()
        call(
            interpreter,
            "-m",
            "pip",
            "install",
            "-q",
            *extra,
            *wanted,
            "-e",
            ".[test]",
            "-e",
            "./paper",
            check=True,
        )
        (folder / ".installed").touch()
    return interpreter


def fixed_by_torch(pin: str) -> bool:
    """Whether a line of `constraints.txt` pins torch, or what old versions of torch need at another version."""
    return pin.split("==")[0] in ("torch", "setuptools", "sympy")


def counts(interpreter: Path, arguments: list[str], workers: str) -> dict[str, int]:
    """Run tests and return how many passed, were skipped and failed."""
    report = ROOT / "build" / f"{interpreter.parents[1].name}.xml"
    parallel = ["-n", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    options = ["-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider", f"--junitxml={report}"]
    call(interpreter, "-m", "pytest", *options, *parallel, *arguments, env={**os.environ, **threads})
    suite = ElementTree.parse(report).getroot()[0]
    found = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = found["failures"] + found["errors"]
    return {
        "passed": found["tests"] - failed - found["skipped"],
        "skipped": found["skipped"],
        "failed": failed,
    }


def record(entry: dict[str, object]) -> None:
    """Add the counts of an entry to the results for these versions."""
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"results": []}
    found = {json.dumps(order(each)): each for each in document["results"]}
    key = json.dumps(order(entry))
    found[key] = found.get(key, {}) | entry
    document["results"] = sorted(found.values(), key=order)
    RESULTS.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def order(entry: dict[str, str]) -> list[list[int]]:
    """Return the versions of an entry as numbers."""
    return [
        [int(part) for part in entry[name].partition("+")[0].split(".")]
        for name in ("torch", "python", "numpy")
    ]


def main() -> int:
    """Run the tests, and return 1 if any fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("torch", help="the version of torch, such as 2.6.0")
    parser.add_argument("--python", default=sys.executable, help="the interpreter. Default: this one")
    parser.add_argument("--numpy", help="the version of NumPy. Default: that of constraints.txt")
    parser.add_argument(
        "--runs", nargs="+", default=["fast"], choices=list(RUNS), help="which tests. Default: fast"
    )
    parser.add_argument("--workers", default="2", help="processes that run the tests")
    parser.add_argument("--record", action="store_true", help="write the counts to results/versions.json")
    given = parser.parse_args()
    interpreter = environment(given.torch, given.python, given.numpy)
    entry = json.loads(call(interpreter, "-c", VERSIONS, check=True, capture_output=True).stdout)
    entry |= {run: counts(interpreter, RUNS[run], given.workers) for run in given.runs}
    print(json.dumps(entry))
    if given.record:
        record(entry)
    return int(any(entry[run]["failed"] for run in given.runs))


if __name__ == "__main__":
    sys.exit(main())
