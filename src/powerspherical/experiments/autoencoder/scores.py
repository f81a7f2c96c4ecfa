"""Scores of an auto-encoder on test data: the ELBO, and log p(x) by importance sampling."""

import torch
from torch import Tensor

from powerspherical.experiments.autoencoder.training import ALONE, derived_seed
from powerspherical.experiments.autoencoder.workers import Workers
from powerspherical.experiments.paper import Score
from powerspherical.experiments.results import Progress, silent
from powerspherical.nn import HypersphericalVAE

ELBO_DRAWS = 20  # per datum; with thousands of data, a few are enough
DECODED, DECODED_ON_CUDA = 10_000, 500_000  # decodings at once


@torch.no_grad()
def score(
    model: HypersphericalVAE,
    bits: Tensor,
    *,
    samples: int,
    seed: int,
    team: Workers = ALONE,
    progress: Progress = silent,
) -> Score:
    """The mean scores on bits (N, pixels), with `samples` importance samples per datum; processes share the data."""
    torch.manual_seed(derived_seed(seed, "scores", team.rank))
    share = team.share(bits)
    chunk = min(samples, 500)
    blocks = share.split(max(1, (DECODED_ON_CUDA if bits.is_cuda else DECODED) // chunk))
    sums = torch.zeros(2, dtype=torch.float64, device=bits.device)
    for done, block in enumerate(blocks, start=1):
        likelihood = model.log_likelihood(block, samples=samples, chunk=chunk)
        bound = model.elbo(block, samples=ELBO_DRAWS).elbo
        sums += torch.stack([likelihood.double().sum(), bound.double().sum()])
        progress(done / len(blocks))
    return Score(*(team.sum(sums) / len(bits)).tolist())
