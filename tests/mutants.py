"""Puts small faults into the source, one at a time, and says for each whether the tests notice it.

    .venv/bin/python tests/mutants.py                        # all mutants of this repository, one after the other
    .venv/bin/python tests/mutants.py --check                # only say which entries no longer fit the source
    .venv/bin/python tests/mutants.py --only table-degree zero-vector
    .venv/bin/python tests/mutants.py --tree ../other --jobs 8 --json mutants.json

For each mutant the script copies ``src`` and ``tests`` to a temporary folder and changes the copy. After a change to a
formula it translates the formulas again, and after one to a formula or to C it compiles the library. Then it runs
pytest: first the tests nearest to the change with ``--fast``, then nearly all tests, until one fails. Run it before and
after a change that deletes or rewrites many tests: no mutant that was killed may survive.

A mutant is *killed* if a test fails, if the tests cannot be collected any more, if the process crashes, or if a test
does not end. It *survived* if all tests pass, and was *not run* if pytest could not run.
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
  log-boost: 2 * (q + half_sinh), dim) → 2 * q + half_sinh, dim)
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
  cauchy-slope: - minus * sinh) / distance → + minus * sinh) / distance
formulas/maps.py
  boost: shrunk = minus / growth / growth → shrunk = minus / growth
  largest-concentration: (1 + excess * rate), maximum) → (1 + excess * rate), 2 * maximum)
  bounded-kappa: excess / (1 + excess * rate), → excess / (1 + excess / rate),
  softplus-end: LINEAR = 40.0 → LINEAR = 10.0
  concentration-slope: 1.0) * shrink * shrink → 1.0) * shrink
kernels/c/curve.h
  slope-below-zero: if (kappa[i] < 0 && slope) → if (kappa[i] < -3 && slope)
kernels/c/head.h
  short-output: length += mu[0]; → length += 0;
kernels/c/matrix.h
  linear-kappa: return (pair){kappa, -minus}; → return (pair){kappa, minus};
  projection: -along * c->scale[row] * c->scale[row] → -along * c->scale[row]
kernels/c/rejection.h
  small-gamma: *gamma * exp_of(-exponential(drawn[3]) → *gamma * exp_of(-exponential(drawn[2])
kernels/c/rows.h
  last-coordinates: for (; k < end; k += LANES) → for (; k + LANES <= end; k += LANES)
kernels/c/slopes.h
  recurrence-start: < most + 8 ? most + 8 : 2 * most + 12 - (float)dim → < 2 ? 2 : most + 1
kernels/triton/check.py
  longest-vector: (1 + tolerance) ** 2, largest) → 4.0, largest)
kernels/triton/slope.py
  recurrence-above: 2.0 * largest + (12.0 - DIM), largest + 8.0 → largest + 1.0, 2.0
kernels/layout.py
  negative-view: if tensor.is_contiguous() and not tensor.is_neg() else → if tensor.is_contiguous() else
  half-gradient: return grad.div_(length).to(vectors.dtype) → return grad.to(vectors.dtype)
  repeated-rows: math.prod(result[end:]), math.prod(padded) → math.prod(result[end:]), 1
kernels/dispatch.py
  direct-gradients: tuple(tensor.view_as(tensor) for → tuple(tensor for
  kernel-of-second-derivatives: if given and _values_suffice(given, kernel.operators): → if given:
families/power_spherical.py
  beta-draw: noise.add(squared_length, alpha=0.5) → noise.add(squared_length)
  cosine-variance: / (total + 1)).to → / (total + 2)).to
families/von_mises_fisher.py
  lower-tail: (one_minus_t > 1.5) & → (one_minus_t > 2.5) &
  wood-acceptance: torch.log1p(-ratio).add_(ratio) → torch.log1p(-ratio).add_(1.1 * ratio)
  vmf-rapidity: 2 * twice / (delta + delta → 4 * twice / (delta + delta
families/spherical_cauchy.py
  cauchy-misalignment: rest + h / (1 + kappa).square() → rest + h / (1 + kappa)
  cauchy-opposite: 0.5 * angle.minus, 0.5 * angle.plus → 0.5 * angle.minus, 1 - 0.5 * angle.minus
  cauchy-distance: 0.25 * (kappa - kappa_p).square() → 0.5 * (kappa - kappa_p).square()
families/base.py
  near-divergence: change.abs() < 0.7 * → change.abs() < 0.0007 *
  zero-kappa-antipode: torch.where(kappa == 0, -1e30 → torch.where(kappa < 0, -1e30
families/derived.py
  quantile-gradient: lambda *point: -0.5 * torch.exp → lambda *point: 0.5 * torch.exp
  rate-zero: return torch.where(zero, root, → return torch.where(zero, 0.0,
quadrature/law.py
  ray-end: _FALL = 32.0 → _FALL = 12.0
  ray-nodes: _NODES, _STRETCH = 56, → _NODES, _STRETCH = 24,
  quantile-tolerance: _CLOSE = 1e-6 → _CLOSE = 1e-1
  exported-derivatives: nullcontext() if is_exporting() → nullcontext() if not is_exporting()
quadrature/expectations.py
  heavy-tail: _FALL + 4 * law.mode → _FALL + 0 * law.mode
  near-uniform: mean(log_density + rest) → mean(log_density)
quadrature/misalignment.py
  vmf-shrink: near = 2 * gap <= lower → near = 2 * gap <= 0 * lower
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
  law-of-another-dimension: dim = width if dim is None else dim → dim = width
  vmap-randomness: if info.randomness != "different" → if info.randomness == "error"
_torch/vectors.py
  renormalise-half: if torch.finfo(dtype).eps < torch → if torch.finfo(dtype).eps > torch
  zero-vector: missing = longest <= shortest → missing = longest < shortest
  chord-gradient: torch.where(minus < plus, -minus, plus) → torch.where(minus > plus, -minus, plus)
distributions/fit.py
  linear-fit: if not family.linear: → if family.linear:
  closest: CLOSEST = {torch.float64: 1e-9 → CLOSEST = {torch.float64: 1e-5
  bias-rows: across / (rows - 1).clamp(min=1) → across / rows.clamp(min=1)
  fit-weights-overflow: weights.double() / weights.amax(0).double() → weights.double()
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
  matrix-kappa: addcmul_(slope, grad.sum(1, keepdim=True)) → addcmul_(slope, grad.sum(1, keepdim=True), value=0.5)
distributions/product.py
  product-event: ends_in("value", value, self.event_shape) → ends_in("value", value, self.event_shape[1:])
mixture/_base.py
  better-start: self.objectives[-1] - other.objectives[-1] > → other.objectives[-1] - self.objectives[-1] >
  start-tolerance: > other.tolerance(tol) + other.rounding() → > other.rounding()
mixture/_em.py
  accepted-fall: return gain >= 0 → return gain >= -1
  empty-component: _EMPTY = 0.1  # → _EMPTY = 0.0  #
  posterior: log_densities.sub_(largest).exp_() → log_densities.sub_(largest).mul_(2).exp_()
  tied-mean: scores.sum() / count.sum() if tied → (scores / count).mean() if tied
mixture/_mixture.py
  bic-count: return components - 1 + components * (dim - 1) → return components - 1 + components * dim
  batch-step: (1 + self._seen / rows.count) → (1 + rows.count / (1 + self._seen))
mixture/_kmeans.py
  kmeans-tolerance: return tol * abs(self.objectives[-1]) → return tol
  empty-cluster: empty = self.sums.count == 0 → empty = self.sums.count < 0
mixture/_seeding.py
  weight-of-a-seed: self._drawn(weight * distance, → self._drawn(distance,
mixture/_rows.py
  weight-of-a-row: return self.scale * self.weight → return self.scale
  weight-unit: return 2.0 ** (math.frexp → return 1.0 ** (math.frexp
nn/heads.py
  initial-kappa: excess / (1 - excess → excess / (1 + excess
  equal-bounds: if not 0 <= minimum < maximum → if not 0 <= minimum <= maximum
nn/losses.py
  loss-swapped: -pairwise_kl(targets, queries).T → -pairwise_kl(queries, targets)
  loss-rate: kl_divergence(queries, uniform).mean() → kl_divergence(queries, uniform).sum()
nn/bottleneck.py
  product-rate: else rates.sum(-1) → else rates.mean(-1)
"""

