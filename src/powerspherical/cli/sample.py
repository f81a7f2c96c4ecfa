"""`powerspherical sample`: random unit vectors, in a file or on the standard output."""

from __future__ import annotations  # options.family() is evaluated when the application is built

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from torch.distributions import Distribution
from typer import Argument, Option

from powerspherical import HypersphericalUniform
from powerspherical.cli import _options as options
from powerspherical.cli import outputs
from powerspherical.cli.columns import Array
from powerspherical.cli.common import LARGEST_SEED, plain, require_device, tell, wrong
from powerspherical.cli.rows import load_array, reading, rows_per_block
from powerspherical.distributions import distribution_named

DType = Literal["float32", "float64"]

UNIFORM = "uniform"


def sample(
    family: Annotated[str, options.family(Argument, UNIFORM, metavar="FAMILY")] = options.DEFAULT_FAMILY,
    dim: Annotated[
        int | None,
        Option(metavar="D", min=2, help="Dimension; 2 is the circle.", show_default="that of --loc, or 3"),
    ] = None,
    concentration: Annotated[
        float | None,
        Option(metavar="K", help="Concentration around --loc; required, except for uniform."),
    ] = None,
    loc: Annotated[
        str | None,
        Option(
            metavar="X,Y,…",
            help="Mean direction: coordinates such as 0,0.6,0.8, or a .npy file.",
            show_default="the first axis",
        ),
    ] = None,
    number: Annotated[int, Option("--number", "-n", metavar="N", min=1, help="Number of draws.")] = 10,
    seed: Annotated[
        int | None,
        Option(metavar="N", min=0, max=LARGEST_SEED, help="Random seed.", show_default="new draws each time"),
    ] = None,
    dtype: Annotated[DType, Option(metavar="TYPE", help="float32 or float64.")] = "float32",
    device: options.Device = "cpu",
    out: Annotated[str, Option(metavar="FILE", help="FILE.npy or FILE.csv; - prints CSV.")] = outputs.STDOUT,
    force: options.Force = False,
) -> None:
    """Draw random unit vectors, one per row.

    Example: powerspherical sample --loc 0,0,1 --concentration 20 -n 1000 --out draws.npy
    """
    _require_parameters(family, concentration, loc, dtype)
    mean = None if loc is None else direction(loc, dim)
    require_device(device)
    path = outputs.destination(out, inputs=[] if loc is None else [Path(loc)], force=force)
    kind: torch.dtype = getattr(torch, dtype)
    dim = dim or (3 if mean is None else len(mean))
    distribution: Distribution
    if concentration is None:
        distribution = HypersphericalUniform(dim, dtype=kind, device=device)
    else:
        mean = np.eye(1, dim)[0] if mean is None else mean
        make = distribution_named(family.replace("-", "_"))
        distribution = make(torch.tensor(mean, dtype=kind, device=device), concentration)
    torch.manual_seed(torch.seed() if seed is None else seed)
    rows = rows_per_block(dim)
    sizes = (min(rows, number - start) for start in range(0, number, rows))
    blocks = (distribution.sample((size,)).cpu().numpy() for size in sizes)
    outputs.write(path, blocks, (number, dim), "drawing")
    if path:
        print(f"{number} draws in {dim} dimensions: {plain(path)}")


def _require_parameters(family: str, concentration: float | None, loc: str | None, dtype: DType) -> None:
    """Raise unless these parameters fit the family."""
    if family == UNIFORM:
        for option, value in (("--concentration", concentration), ("--loc", loc)):
            if value is not None:
                raise wrong(option, f"the uniform distribution has no such parameter: leave {option} out")
    elif concentration is None:
        raise wrong("--concentration", f"{family} needs a value, for example --concentration 10")
    elif not 0 <= concentration <= float(np.finfo(dtype).max):  # also catches NaN
        raise wrong("--concentration", f"{concentration:g} must be ≥ 0 and fit into {dtype}")


def direction(text: str, dim: int | None = None) -> Array:
    """The unit vector along comma-separated coordinates, or along the vector in a .npy file; `dim` is the wanted d."""
    if text.endswith(".npy"):
        with reading(Path(text), "--loc"):
            vector = load_array(Path(text))
            if vector.ndim != 1 or vector.dtype.kind not in "fiu":
                found = f"{vector.dtype} of shape {vector.shape}"
                raise ValueError(f"it must hold one vector of real numbers, but holds {found}")
            vector = vector.astype(np.float64)
    else:
        try:
            vector = np.array([float(part) for part in text.split(",")])
        except ValueError:
            wanted = "a list of numbers such as 0,0.6,0.8 nor a .npy file"
            raise wrong("--loc", f"{text!r} is neither {wanted}") from None
    has = f"{text} has {len(vector)} coordinate(s)"
    if dim is not None and len(vector) != dim:
        raise wrong("--loc", f"{has}, but --dim is {dim}")
    if len(vector) < 2:
        raise wrong("--loc", f"{has}, but needs at least two (the circle)")
    length = math.hypot(*vector)
    if not 0 < length < math.inf:  # also catches NaN
        raise wrong("--loc", f"{text} has no direction: its coordinates must be finite and not all zero")
    if abs(length - 1) > 1e-3:  # no notice for a unit vector typed with a few decimals
        tell(f"--loc has length {length:.6g}; normalised")
    return vector / length
