"""How good an auto-encoder is on data it has not seen: the ELBO, and log p(x) by importance sampling."""

from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.experiments.autoencoder.training import ALONE, derived_seed
from powerspherical.experiments.autoencoder.workers import Workers
from powerspherical.experiments.results import Progress, silent
from powerspherical.nn import HypersphericalVAE

ELBO_DRAWS = 20  # a datum; with thousands of data, a few are more than enough
DECODED, DECODED_ON_CUDA = 10_000, 500_000  # decodings at a time


class Scores(NamedTuple):
    """Means over the data, in nats."""

    log_likelihood: float
    elbo: float


@torch.no_grad()
def score(
    model: HypersphericalVAE,
    bits: Tensor,
    *,
    samples: int,
    seed: int,
    team: Workers = ALONE,
    progress: Progress = silent,
) -> Scores:
    """The scores on bits (N, pixels), with `samples` importance samples for each; processes share the data."""
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
    return Scores(*(team.sum(sums) / len(bits)).tolist())
