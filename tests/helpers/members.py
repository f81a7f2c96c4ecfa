"""The public members of a distribution as functions of it, for tests that run over all members.

Other arguments are derived from the distribution, so that they have its shape, dtype and device. They are exact in half
precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from helpers.examples import FAMILIES, IDS
from powerspherical import HypersphericalUniform, PowerSpherical, pairwise_kl

Member = Callable[[Distribution], Tensor]


def elsewhere(q: Distribution) -> Tensor:
    """Return unit vectors that differ from ``loc``."""
    return q.loc.detach().roll(1, -1)


def two_points(q: Distribution) -> Tensor:
    """Return two unit vectors, the same for every element of the batch."""
    return torch.eye(2, q.dim, dtype=q.loc.dtype, device=q.loc.device)


def cosine(q: Distribution) -> Tensor:
    return torch.full_like(q.concentration.detach(), 0.375)


#: In the dtype of the samples.
MOMENTS: dict[str, Member] = {
    "mean": lambda q: q.mean,
    "mode": lambda q: q.mode,
    "variance": lambda q: q.variance,
    "covariance_matrix": lambda q: q.covariance_matrix,
}


def _divergence(family: type) -> Member:
    """Return the KL to a member of ``family`` with another direction and concentration, which depend on those of q."""
    return lambda q: kl_divergence(
        q, family(q.loc.roll(1, -1), 0.5 * q.concentration + 1, validate_args=False)
    )


#: Over the three families these are all ordered pairs, with derivatives in all parameters.
DIVERGENCES: dict[str, Member] = {
    **{f"KL to {name}": _divergence(family) for name, family in zip(IDS, FAMILIES, strict=True)},
    "KL to uniform": lambda q: kl_divergence(q, HypersphericalUniform(q.dim, validate_args=False)),
    "KL from uniform": lambda q: kl_divergence(HypersphericalUniform(q.dim, validate_args=False), q),
}

#: Differentiable twice, in at least float32.
SMOOTH: dict[str, Member] = {
    "log_prob": lambda q: q.log_prob(elsewhere(q)),
    "log_prob_matrix": lambda q: q.log_prob_matrix(two_points(q)),
    "pairwise_kl": lambda q: pairwise_kl(q, type(q)(two_points(q), 3.0, validate_args=False)),
    "entropy": lambda q: q.entropy(),
    "log_normalizer": lambda q: q.log_normalizer,
    "from_kl": lambda q: type(q).from_kl(q.loc, q.concentration, validate_args=False).concentration,
    "from_mean_length": lambda q: (
        type(q).from_mean_length(q.loc, q.concentration / 64, validate_args=False).concentration
    ),
    "marginal.log_prob": lambda q: q.marginal.log_prob(cosine(q)),
    "marginal.entropy": lambda q: q.marginal.entropy(),
    "marginal.mean": lambda q: q.marginal.mean,
    **DIVERGENCES,
}

#: Differentiable once, in at least float32.
TAILS: dict[str, Member] = {
    "marginal.cdf": lambda q: q.marginal.cdf(cosine(q)),
    "marginal.log_sf": lambda q: q.marginal.log_sf(cosine(q)),
    "marginal.icdf": lambda q: q.marginal.icdf(cosine(q)),
    "cap_probability": lambda q: q.cap_probability(1.2),
    "cap_angle": lambda q: q.cap_angle(0.6),
}

MEMBERS: dict[str, Member] = {
    **MOMENTS,
    **SMOOTH,
    "marginal.variance": lambda q: q.marginal.variance,
    **TAILS,
}

#: Of Power Spherical alone.
CLOSEST: dict[str, Member] = {
    "closest_von_mises_fisher": lambda q: q.closest_von_mises_fisher().concentration
}

#: Different at each call.
DRAWS: dict[str, Member] = {
    "rsample": lambda q: q.rsample((2,)),
    "sample": lambda q: q.sample((2,)),
    "marginal.rsample": lambda q: q.marginal.rsample((2,)),
}


def members(family: type) -> dict[str, Member]:
    """Return all members of a family but its draws."""
    return MEMBERS | (CLOSEST if family is PowerSpherical else {})


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Add the name of the member to an error that is raised inside."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(f"The member is {name}.")
        raise
