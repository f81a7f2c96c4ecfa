"""The runs behind the table of auto-encoders: the plan, and how to do each run once.

A run writes a checkpoint after each epoch, and its rows of the table when it is done. When it is started again, it
continues from these files.
"""

import json
import multiprocessing
import operator
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

from powerspherical.nn import CheckpointError, load_checkpoint
from powerspherical_paper.autoencoder import datasets
from powerspherical_paper.autoencoder.models import AutoEncoder, build, with_closest_von_mises_fisher
from powerspherical_paper.autoencoder.scores import score
from powerspherical_paper.autoencoder.table import COMPARED, POSTERIORS
from powerspherical_paper.autoencoder.training import Protocol, TrainingError, binarised, derived_seed, train
from powerspherical_paper.results import Progress, part, write_text

Row = dict[str, Any]

DIMS: tuple[int, ...] = (5, 10, 20, 40)
PAPER = Protocol()
TUNED = replace(PAPER, name="tuned", cosine=True, draws=4, validation=5000)
#: Each change of `TUNED` on its own.
PARTS: tuple[Protocol, ...] = (
    replace(PAPER, name="early stopping", validation=5000),
    replace(PAPER, name="falling rate", cosine=True),
    replace(PAPER, name="four draws", draws=4),
)
OPTIONS_DIM = 10  # d of the rows with options
FACTORS, FACTOR_DIM = 5, 3  # the product of spheres; it has 5·(3-1) = 10 degrees of freedom

TRAINING_SHARE = 0.8  # approximate share of training in a run's time


@dataclass(frozen=True)
class Run:
    """One training and its scores; the fields are arguments of `models.build` and `training.train`."""

    posterior: str
    dim: int
    seed: int
    protocol: Protocol = PAPER
    prior: str = "uniform"
    factors: int | None = None

    @property
    def name(self) -> str:
        """The stem of its files."""
        product = "" if self.factors is None else f"-x{self.factors}"
        prior = "" if self.prior == "uniform" else f"-prior-{self.prior}"
        protocol = self.protocol.name.replace(" ", "_")
        return f"{self.posterior}-d{self.dim}{product}{prior}-{protocol}-seed{self.seed}"

    @property
    def work(self) -> int:
        """Approximate relative running time; steps with a vMF take twice as long."""
        return self.protocol.epochs * (2 if "von_mises_fisher" in (self.posterior, self.prior) else 1)


@dataclass(frozen=True)
class Setting:
    """The settings that all runs of a table share."""

    folder: Path
    data: str
    data_dir: Path | None = None
    device: str = "cpu"
    samples: int = 5000
    test_seed: int = 0  # for the binarisation of the test images