SOURCE = Path("src/powerspherical")
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
    r"docs|explorer|helpers|reference|files|plot|test_(bench|docs|exam|migr|mix|proj|read)"
)
OPTIONS = ["-x", "-v", "--tb=line", "-p", "no:cacheprovider", "--no-header", "--color=no"]
OPTIONS += ["-o", "addopts=--doctest-modules --import-mode=importlib"]  # not in parallel


class Mutant(NamedTuple):
    name: str
    file: str  # below SOURCE
    text: str
    replacement: str

    @property
    def part(self) -> str:
        return self.file.split("/")[0]


class Result(NamedTuple):
    status: str  # "killed", "survived" or "not run"
    by: str = ""  # the test that killed it, or why it was not run
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


def misfit(tree: Path, mutant: Mutant) -> str:
    """Return why the source cannot be changed so, or an empty string."""
    path = tree / SOURCE / mutant.file
    count = path.read_text().count(mutant.text) if path.exists() else 0
    if count == 1:
        return ""
    return f"{mutant.name}: {mutant.text!r} occurs {count} times in {mutant.file}, not once"


def stages(tree: Path, part: str) -> list[list[str]]:
    """Return the arguments of one run of pytest after the other."""
    names = (x.name for x in (tree / "tests").iterdir())
    tests = sorted(name for name in names if re.match(r"test_.*\.py$|[a-z]\w*$", name))
    near = [str(SOURCE / part), *(f"tests/{name}" for name in NEAR[part])]
    far = [f"tests/{name}" for name in tests if name not in NEAR[part] and not ELSEWHERE.match(name)]
    return [["--fast", *near], [*near, *far]]


