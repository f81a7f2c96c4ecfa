"""The runs behind the table of auto-encoders: the plan, and how to do each run once.

A run writes a checkpoint after each epoch, and its rows of the table when it is done. When it is started again with
the same settings, it continues from these files.
"""

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from powerspherical_paper.autoencoder import datasets
from powerspherical_paper.autoencoder.models import AutoEncoder, build, with_closest_von_mises_fisher
from powerspherical_paper.autoencoder.scores import score
from powerspherical_paper.autoencoder.table import COMPARED, POSTERIORS
from powerspherical_paper.autoencoder.training import Protocol, TrainingError, binarised, derived_seed, train
from powerspherical_paper.results import Progress, part, silent, write_text

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
        """What it is, as the start of the names of its files."""
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
    total, done = sum(run.work for run in runs), 0
    if jobs == 1:
        for run in runs:
            yield do(run, setting, images, part(progress, done / total, (done + run.work) / total))
            done += run.work
        return
    other_children = set(multiprocessing.active_children())
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare, (threads,)) as pool:
        try:
            work = {pool.submit(_do_in_process, run, setting): run.work for run in runs}
            for future in as_completed(work):
                yield future.result()
                done += work[future]
                progress(done / total)
        except BaseException:
            # Stop at once: the checkpoints hold the progress of the runs.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - other_children:
                process.terminate()
                process.join()
            raise


def _prepare(threads: int) -> None:
    """Initialise a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; only the parent handles it
    torch.set_num_threads(threads)


def _do_in_process(run: Run, setting: Setting) -> list[Row]:
    return do(run, setting, datasets.load(setting.data, setting.data_dir), silent)


def do(run: Run, setting: Setting, images: datasets.Images, progress: Progress) -> list[Row]:
    """Train and score one run, resuming from its files if there are any, and return its rows of the table."""
    pixels = images.train.shape[1]
    learnt = {**asdict(run), "data": images.name, "images": len(images.train)}
    scored = {**learnt, "samples": setting.samples, "test_images": len(images.test)}
    path = setting.folder / f"{named(run, scored)}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):  # not done yet, or a damaged file
        return list(json.loads(path.read_text(encoding="utf-8"))["rows"])
    torch.manual_seed(derived_seed(run.seed, "weights"))
    model = build(run.posterior, run.dim, pixels, prior=run.prior, factors=run.factors).to(setting.device)
    try:
        state = train(
            model,
            images.train.to(setting.device),
            run.protocol,
            seed=run.seed,
            path=setting.folder / f"{named(run, learnt)}.safetensors",
            progress=part(progress, 0, TRAINING_SHARE),
        )
    except TrainingError as error:
        raise TrainingError(f"{run.name}: {error}") from error
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
    bits = binarised(images.test, derived_seed(0, "test bits")).to(setting.device)
    rows = [
        {**shared, "proposal": proposal, **score(one, bits, setting.samples, run.seed)._asdict()}
        for proposal, one in models.items()
    ]
    write_text(path, json.dumps({**scored, "rows": rows}, indent=2) + "\n")
    progress(1.0)
    return rows


def named(run: Run, settings: dict[str, Any]) -> str:
    """The stem of a file of a run. Any change of the settings changes it, so that no run takes another's file."""
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=4)
    return f"{run.name}-{digest.hexdigest()}"
