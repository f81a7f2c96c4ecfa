"""The paper's table of variational auto-encoders on MNIST, with additions.

Each row is one run: a posterior, a latent dimension, a seed and a training protocol. To the paper's two posteriors we
add a spherical Cauchy and a Gaussian. Further rows replace the uniform prior by a von Mises–Fisher one, the sphere by a
product of spheres, and the trained posterior by the closest von Mises–Fisher. A tuned protocol shows what these
networks can achieve beyond the paper's protocol. Nothing is selected on the test set.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from powerspherical_paper import claims
from powerspherical_paper.autoencoder import datasets, figures, training_time
from powerspherical_paper.autoencoder.runs import Row, Run, Setting, do_all, plan
from powerspherical_paper.autoencoder.table import POSTERIORS, collect, gaps, place, plain
from powerspherical_paper.results import Outcome, Task, part

FILES = ("training_time.json", "vae.png", "vae.json")
SEEDS, SAMPLES = 3, 5000
# In nats: how far a mean may be below the paper's, and the largest difference between the paper's two posteriors.
BELOW_LOG_LIKELIHOOD, BELOW_ELBO, APART = 1.5, 3.5, 0.7
TRAINING_TIME_SHARE = 0.04  # approximate share of `training_time` in the running time


def settings(quick: bool, data: str | None = None, seeds: int | None = None) -> dict[str, Any]:
    """The options of a task. Default: MNIST and 3 seeds, or with `quick` the digits and one seed."""
    return {"data": data or ("digits" if quick else "mnist"), "seeds": seeds or (1 if quick else SEEDS)}


def run(
    task: Task,
    *,
    data_dir: Path | None = None,
    jobs: int = 1,
    runs: Sequence[Run] | None = None,
    samples: int | None = None,
) -> Outcome:
    """Train and score every row, time training steps, and write `vae.json` and the other `FILES`.

    Args:
        task: its options are those of `settings`. Checkpoints and rows of single runs go into the subfolder `vae` of
            its folder. A run that has files there is resumed, or not repeated if it is done.
        data_dir: the folder with the image files; see `datasets.load`.
        jobs: the number of runs in parallel, each in its own process.
        runs: what to run. Default: `plan`.
        samples: importance samples per log-likelihood. Default: 5,000, or 200 in a quick run.
    """
    options = settings(task.quick) | task.options
    images = datasets.load(options["data"], data_dir)
    seeds = range(task.seed, task.seed + options["seeds"])
    runs = runs or plan(seeds, len(images.train), quick=task.quick)
    samples = samples or (200 if task.quick else SAMPLES)
    setting = Setting(task.out / "vae", images.name, data_dir, str(task.device), samples)
    training = part(task.progress, 0, 1 - TRAINING_TIME_SHARE)
    rows = [row for done in do_all(runs, setting, images, jobs=jobs, progress=training) for row in done]
    timing = part(task.progress, 1 - TRAINING_TIME_SHARE, 1)
    files = training_time.run(replace(task, progress=timing)).files

    comparable = images.name == claims.VAE_DATA
    files.append(task.draw("vae", figures.scores(rows, comparable=comparable)))
    configuration = {
        "samples": samples,
        "seeds": sorted({run.seed for run in runs}),
        "dims": sorted({run.dim for run in runs if run.factors is None}),
        "runs": len(runs),
        "jobs": jobs,
        "protocols": {run.protocol.name: asdict(run.protocol) for run in runs},
        "data": images.name,
        "train_images": len(images.train),
        "test_images": len(images.test),
    }
    files.append(task.write("vae", configuration, sorted(rows, key=place)))
    return Outcome(files, passed=task.quick or not comparable or not shortfalls(rows))


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
