"""The paper's table of variational auto-encoders on MNIST, and what lies around it.

Each row is one run: a posterior, a latent dimension, a seed and a protocol of training. Beside the paper's two
posteriors stand a spherical Cauchy and a Gaussian; beside its uniform prior a von Mises–Fisher one, beside its single
sphere a product of spheres, beside the posterior that was trained the von Mises–Fisher distribution closest to it. A
second protocol shows how far the paper's is from what these networks can do. Nothing is chosen on the test set.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from powerspherical.experiments import paper
from powerspherical.experiments.autoencoder import datasets, figures, training_time
from powerspherical.experiments.autoencoder.additions import added_to, seconds_before, table_to_add_to
from powerspherical.experiments.autoencoder.runs import (
    COMPARED,
    Row,
    Run,
    Setting,
    checkpoint,
    do_all,
    plan,
    trained,
)
from powerspherical.experiments.autoencoder.table import collect, place, plain
from powerspherical.experiments.autoencoder.workers import workers
from powerspherical.experiments.results import Outcome, Progress, silent, write_figure, write_json

FILES = ("vae.json", "vae.png", "vae.svg", "vae_images.png", "vae_images.svg", *training_time.FILES)
SEEDS, SAMPLES = 3, 5000
# How far below the paper's table a mean may lie, and how far the two posteriors from each other, in nats.
BELOW_LOG_LIKELIHOOD, BELOW_ELBO, APART = 1.5, 3.5, 0.7
TRAINING_TIME_SHARE = 0.04  # of the time, roughly


def load(quick: bool, data: str | None = None, data_dir: Path | None = None) -> datasets.Images:
    """The images that `run` uses: "mnist" by default, "digits" if `quick`."""
    return datasets.load(data or ("digits" if quick else "mnist"), data_dir)


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
    data: str | None = None,
    data_dir: Path | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    posterior: str | None = None,
    runs: Sequence[Run] | None = None,
    samples: int | None = None,
) -> Outcome:
    """Train and score every row, and write `vae.json`, `vae.png`, `vae_images.png` (and SVG) under `out`.

    Args:
        out: the folder for the results; checkpoints and single rows go under its `vae/`.
        seed: the first seed.
        quick: few epochs of few small models.
        device: where to train.
        progress: called with the fraction done.
        data: "mnist", "fashion-mnist" or "digits"; by default MNIST, or the digits if `quick`.
        data_dir: where the data lie.
        seeds: how many seeds, from `seed` on; 3 by default, or 1 if `quick`.
        jobs: how many runs at a time, each in a process of its own.
        posterior: do the runs with this posterior only, and add their rows to those of the others in `vae.json`, if
            there are any. No step of training is timed then.
        runs: what to run, instead of the whole plan.
        samples: importance samples of a log-likelihood; 5,000 by default, or 200 if `quick`.
    """
    started = time.perf_counter()
    seeds = seeds or (1 if quick else SEEDS)
    samples = samples or (200 if quick else SAMPLES)
    images = load(quick, data, data_dir)  # before anything is begun: they may be missing
    data = images.name
    runs = [
        run
        for run in runs or plan(range(seed, seed + seeds), len(images.train), quick=quick)
        if posterior in (None, run.posterior)
    ]
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    # What was trained in another way would be refused as a start: it has a folder of its own.
    if jobs > 1 and processes > 1:
        raise ValueError("torchrun shares each run between its processes: leave the number of jobs at 1")
    kind = "-".join([data, *["quick"] * quick, *[f"{processes}-processes"] * (processes > 1)])
    setting = Setting(out / "vae" / kind, data, data_dir, str(device), samples)
    settings = {
        **configuration(runs, samples, jobs),
        "data": data,
        "train_images": len(images.train),
        "test_images": len(images.test),
    }
    path, rows = out / "vae.json", list[Row]()
    earlier, amend = None, None
    options = f" --data {data} --seeds {seeds}" + f" --jobs {jobs}" * (jobs > 1)
    if posterior is not None:
        options += f" --posterior {posterior.replace('_', '-')}"
        earlier = table_to_add_to(path, posterior, settings)
        amend = None if earlier is None else partial(added_to, earlier, posterior)
    before = seconds_before(path, options, posterior)

    def write() -> Path:
        return write_json(
            path,
            experiment="vae",
            seed=seed,
            quick=quick,
            device=device,
            options=options,
            configuration=settings,
            results=sorted(rows, key=place),
            seconds=before + time.perf_counter() - started,
            amend=amend,
        )

    with workers(torch.device(device)) as team:
        for done in do_all(
            runs,
            setting,
            images,
            jobs=jobs,
            team=team,
            progress=lambda fraction: progress((1 - TRAINING_TIME_SHARE * (posterior is None)) * fraction),
        ):
            rows += done
            if team.first:
                write()  # whatever happens later, this much is there
        if not team.first:
            return Outcome([])
    written = write()
    if earlier is not None:
        rows += (row for row in earlier["results"] if row["posterior"] != posterior)
    files = [written, *_figures(out, rows, runs, setting, images)]
    complaints = shortfalls(rows) if data == paper.VAE_DATA and not quick else []
    outcome = Outcome(
        files,
        passed=not complaints,
        summary="; ".join(complaints or [f"{len(rows)} rows on {data}"]),
        table=figures.table(rows, comparable=data == paper.VAE_DATA),
    )
    if posterior is not None:
        return outcome
    timing = training_time.run(
        out,
        seed=seed,
        quick=quick,
        device=device,
        progress=lambda fraction: progress(1 - TRAINING_TIME_SHARE * (1 - fraction)),
    )
    return replace(
        outcome,
        files=[*files, *timing.files],
        passed=outcome.passed and timing.passed,
        summary=f"{outcome.summary}; {timing.summary}",
    )


def configuration(runs: Sequence[Run], samples: int, jobs: int) -> dict[str, Any]:
    """What was asked for, beside the data."""
    protocol = runs[0].protocol
    return {
        "samples": samples,
        "seeds": sorted({run.seed for run in runs}),
        "dims": sorted({run.dim for run in runs if run.factors is None}),
        "runs": len(runs),
        "jobs": jobs,
        "epochs": protocol.epochs,
        "batch": protocol.batch,
        "learning_rate": protocol.learning_rate,
        "protocols": {run.protocol.name: asdict(run.protocol) for run in runs},
    }


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """Where the means over seeds, in the paper's protocol, fall short of the paper's table: a line each."""
    found = []
    ours = {key: scores.means for key, scores in plain(collect(rows)).items()}
    for (posterior, dim), (likelihood, elbo) in ours.items():
        published = paper.VAE.get(posterior, {}).get(dim)
        if published is None:
            continue
        for name, below, allowed in (
            ("log-likelihood", published.log_likelihood - likelihood, BELOW_LOG_LIKELIHOOD),
            ("ELBO", published.elbo - elbo, BELOW_ELBO),
        ):
            if not below <= allowed:
                found.append(f"{posterior}, d={dim}: {name} {below:.2f} nats below the paper's")
    first, second = COMPARED
    for dim in sorted({dim for _, dim in ours}):
        if (first, dim) in ours and (second, dim) in ours:
            apart = abs(ours[first, dim][0] - ours[second, dim][0])
            if not apart <= APART:
                found.append(f"d={dim}: the posteriors' log-likelihoods are {apart:.2f} nats apart")
    return found


def _figures(
    out: Path, rows: Sequence[Row], runs: Sequence[Run], setting: Setting, images: datasets.Images
) -> list[Path]:
    files = write_figure(out, "vae", figures.scores(rows, comparable=setting.data == paper.VAE_DATA), dpi=200)
    shown = [
        run
        for run in runs
        if run == Run("power_spherical", run.dim, run.seed, runs[0].protocol)
        and checkpoint(run, setting).exists()  # rows may come without it, from another machine
    ]
    if shown:
        widest = max(shown, key=lambda run: run.dim)
        model = trained(widest, setting, images)
        torch.manual_seed(widest.seed)  # for the draws
        files += write_figure(out, "vae_images", figures.pictures(model, images), dpi=150)
    return files
