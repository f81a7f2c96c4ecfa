"""Scores of an auto-encoder on test data: the ELBO, and log p(x) by importance sampling."""

import torch
from torch import Tensor

from powerspherical_paper.autoencoder.models import AutoEncoder
from powerspherical_paper.autoencoder.training import derived_seed
from powerspherical_paper.claims import Score

ELBO_DRAWS = 20  # per datum; with thousands of data, a few are enough
DECODED, DECODED_ON_CUDA = 10_000, 500_000  # decodings at once


@torch.no_grad()
def score(model: AutoEncoder, bits: Tensor, samples: int, seed: int) -> Score:
    """The mean scores on bits (N, pixels), with `samples` importance samples per datum."""
    torch.manual_seed(derived_seed(seed, "scores", 0))
    chunk = min(samples, 500)
    blocks = bits.split(max(1, (DECODED_ON_CUDA if bits.is_cuda else DECODED) // chunk))
    sums = torch.zeros(2, dtype=torch.float64, device=bits.device)
    for block in blocks:
        likelihood = model.log_likelihood(block, samples=samples, chunk=chunk)
        bound = model.elbo(block, samples=ELBO_DRAWS).elbo
        sums += torch.stack([likelihood.double().sum(), bound.double().sum()])
    return Score(*(sums / len(bits)).tolist())
