"""Puts small faults into the source, one at a time, and says for each whether the tests notice it.

    .venv/bin/python tests/mutants.py                        # all mutants of this repository, one after the other
    .venv/bin/python tests/mutants.py --only table-degree short-vector
    .venv/bin/python tests/mutants.py --tree ../other --jobs 8 --json mutants.json

For each mutant the script copies ``src`` and ``tests`` to a temporary folder, changes the copy, and runs pytest
there: first the tests nearest to the change with ``--fast``, then nearly all tests, until one fails. Run it before and
after a change that deletes or rewrites many tests: no mutant that was killed may survive.

A mutant is *killed* if a test fails, if the tests cannot be collected any more, if the process crashes, or if a test
does not end. It *survived* if all tests pass, and was *not run* if pytest could not run. Test files that cannot be
collected without the change either, for want of a package, are left out and named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

#: Under the name of each file, its mutants: a name, a text that occurs once in the file, and its replacement.
TABLE = """
special/moments.py
  bernoulli: _BERNOULLI = [1 / 6, -1 / 30, 1 / 42 → _BERNOULLI = [1 / 6, -1 / 30, 1 / 40
  recurrence-steps: _STEPS = 16 → _STEPS = 4
  uniform-mean: - 0.25 / b - series → - 0.25 / b + series
  vmf-mode: (1 + (dim - 1) / (root + 2 * kappa)) → (1 + (dim - 1) / (root + kappa))
  cauchy-mean: (1 - s * shrink) * inverse → (1 + s * shrink) * inverse
special/tables.py
  table-degree: _DEGREE = {4: 6, 8: 12} → _DEGREE = {4: 4, 8: 12}
  table-end: 2.0**TOP / (_decay(fit) - 1) → 2.0**TOP / (_decay(fit) + 1)
  log-boost: 2 * (cells.kappa + half_sinh), dim) → 2 * cells.kappa + half_sinh, dim)
  log-loss-of-cauchy: cells.fit(_values(loss, POINTS) / growth) → cells.fit(_values(loss, POINTS) / growth**2)
  sampled-slope: own_slope=replace(slope, fit=-slope.fit) → own_slope=None
