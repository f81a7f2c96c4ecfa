"""Mixtures by name, and their files: safetensors with JSON in the header, which run no code when they are read."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning

from powerspherical.mixture import PowerSphericalMixture, SphericalMixture, VonMisesFisherMixture
from powerspherical.nn.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

MIXTURES: dict[str, type[SphericalMixture]] = {
    "power-spherical": PowerSphericalMixture,
    "von-mises-fisher": VonMisesFisherMixture,
}
FITTED = ("weights_", "mean_directions_", "concentrations_")
TOLD = ("converged_", "n_iter_", "lower_bound_")


def name_of(mixture: SphericalMixture) -> str:
    """The name that a mixture's class has here."""
    return next(name for name, kind in MIXTURES.items() if type(mixture) is kind)


def fitted(mixture: SphericalMixture, rows: Any, way_out: str = "") -> SphericalMixture:
    """Fit the mixture; if it did not settle, say so in one line, which ends in the way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(rows)
    if not mixture.converged_:
        told = f"the likelihood still rose after {mixture.max_iter} step(s){way_out}"
        print(f"powerspherical: {told}", file=sys.stderr)
    return mixture


def save_model(path: Path, mixture: SphericalMixture, columns: Sequence[str] = ()) -> Path:
    """Write a fitted mixture, and the names of the columns it was fitted with if they have any, in one step."""
    state: dict[str, Any] = {"mixture": name_of(mixture), "concentration": mixture.concentration}
    state["columns"] = list(columns)
    state |= {name: torch.as_tensor(getattr(mixture, name)) for name in FITTED}
    state |= {name: getattr(mixture, name) for name in TOLD}
    return save_checkpoint(path, state)


def load_model(path: Path) -> SphericalMixture:
    """The mixture that `save_model` wrote, ready to predict; raises `CheckpointError` or `FileNotFoundError`."""
    try:
        state = load_checkpoint(path)
    except (
        CheckpointError
    ) as error:  # whose way out, to delete the file, is none for what may be the user's rows
        told = f"{path} is no model that `powerspherical cluster` or `fit` wrote, or it was damaged"
        raise CheckpointError(told) from error
    if state.get("mixture") not in MIXTURES:
        raise CheckpointError(f"{path} is a checkpoint, but not of a mixture")
    directions = state["mean_directions_"]
    mixture = MIXTURES[state["mixture"]](len(directions), concentration=state["concentration"])
    mixture.n_features_in_ = directions.shape[1]
    for name in FITTED:
        setattr(mixture, name, state[name].numpy())
    for name in TOLD:
        setattr(mixture, name, state[name])
    return mixture


def fitted_columns(path: Path) -> list[str]:
    """The names of the columns that the mixture in a file was fitted with; none if they had no names."""
    return load_checkpoint(path).get("columns", [])
