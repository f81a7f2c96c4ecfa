"""The paper's table of variational auto-encoders on MNIST, with additions.

Each row is one run: a posterior, a latent dimension, a seed and a training protocol. To the paper's two posteriors we
add a spherical Cauchy and a Gaussian. Further rows replace the uniform prior by a von Mises–Fisher one, the sphere by a
product of spheres, and the trained posterior by the closest von Mises–Fisher. A tuned protocol shows what these
networks can achieve beyond the paper's protocol. Nothing is selected on the test set.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from powerspherical_paper import claims
from powerspherical_paper.autoencoder import datasets, figures, training_time
from powerspherical_paper.autoencoder.runs import Row, Run, Setting, checkpoint, do_all, plan, trained
from powerspherical_paper.autoencoder.table import POSTERIORS, collect, gaps, place, plain
from powerspherical_paper.results import Outcome, Progress, part, silent, write_figure, write_json

FILES = ("vae.json", "vae.png", "vae_images.png", *training_time.FILES)
SEEDS, SAMPLES = 3, 5000
# In nats: how far a mean may be below the paper's, and the largest difference between the paper's two posteriors.
BELOW_LOG_LIKELIHOOD, BELOW_ELBO, APART = 1.5, 3.5, 0.7
TRAINING_TIME_SHARE = 0.04  # approximate share of `training_time` in the running time


def load(quick: bool, data: str | None = None, data_dir: Path | None = None) -> datasets.Images:
    """Load the images that `run` uses: by default "mnist", or "digits" if `quick`."""
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
    runs: Sequence[Run] | None = None,
    samples: int | None = None,
) -> Outcome:
    """Train and score every row, and write `vae.json`, `vae.png` and `vae_images.png` under `out`.

    Args:
        out: the folder for the results. Checkpoints and rows of single runs go into its subfolder `vae`. A run that
            has files there is resumed, or not repeated if it is done.
        seed: the first seed.
        quick: train fewer and smaller models for fewer epochs.
        device: where to train.
        progress: called with the completed fraction.
        data: "mnist", "fashion-mnist" or "digits". Default: "mnist", or "digits" if `quick`.
        data_dir: the folder with the image files; see `datasets.load`.
        seeds: the number of seeds, starting at `seed`. Default: 3, or 1 if `quick`.
        jobs: the number of runs in parallel, each in its own process.
        runs: what to run. Default: `plan`.
        samples: importance samples per log-likelihood. Default: 5,000, or 200 if `quick`.
    """
    started = time.perf_counter()
    seeds = seeds or (1 if quick else SEEDS)
    samples = samples or (200 if quick else SAMPLES)
    images = load(quick, data, data_dir)  # first, because they may be missing
    data = images.name
    runs = runs or plan(range(seed, seed + seeds), len(images.train), quick=quick)
    # A checkpoint can only be resumed in the same way, so each way of training has its own folder.
    setting = Setting(out / "vae" / f"{data}{'-quick' * quick}", data, data_dir, str(device), samples)
    path, rows = out / "vae.json", list[Row]()

    for done in do_all(runs, setting, images, jobs=jobs, progress=part(progress, 0, 1 - TRAINING_TIME_SHARE)):
        rows += done
        write_json(  # after every run, so that an interruption loses nothing
            path,
            experiment="vae",
            seed=seed,
            quick=quick,
            device=device,
            options=f" --data {data} --seeds {seeds}" + f" --jobs {jobs}" * (jobs > 1),
            configuration=configuration(runs, samples, jobs, images),
            results=sorted(rows, key=place),
            seconds=time.perf_counter() - started,
        )
    comparable = data == claims.VAE_DATA
    files = [path, write_figure(out, "vae", figures.scores(rows, comparable=comparable))]
    shown = [
        run
        for run in runs
        if run == Run("power_spherical", run.dim, run.seed, runs[0].protocol)
        and checkpoint(run, setting).exists()  # rows from another machine may come without checkpoints
    ]
    if shown:
        widest = max(shown, key=lambda run: run.dim)
        model = trained(widest, setting, images)
        torch.manual_seed(widest.seed)  # for the draws
        files.append(write_figure(out, "vae_images", figures.pictures(model, images)))
    timing = part(progress, 1 - TRAINING_TIME_SHARE, 1)
    files += training_time.run(out, seed=seed, quick=quick, device=device, progress=timing).files
    return Outcome(files, passed=quick or not comparable or not shortfalls(rows))


def configuration(runs: Sequence[Run], samples: int, jobs: int, images: datasets.Images) -> dict[str, Any]:
    """The settings of the runs."""
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
        "data": images.name,
        "train_images": len(images.train),
        "test_images": len(images.test),
    }


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """One line per mean over seeds that misses the paper's table, under the paper's protocol."""
    found = []
    ours = {key: scores.means for key, scores in plain(collect(rows)).items()}
    for (posterior, dim), (likelihood, elbo) in ours.items():
        published = claims.VAE.get(posterior, {}).get(dim)
        if published is None:
            continue
        for name, below, allowed in (
            ("log-likelihood", published.log_likelihood - likelihood, BELOW_LOG_LIKELIHOOD),
            ("ELBO", published.elbo - elbo, BELOW_ELBO),
        ):
            if not below <= allowed:
                found.append(f"{POSTERIORS[posterior]}, d={dim}: {name} {below:.2f} nats below the paper's")
    for dim, apart in gaps({key: likelihood for key, (likelihood, _) in ours.items()}).items():
        if not apart <= APART:
            found.append(f"d={dim}: log-likelihoods of the two posteriors {apart:.2f} nats apart")
    return found
