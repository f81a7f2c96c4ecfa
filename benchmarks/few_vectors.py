"""The bias of κ fitted to few vectors in many dimensions, with and without `bias_correction`, beside SciPy's fit.

Each setting draws samples of n unit vectors from a distribution with a known κ, which is chosen by the mean cosine
with the mean direction, and fits each sample. The bias is the mean of the fitted κ over the true one, minus one.
SciPy fits von Mises–Fisher only; its column is the median of the fitted κ, over the first samples.

    python benchmarks/few_vectors.py [--threads N] [--quick] [--out DIR]
"""

import itertools
import warnings
from collections.abc import Iterator

import numpy as np
import scipy.stats
import torch
from _command import Command, Row, table
from torch import Tensor

from powerspherical import PowerSpherical, RotationallySymmetric, VonMisesFisher

# Samples for each d. The spread of κ falls as 1/√d, so fewer are enough in more dimensions.
SAMPLES, QUICK_SAMPLES = {384: 400, 1024: 200, 4096: 100}, {16: 20}
NUMBERS, COSINES = (5, 10, 20), (0.3, 0.6, 0.9)
BLOCK, SCIPY_SAMPLES = 20, 20
WANTED = 0.05


def fitted_by_scipy(x: Tensor) -> float:
    """Return SciPy's κ for the points x (n, d). Its warnings about overflow are part of the result."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return float(scipy.stats.vonmises_fisher.fit(x.numpy())[1])


def measured(family: type[RotationallySymmetric], dim: int, number: int, cosine: float, samples: int) -> Row:
    """Fit `samples` samples of one setting, in blocks that stay in the cache."""
    generator = torch.Generator().manual_seed(dim + number)
    loc = torch.eye(1, dim, dtype=torch.float64)[0]
    truth = family.from_mean_length(loc, cosine).expand((BLOCK,))
    kappa = truth.concentration[0].item()
    plain, corrected, theirs = [], [], []
    for _ in range(samples // BLOCK):
        x = truth.sample((number,), generator=generator)
        plain.append(family.fit(x).concentration / kappa)
        corrected.append(family.fit(x, bias_correction=True).concentration / kappa)
        if family is VonMisesFisher and len(theirs) < SCIPY_SAMPLES:
            theirs.extend(fitted_by_scipy(x[:, i]) for i in range(BLOCK))
    ratios = torch.cat(corrected)
    return {
        "family": family.family.title,
        "dim": dim,
        "number": number,
        "mean_cosine": cosine,
        "samples": samples,
        "concentration": kappa,
        "bias": torch.cat(plain).mean().item() - 1,
        "bias_corrected": ratios.mean().item() - 1,
        "standard_error": ratios.std().item() / samples**0.5,
        "spread": ratios.std().item(),
        "scipy": float(np.median(theirs)) if theirs else None,
    }


def results(samples: dict[int, int]) -> Iterator[Row]:
    """Measure both families in every setting."""
    for family, dim, number, cosine in itertools.product(
        (PowerSpherical, VonMisesFisher), samples, NUMBERS, COSINES
    ):
        yield measured(family, dim, number, cosine, samples[dim])


HEADINGS = ("family", "d", "n", *(f"mean cosine {cosine:g}" for cosine in COSINES), "κ by SciPy")


def lines(rows: list[Row]) -> Iterator[list[str]]:
    """Yield the lines of the table: for each family, d and n the biases, without and with the correction."""
    for (family, dim, number), group in itertools.groupby(
        rows, key=lambda row: (row["family"], row["dim"], row["number"])
    ):
        settings = list(group)
        biases = [f"{100 * row['bias']:+z.1f} %, {100 * row['bias_corrected']:+z.1f} %" for row in settings]
        theirs = [f"{row['scipy']:.3g}" for row in settings if row["scipy"] is not None]
        yield [family, str(dim), str(number), *biases, ", ".join(dict.fromkeys(theirs)) or "–"]


def main(argv: list[str] | None = None) -> None:
    """Fit, print the table, and write `few_vectors.json`."""
    command = Command("few_vectors", __doc__, argv, cpu_only=True)
    rows = list(results(QUICK_SAMPLES if command.quick else SAMPLES))
    worst = max(abs(row["bias_corrected"]) for row in rows)
    configuration = {"dtype": "float64", "wanted": WANTED}
    shown = table("Bias of the fitted κ, without and with the correction", HEADINGS, lines(rows))
    note = f"largest bias with the correction: {worst:.1%}, wanted: at most {WANTED:.0%}"
    content = {"configuration": configuration, "worst": worst, "results": rows}
    command.finish(content, [shown], notes=[note])


if __name__ == "__main__":
    main()