def run(tree: Path, mutant: Mutant, limit: float) -> Result:
    """Run the tests with the mutant in place."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for entry in tree.iterdir():
            if entry.name in ("src", "tests"):
                shutil.copytree(entry, copy / entry.name)
            elif entry.name == ".git" or not entry.name.startswith("."):  # a test asks git for the files
                (copy / entry.name).symlink_to(entry)
        if complaint := misfit(copy, mutant):
            return Result("not run", complaint)
        path = copy / SOURCE / mutant.file
        path.write_text(path.read_text().replace(mutant.text, mutant.replacement))
        if mutant.part == "formulas":
            execute(copy, "tools/translate.py")
        if mutant.part == "formulas" or path.suffix in (".c", ".h"):
            execute(copy, f"{SOURCE}/kernels/build.py")
        for stage in stages(tree, mutant.part):
            result = judged(*pytest(copy, stage, limit))
            if result.status != "survived":
                break
    return result._replace(seconds=round(time.monotonic() - start, 1))


def judged(code: int | None, output: str) -> Result:
    """Return what an exit code, or None for a test that took too long, and the output say of a mutant."""
    started = re.findall(r"^\S+::.*?(?= (?:PASSED|FAILED|ERROR|SKIPPED|XFAIL)|$)", output, re.MULTILINE)
    last = started[-1].strip() if started else "the start"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE)
    if code == 0:
        return Result("survived")
    if code is None:
        return Result("killed", f"{last} (does not end)")
    if code < 0:
        return Result("killed", f"{last} (signal {-code})")
    if failed:
        return Result("killed", failed[-1])
    return Result("not run", f"pytest ended with {code}: {output[-500:]}")


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of processes that import the library of a tree."""
    path = os.pathsep.join(filter(None, (f"{tree}/src", os.environ.get("PYTHONPATH"))))
    return {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def execute(tree: Path, script: str) -> None:
    command = [sys.executable, script]
    subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, check=True)


def pytest(tree: Path, arguments: list[str], limit: float) -> tuple[int | None, str]:
    """Return the exit code, None if a test took longer than the limit, and the output."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, *arguments],
            **{"cwd": tree, "env": environment(tree), "stdout": log, "stderr": subprocess.STDOUT},
            start_new_session=True,
        ) as process,
    ):
        size, since, hangs = 0, time.monotonic(), False
        while process.poll() is None and not hangs:
            time.sleep(0.1)
            if (now := os.fstat(log.fileno()).st_size) != size:
                size, since = now, time.monotonic()
            hangs = time.monotonic() - since > limit
        if hangs:
            os.killpg(process.pid, 9)
        log.seek(0)
        return None if hangs else process.returncode, log.read()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="whose src and tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of mutants, or of parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the results")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for one test")
    parser.add_argument("--check", action="store_true", help="only look for texts that do not occur once")
    options = parser.parse_args()
    chosen = [x for x in mutants() if not options.only or {x.name, x.part} & set(options.only)]
    if options.check:
        sys.exit("\n".join(filter(None, (misfit(options.tree, mutant) for mutant in chosen))) or None)
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(run, options.tree.resolve(), mutant, options.limit) for mutant in chosen]
        for mutant, future in zip(chosen, futures, strict=True):
            result = future.result()
            print(
                f"{result.status:8}  {mutant.file}  {mutant.name}  {result.by}  {result.seconds} s",
                flush=True,
            )
            results[mutant.name] = {"file": mutant.file, **result._asdict()}
            if options.json:
                options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    statuses = [results[mutant.name]["status"] for mutant in chosen]
    print(
        f"{len(chosen)} mutants: {statuses.count('survived')} survived, {statuses.count('not run')} not run"
    )
    sys.exit("not run" in statuses)


if __name__ == "__main__":
    main()
