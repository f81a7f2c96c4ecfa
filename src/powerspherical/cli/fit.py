"""`powerspherical fit`: one distribution for the rows of a file."""

from __future__ import annotations  # options.family() is evaluated when the application is built

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import torch
from rich.console import Console
from rich.table import Column, Table
from typer import Option

from powerspherical import ConvergenceWarning
from powerspherical.cli import _options as options
from powerspherical.cli.columns import Array, Wanted, listed
from powerspherical.cli.common import plain, require, status, tell
from powerspherical.cli.outputs import destination
from powerspherical.cli.rows import Data, check, read
from powerspherical.special import log_sphere_area

if TYPE_CHECKING:
    from powerspherical.mixture import SphericalMixture

SUFFIX = ".safetensors"
_TOLERANCE = 1e-9  # nats per row: a single distribution converges quickly, down to rounding errors
_STEPS = 1000


def fit(
    data: options.DataFile,
    model: Annotated[str | None, options.family(show_default="all")] = None,
    key: options.Key = None,
    columns: options.Columns = None,
    drop: options.Drop = None,
    header: options.Header = None,
    strict: options.Strict = False,
    out: Annotated[str | None, Option(metavar="FILE", help="FILE.safetensors for the likeliest fit.")] = None,
    force: options.Force = False,
) -> None:
    """Fit one distribution to the rows of a file.

    Fits every family, or only --model, by maximum likelihood. Prints the fits beside the uniform distribution, each
    with the angle around the mean direction that holds 50 % of the probability. Then prints the mean direction of
    the fit with the highest likelihood.

    Example: powerspherical fit embeddings.npy
    """
    require("scipy", "sklearn", *(["safetensors"] if out else []), needed_for="fit")
    path = None if out is None else destination(out, force=force, inputs=[data], suffixes=[SUFFIX])
    from powerspherical.mixture import mixture_named

    rows = read(data, Wanted(key, columns, drop, header))
    fits = {}
    with status(f"reading {data}") as show:
        check(rows, strict=strict, show=show)
        for name in [model] if model else options.family_choices():
            make = mixture_named(name.replace("-", "_"))
            mixture = make(tol=_TOLERANCE, max_iter=_STEPS, random_state=0)
            fits[name] = fit_mixture(mixture, rows.rows, show)
    name, best = max(fits.items(), key=lambda fit: fit[1].lower_bound_)
    print(f"{rows.count} rows in {rows.dim} dimensions: {plain(rows.name)}")
    Console().print(_table(rows, fits))  # before writing, which may fail
    coordinates = [f"{number:.4f}" for number in best.mean_directions_[0]]
    print(f"mean direction of {name}: {listed(coordinates, first=6)}")
    if path:
        best.save(path, notes={"columns": list(rows.columns)})
        print(f"written: {plain(path)}")


def fit_mixture(
    mixture: SphericalMixture, rows: Array, show: Callable[[str], None], advice: str = ""
) -> SphericalMixture:
    """Fit and return the mixture. If it does not converge, print one line that ends with the advice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.set_params(verbose=show).fit(rows)
    if not mixture.converged_:
        tell(f"the fit did not converge in {mixture.max_iter} step(s){advice}")
    return mixture


def _table(data: Data, fits: dict[str, SphericalMixture]) -> Table:
    """One line per family, and one for the uniform distribution."""
    headings = ("concentration", "‖mean‖", "50 % within", "log-likelihood\nper row")
    numbers = (Column(heading, justify="right") for heading in headings)
    shown = Table(Column("distribution", no_wrap=True), *numbers)
    for name, mixture in fits.items():
        loc = torch.nn.functional.normalize(torch.from_numpy(mixture.mean_directions_[0]).double(), dim=0)
        kappa = float(mixture.concentrations_[0])
        distribution = mixture.distribution(loc, kappa)
        length = float(torch.linalg.vector_norm(distribution.mean))
        angle = float(torch.rad2deg(distribution.cap_angle(0.5)))
        shown.add_row(name, f"{kappa:.6g}", f"{length:.4f}", f"{angle:.2f}°", f"{mixture.lower_bound_:.4f}")
    shown.add_row("uniform", "0", "0", "90.00°", f"{-float(log_sphere_area(data.dim)):.4f}")
    return shown