def plan(seeds: Sequence[int], images: int, *, quick: bool) -> list[Run]:
    """All runs for a data set with `images` training images, the paper's first."""
    dims, paper, tuned, parts = DIMS, PAPER, TUNED, PARTS
    if quick:
        dims, parts = (5, 10), ()
        paper, tuned = replace(paper, epochs=50), replace(tuned, epochs=50, validation=200)
    first = seeds[0]
    runs = [Run(q, d, seed, paper) for seed in seeds for d in dims for q in POSTERIORS]
    runs.append(Run("power_spherical", OPTIONS_DIM, first, paper, prior="von_mises_fisher"))
    runs.append(Run("power_spherical", FACTOR_DIM, first, paper, factors=FACTORS))
    runs += [Run(q, d, seed, tuned) for seed in seeds for d in dims for q in COMPARED]
    runs += [Run("power_spherical", d, first, part) for part in parts for d in dims]
    # On small data sets, hold out at most a sixth of the images.
    validations = (min(run.protocol.validation, images // 6) for run in runs)
    return [
        replace(run, protocol=replace(run.protocol, validation=validation))
        for run, validation in zip(runs, validations, strict=True)
    ]


def do_all(
    runs: Sequence[Run],
    setting: Setting,
    images: datasets.Images,
    *,
    jobs: int,
    progress: Progress,
) -> Iterator[list[Row]]:
    """Yield the rows of each run when it is done: sequentially, or `jobs` at once in separate processes.

    The processes share this process's number of torch threads; each gets at least one.
    """
    work = [run.work for run in runs]
    if jobs == 1:
        shares = (done / sum(work) for done in accumulate(work, initial=0))
        for run, (start, end) in zip(runs, pairwise(shares), strict=True):
            yield do(run, setting, images, part(progress, start, end))
        return
    other_children = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    fractions = spawn.Array("d", len(runs), lock=False)  # one slot per run, written by its process
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, spawn, _prepare, (threads, fractions)) as pool:
        try:
            waiting = {pool.submit(_do_in_process, index, run, setting) for index, run in enumerate(runs)}
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                progress(sum(map(operator.mul, fractions, work)) / sum(work))
        except BaseException:
            # Stop at once: the checkpoints hold the progress of the runs.
            pool.shutdown(wait=False, cancel_futures=True)
            ours = set(multiprocessing.active_children()) - other_children
            for process in ours:
                process.terminate()
            for process in ours:
                process.join()
            raise


def _prepare(threads: int, fractions: Any) -> None:
    """Initialise a process of the pool; shared memory can only be passed to it here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; only the parent handles it
    torch.set_num_threads(threads)
    _FRACTIONS.append(fractions)


_FRACTIONS: list[Any] = []


def _do_in_process(index: int, run: Run, setting: Setting) -> list[Row]:
    def advance(fraction: float) -> None:
        _FRACTIONS[0][index] = fraction

    rows = do(run, setting, datasets.load(setting.data, setting.data_dir), advance)
    advance(1.0)
    return rows


def do(run: Run, setting: Setting, images: datasets.Images, progress: Progress) -> list[Row]:
    """Train and score one run, resuming from its files if there are any, and return its rows of the table."""
    path = setting.folder / f"{run.name}.json"
    identity = {
        **json.loads(json.dumps(asdict(run))),  # as it comes back from the file
        "data": images.name,
        "images": len(images.train),
    }
    measured = {"samples": setting.samples, "test_images": len(images.test)}
    known = _known(path) if path.exists() else {}
    if (known.get("identity"), known.get("measured")) == (identity, measured):
        return known["rows"]
    torch.manual_seed(derived_seed(run.seed, "weights"))
    model = _build(run, images).to(setting.device)
    try:
        state = train(
            model,
            images.train.to(setting.device),
            run.protocol,
            seed=run.seed,
            path=checkpoint(run, setting),
            identity=identity,
            progress=part(progress, 0, TRAINING_SHARE),
        )
    except TrainingError as error:
        raise TrainingError(f"{run.name}: {error}") from error
    bits = binarised(images.test, derived_seed(setting.test_seed, "test bits")).to(setting.device)
    models: dict[str | None, AutoEncoder] = {None: model}
    if run == Run("power_spherical", OPTIONS_DIM, run.seed, run.protocol) and run.protocol.name == PAPER.name:
        models["closest_von_mises_fisher"] = with_closest_von_mises_fisher(model)
    shared = {
        "posterior": run.posterior,
        "prior": "standard_normal" if run.posterior == "gaussian" else run.prior,
        "factors": run.factors,
        "dim": run.dim,
        "seed": run.seed,
        "protocol": run.protocol.name,
        "train_elbo": state.history[-1]["elbo"],
        "train_seconds": state.seconds,
        "epochs": state.epoch if state.best is None else state.best["epoch"],
    }
    rows = []
    for index, (proposal, scored) in enumerate(models.items()):
        start, end = (TRAINING_SHARE + (1 - TRAINING_SHARE) * i / len(models) for i in (index, index + 1))
        found = score(
            scored, bits, samples=setting.samples, seed=run.seed, progress=part(progress, start, end)
        )
        rows.append({**shared, "proposal": proposal, **found._asdict()})
    write_text(path, json.dumps({"identity": identity, "measured": measured, "rows": rows}, indent=2) + "\n")
    return rows


def trained(run: Run, setting: Setting, images: datasets.Images) -> AutoEncoder:
    """The model of a finished run, on the CPU."""
    content = load_checkpoint(checkpoint(run, setting))
    model = _build(run, images)
    model.load_state_dict(content["best"]["model"] if content["best"] else content["model"])
    return model


def _build(run: Run, images: datasets.Images) -> AutoEncoder:
    pixels = images.train.shape[1]
    return build(run.posterior, run.dim, pixels, prior=run.prior, factors=run.factors)


def checkpoint(run: Run, setting: Setting) -> Path:
    """The path of a run's checkpoint."""
    return setting.folder / f"{run.name}.safetensors"


def _known(path: Path) -> dict[str, Any]:
    """The content of the file with a finished run's rows."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: content[key] for key in ("identity", "measured", "rows")}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the results in {path} are damaged ({error}); delete the file to make them again"
        ) from error
