"""Folders of small results for tests of the report. They come from the experiments, with dummy figures."""

import time
from pathlib import Path

from powerspherical._selfcheck import accuracy
from powerspherical_paper import closed_forms, efficiency, figure1, properties, stability
from powerspherical_paper._maps import Grid
from powerspherical_paper.autoencoder import training_time
from powerspherical_paper.results import write_figure, write_json


def tiny_figure(folder: Path, name: str, *_) -> Path:
    """Write a trivial figure of realistic size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3))
    figure.subplots().plot([0, 1], [0, 1])
    return write_figure(folder, name, figure)


def vae_row(posterior, dim, seed, log_likelihood, elbo, **changes):
    prior = "standard_normal" if posterior == "gaussian" else "uniform"
    plain = {"prior": prior, "factors": None, "proposal": None, "protocol": "paper"}
    scores = {"log_likelihood": log_likelihood, "elbo": elbo, "train_seconds": 1.0, "epochs": 2}
    return {"posterior": posterior, "dim": dim, "seed": seed, **plain, **scores, **changes}


#: Two seeds per spherical posterior, at half a nat around (paper's number + 1), and one row of every other kind.
VAE_ROWS = [
    *(
        vae_row("power_spherical", 10, seed, -96.46 + shift, -100.86 + shift)
        for seed, shift in ((0, -0.5), (1, 0.5))
    ),
    *(
        vae_row("von_mises_fisher", 10, seed, -96.37 + shift, -100.78 + shift)
        for seed, shift in ((0, -0.5), (1, 0.5))
    ),
    vae_row("gaussian", 10, 0, -95.0, -99.0),
    vae_row("power_spherical", 10, 0, -97.0, -102.0, prior="von_mises_fisher"),
    vae_row("power_spherical", 3, 0, -90.0, -96.0, factors=5),
    vae_row("power_spherical", 10, 0, -96.56, -101.0, proposal="closest_von_mises_fisher"),
    vae_row("power_spherical", 10, 0, -95.46, -99.0, protocol="early_stopping"),
]


def write_vae(folder: Path, rows=None, *, data: str = "mnist", name: str = "vae") -> Path:
    """Write the results of the auto-encoders and their figure."""
    tiny_figure(folder, name)
    return write_json(
        folder / f"{name}.json",
        experiment="vae",
        seed=0,
        configuration={
            "data": data,
            "epochs": 2,
            "batch": 64,
            "learning_rate": 1e-3,
            "samples": 5,
            "seeds": [0, 1],
        },
        results=VAE_ROWS if rows is None else rows,
        seconds=3700.0,
    )


def write_all(folder: Path, monkeypatch) -> Path:
    """Write the results of every experiment at the smallest possible size."""
    for module in (efficiency, figure1, stability):
        monkeypatch.setattr(module, "write_figure", tiny_figure)
    for module, name in ((stability, "stability_figure"), (closed_forms, "figure"), (figure1, "figure")):
        monkeypatch.setattr(module, name, lambda *_: None)
    cells = accuracy.cells
    monkeypatch.setattr(accuracy, "cells", lambda family: cells(family)[:2])
    monkeypatch.setattr(training_time, "training", lambda *_: lambda: time.sleep(1e-4))
    figure1.run(folder, samples=50)
    properties.run(folder, dims=[3], concentrations=[5.0], samples=1000)
    stability.run(folder, samples=Grid([2, 9], [1, 9]))
    efficiency.run(folder, concentrations=[1.0, 1000.0], trials=2, draws=1)
    training_time.run(folder, quick=True)
    write_vae(folder)
    return folder
