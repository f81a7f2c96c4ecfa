"""Fitting a mixture, and what its file says of the data."""

import sys
import warnings
from pathlib import Path
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from powerspherical._files.checkpoint import load_checkpoint
from powerspherical.mixture import SphericalMixture


def fitted(mixture: SphericalMixture, rows: Any, way_out: str = "") -> SphericalMixture:
    """Fit the mixture; if it did not settle, say so in one line, which ends in the way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(rows)
    if not mixture.converged_:
        told = f"the likelihood still rose after {mixture.max_iter} step(s){way_out}"
        print(f"powerspherical: {told}", file=sys.stderr)
    return mixture


def fitted_columns(path: Path) -> list[str]:
    """The names of the columns that the estimator in a file was fitted with; none if they had no names."""
    return load_checkpoint(path)["notes"].get("columns", [])
