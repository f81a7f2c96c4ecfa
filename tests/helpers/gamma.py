"""Reference derivatives of Gamma draws."""

from __future__ import annotations

import numpy as np
import scipy.special
import torch
from torch import Tensor


def log_slope(alpha: Tensor, gamma: Tensor) -> Tensor:
    """Return dlog G/dα of Gamma draws G at a fixed probability, by differences of SciPy's quantiles, in float64."""
    shape, value = (x.detach().double().cpu().numpy() for x in (alpha, gamma))
    step = 1e-4 * shape
    below, above = scipy.special.gammainc(shape, value), scipy.special.gammaincc(shape, value)
    ends = [
        np.where(
            below < 0.5,
            scipy.special.gammaincinv(shape + h, below),
            scipy.special.gammainccinv(shape + h, above),
        )
        for h in (-step, step)
    ]
    return torch.from_numpy((ends[1] - ends[0]) / (2 * step) / value)