special/curves.py
  curve-gain: torch.log(beyond), alpha=gain) → torch.log(beyond))
  curve-slope: dim, order: value(kappa, family, name, dim, order + 1 → dim, order: value(kappa, family, name, dim, order
  inverse-end: torch.where(length < 0.5, low, → torch.where(length > 0.5, low,
special/bessel.py
  order-zero: if not order >= 0: → if not order > 0:
special/gamma.py
  cosine-normalizer: 1 / 128, 5 / 1024 → 1 / 128, -5 / 1024
formulas/slopes.py
  slope-series: y * (1.875 * y + 1.25 → y * (1.875 * y - 1.25
  gamma-draw-decay: FALL = 18.0 → FALL = 5.0
  small-kappa: SMALL_KAPPA = 0.5 → SMALL_KAPPA = 1e-4
formulas/densities.py
  rounded-distance: where(kappa < 1, error / distance, 0.0) → 0.0 * error
kernels/layout.py
  repeated-rows: math.prod(result[end:]), math.prod(padded) → math.prod(result[end:]), 1
kernels/autograd.py
  kernel-of-second-derivatives: if given and is_plain_backward(*given): → if given:
families/power_spherical.py
  beta-draw: noise.add(squared_length, alpha=0.5) → noise.add(squared_length)
  cosine-variance: / (total + 1) → / (total + 2)
families/von_mises_fisher.py
  lower-tail: (one_minus_t > 1.5) & → (one_minus_t > 2.5) &
  wood-acceptance: torch.log1p(-ratio).add_(ratio) → torch.log1p(-ratio).add_(1.1 * ratio)
  vmf-shrink: near = 2 * gap <= lower → near = 2 * gap <= 0 * lower
  vmf-rapidity: 2 * twice / (delta + delta → 4 * twice / (delta + delta
families/spherical_cauchy.py
  cauchy-misalignment: rest + h / (1 + kappa).square() → rest + h / (1 + kappa)
  cauchy-opposite: 0.5 * angle.minus, 0.5 * angle.plus → 0.5 * angle.minus, 1 - 0.5 * angle.minus
  cauchy-distance: 0.25 * (kappa - kappa_p).square() → 0.5 * (kappa - kappa_p).square()
families/exponential.py
  near-divergence: change.abs() < 0.7 * → change.abs() < 0.0007 *
  zero-kappa-antipode: torch.where(kappa == 0, -1e30 → torch.where(kappa < 0, -1e30
families/derived.py
  quantile-gradient: lambda *point: -0.5 * torch.exp → lambda *point: 0.5 * torch.exp
  rate-zero: return torch.where(zero, root, → return torch.where(zero, 0.0,
quadrature/law.py
  ray-end: _FALL = 32.0 → _FALL = 12.0
  ray-nodes: _NODES, _STRETCH = 64, → _NODES, _STRETCH = 24,
  quantile-tolerance: _CLOSE = 1e-5 → _CLOSE = 1e-1
  exported-derivatives: nullcontext() if is_exporting() → nullcontext() if not is_exporting()
quadrature/expectations.py
  heavy-tail: _FALL + 4 * law.mode → _FALL + 0 * law.mode
  near-uniform: mean(log_density + rest) → mean(log_density)
quadrature/misalignment.py
  misalignment-nodes: _NODES = {torch.float64: 64 → _NODES = {torch.float64: 32
sampling/composition.py
  project-twice: _SHORT_DIM = 8 → _SHORT_DIM = 2
  kappa-gradient: - cosine.squeeze(-1) * across → + cosine.squeeze(-1) * across
  loc-gradient: (cosine * grad - along * x) → (cosine * grad + along * x)
sampling/noise.py
  sobol-order: .long()[order] ^ shifts → .long().unsqueeze(1) ^ shifts
  turn: square / (1 - torch.where(negative → square / (1 + torch.where(negative
sampling/draws.py
  turned-draw: t * change - (point → t * change + (point
  second-derivative: + rise) ** 1.5) → + rise) ** 3)
  law-of-another-dimension: if dim != loc.shape[-1]: → if dim < loc.shape[-1]:
  vmap-randomness: if info.randomness != "different" → if info.randomness == "error"
_torch/vectors.py
  renormalise-half: if torch.finfo(dtype).eps < torch → if torch.finfo(dtype).eps > torch
  zero-vector: missing = longest <= shortest → missing = longest < shortest
distributions/fit.py
  linear-fit: if family.linear: → if not family.linear:
  closest: CLOSEST = {torch.float64: 1e-9 → CLOSEST = {torch.float64: 1e-5
  bias-rows: across / (rows - 1).clamp(min=1) → across / rows.clamp(min=1)
  fit-weights-overflow: weights.double() / weights.amax(0).double() → weights.double()
distributions/geometry.py
  chord-gradient: torch.where(minus < plus, -minus, plus) → torch.where(minus > plus, -minus, plus)
distributions/constraints.py
  norm-tolerance: NORM_TOLERANCE = 1e-2 → NORM_TOLERANCE = 1e-1
distributions/validation.py
  infinite-kappa: (value >= 0) & (value <= largest) → value >= 0
  column-of-kappas: shape[:-1] == rows and rows.numel() != 1 → shape[:-1] == rows and rows.numel() == 1
distributions/marginal.py
  marginal-end: bottom & (total != 0) → bottom
distributions/rotational.py
  scalar-dtype: if concentration.dim(): → if concentration.dim() >= 0:
distributions/matrix.py
  linear-kappa: * total).sum(-1) - grad → * total).sum(-1) + grad
distributions/cosine_matrix.py
  matrix-kappa: 0.5 * kappa, torch.linalg.vecdot(grad, logs) → 0.5 * kappa, torch.linalg.vecdot(grad, halves)
distributions/product.py
  product-event: if value.shape[-2:] != self.event_shape: → if value.shape[-1:] != self.event_shape[-1:]:
mixture/_base.py
  better-start: self.objectives[-1] - other.objectives[-1] > → other.objectives[-1] - self.objectives[-1] >
  start-tolerance: > other.tolerance(tol) + other.rounding() → > other.rounding()
mixture/_mixture.py
  accepted-fall: return gain >= 0 → return gain >= -1
  empty-component: _EMPTY = 0.1  # → _EMPTY = 0.0  #
  posterior: log_densities.sub_(largest).exp_() → log_densities.sub_(largest).mul_(2).exp_()
  tied-mean: scores.sum() / count.sum() if tied → (scores / count).mean() if tied
  bic-count: return components - 1 + components * (dim - 1) → return components - 1 + components * dim
  batch-step: (1 + self._seen / rows.count) → (1 + rows.count / (1 + self._seen))
mixture/_kmeans.py
  kmeans-tolerance: return tol * abs(self.objectives[-1]) → return tol
  empty-cluster: empty = self.sums.count == 0 → empty = self.sums.count < 0
mixture/_seeding.py
  weight-of-a-seed: rows[_draw(weight * distance, → rows[_draw(distance,
mixture/_rows.py
  weight-of-a-row: return self.scale * self.weight → return self.scale
  weight-unit: return 2.0 ** (math.frexp → return 1.0 ** (math.frexp
nn/heads.py
  initial-kappa: excess / (1 - excess → excess / (1 + excess
  equal-bounds: if not 0 <= minimum < maximum → if not 0 <= minimum <= maximum
nn/_parameters.py
  bounded-kappa: softplus / (1 + softplus / bounds.span) → softplus / (1 + softplus * bounds.span)
  softplus-end: _LINEAR = 40.0 → _LINEAR = 10.0
nn/losses.py
  loss-swapped: -pairwise_kl(targets, queries).T → -pairwise_kl(queries, targets)
  loss-rate: kl_divergence(queries, uniform).mean() → kl_divergence(queries, uniform).sum()
nn/bottleneck.py
  product-rate: else rates.sum(-1) → else rates.mean(-1)
"""

#: Folders of ``tests`` near each part of the package, likely killers first.
NEAR = {
    "special": ("special", "families", "kernels"),
    "families": ("families", "kernels", "distributions"),
    "quadrature": ("quadrature", "families", "distributions"),
    "formulas": ("kernels", "families"),
    "kernels": ("kernels", "distributions"),
    "_torch": ("nn", "kernels", "distributions"),
    "sampling": ("kernels", "distributions", "integration"),
    "distributions": ("distributions", "kernels"),
    "mixture": ("mixture",),
    "nn": ("nn", "kernels"),
}
#: Entries of ``tests`` that take long and are about something else: pages, experiments, benchmarks, the project itself.
ELSEWHERE = re.compile(
    r"docs|experiments|explorer|helpers|reference|files|plot|test_(bench|docs|exam|migr|mix|proj|read)"
)


class Mutant(NamedTuple):
    name: str
    file: str  # below src/powerspherical
    text: str
    replacement: str


class Result(NamedTuple):
    status: str  # "killed", "survived" or "not run"
    by: str = ""  # the test that killed it, or why it was not run
    left_out: tuple[str, ...] = ()  # test files that cannot be collected here
    seconds: float = 0.0


def mutants() -> list[Mutant]:
    found, file = [], ""
    for line in filter(None, TABLE.splitlines()):
        if not line.startswith(" "):
            file = line
            continue
        name, _, change = line.strip().partition(": ")
        found.append(Mutant(name, file, *change.split(" → ")))
    return found


class Runner:
    def __init__(self, tree: Path, limit: float) -> None:
        self.tree, self.limit = tree.resolve(), limit
        files = (self.tree / "conftest.py", self.tree / "tests/conftest.py")
        self.has_fast = any("--fast" in file.read_text() for file in files if file.exists())

    def stages(self, part: str) -> list[list[str]]:
        """Return the arguments of one run of pytest after the other."""
        tests = sorted(
            x.name for x in (self.tree / "tests").iterdir() if re.match(r"test_.*\.py$|[a-z]\w*$", x.name)
        )
        near = [name for name in NEAR[part] if name in tests]
        far = [name for name in tests if name not in near and not ELSEWHERE.match(name)]
        paths = [f"src/powerspherical/{part}", *(f"tests/{name}" for name in near)]
        fast = [["--fast", *paths]] if self.has_fast else []
        return [*fast, [*paths, *(f"tests/{name}" for name in far)]]

    def run(self, mutant: Mutant | None, part: str) -> Result:
        """Run the tests of a part with the mutant in place, or unchanged."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            copy = Path(folder)
            for entry in self.tree.iterdir():
                if entry.name in ("src", "tests"):
                    shutil.copytree(entry, copy / entry.name)
                elif not entry.name.startswith("."):
                    (copy / entry.name).symlink_to(entry)
            if mutant is not None:
                path = copy / "src/powerspherical" / mutant.file
                source = path.read_text() if path.exists() else ""
                if (count := source.count(mutant.text)) != 1:
                    return Result(
                        "not run", f"{mutant.text!r} occurs {count} times in {mutant.file}, not once"
                    )
                path.write_text(source.replace(mutant.text, mutant.replacement))
            left_out: list[str] = []
            result = Result("survived")
            for stage in self.stages(part):
                result = self._stage(copy, stage, left_out)
                if result.status != "survived":
                    break
            return result._replace(left_out=tuple(left_out), seconds=round(time.monotonic() - start, 1))

    def _stage(self, copy: Path, arguments: list[str], left_out: list[str]) -> Result:
        while True:
            code, output = self._pytest(copy, [*arguments, *(f"--ignore={path}" for path in left_out)])
            started = re.findall(
                r"^\S+::.*?(?= (?:PASSED|FAILED|ERROR|SKIPPED|XFAIL)|$)", output, re.MULTILINE
            )
            last = started[-1].strip() if started else "the start"
            failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
            if code in (0, 5):  # 5: no test is left
                return Result("survived")
            if code is None:
                return Result("killed", f"{last} (does not end)")
            if code < 0:
                return Result("killed", f"{last} (signal {-code})")
            if code not in (1, 2) or not failed:
                return Result("not run", f"pytest ended with {code}: {output[-500:]}")
            if "::" in failed[-1]:
                return Result("killed", failed[-1])
            # The file could not be collected. Can it be without the mutant?
            unchanged, _ = self._pytest(self.tree, ["--collect-only", failed[-1]])
            if unchanged in (0, 5):
                return Result("killed", f"{failed[-1]} (collection)")
            left_out.append(failed[-1])

    def _pytest(self, tree: Path, arguments: list[str]) -> tuple[int | None, str]:
        """Return the exit code, None if a test took longer than the limit, and the output."""
        options = ["-x", "-v", "--tb=line", "-p", "no:cacheprovider", "--no-header", "--color=no"]
        options += ["-o", "addopts=--doctest-modules --import-mode=importlib"]  # not in parallel
        path = os.pathsep.join(filter(None, (f"{tree}/src", os.environ.get("PYTHONPATH"))))
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": threads}
        find = "import importlib.util; print(importlib.util.find_spec('powerspherical').origin)"
        found = subprocess.check_output([sys.executable, "-c", find], cwd=tree, env=environment, text=True)
        if not found.startswith(f"{tree}/src"):
            raise RuntimeError(f"the tests would import {found.strip()} instead of {tree}/src")
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            size, since = 0, time.monotonic()
            while process.poll() is None:
                time.sleep(0.1)
                if (now := os.fstat(log.fileno()).st_size) != size:
                    size, since = now, time.monotonic()
                elif time.monotonic() - since > self.limit:
                    os.killpg(process.pid, 9)
                    process.wait()
                    break
            hangs = process.returncode == -9 and time.monotonic() - since > self.limit
            log.seek(0)
            return None if hangs else process.returncode, log.read()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="whose src and tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="names of mutants, or of parts of the package"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to write the results; others in it are kept"
    )
    parser.add_argument(
        "--limit", type=float, default=300, metavar="SECONDS", help="a test that takes longer fails"
    )
    parser.add_argument("--check", action="store_true", help="run the tests without mutants first")
    options = parser.parse_args()
    runner = Runner(options.tree, options.limit)
    chosen = [x for x in mutants() if not options.only or {x.name, x.file.split("/")[0]} & set(options.only)]
    if options.check:
        for part in dict.fromkeys(x.file.split("/")[0] for x in chosen):
            result = runner.run(None, part)
            print(f"{part} unchanged: {result.status} {result.by}", flush=True)
            if result.status != "survived":
                sys.exit("the tests fail without mutants: repair them first")
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {x: pool.submit(runner.run, x, x.file.split("/")[0]) for x in chosen}
        for mutant, future in futures.items():
            result = future.result()
            print(
                f"{result.status:8}  {mutant.file}  {mutant.name}  {result.by}  {result.seconds} s",
                flush=True,
            )
            results[mutant.name] = {"file": mutant.file, **result._asdict()}
            if options.json:
                options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    survivors = sum(results[x.name]["status"] == "survived" for x in chosen)
    missed = sum(results[x.name]["status"] == "not run" for x in chosen)
    print(f"{len(chosen)} mutants: {survivors} survived, {missed} not run")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
