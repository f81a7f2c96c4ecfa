"""The Power Spherical distribution (De Cao & Aziz, 2020)."""

from __future__ import annotations

from typing import ClassVar

from powerspherical.distributions.marginal import PowerSphericalMarginal
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.distributions.von_mises_fisher import VonMisesFisher
from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER


class PowerSpherical(RotationallySymmetric):
    r"""The Power Spherical distribution on the unit sphere of R^d.

    .. math:: p(x; \mu, \kappa) = \frac{(1 + \mu^\top x)^\kappa}{N(\kappa, d)}, \qquad
              N = 2^{\alpha+\beta} \pi^\beta \frac{\Gamma(\alpha)}{\Gamma(\alpha+\beta)},

    with α = (d-1)/2 + κ and β = (d-1)/2. ``log_normalizer`` is log N; the paper labels 1/N as the normaliser. Sampling
    takes one Gaussian vector and one Gamma variable (at d = 3 the vector alone), without rejection, and is
    differentiable in both parameters.

    Args:
        loc: mean directions μ, unit vectors of shape (…, d), d ≥ 2. Norms may be off by 1 %; vectors that are off by
            more than rounding are normalised. Half precision is computed in float32.
        concentration: κ ≥ 0, a number or a tensor that broadcasts against ``loc.shape[:-1]``; 0 is the uniform. The
            shape (B, 1) with ``loc`` of shape (B, d) is an error: squeeze it, or pass ``loc[None]`` for all pairs.
        validate_args: whether to check values (one synchronisation on CUDA). Default: torch's global setting. Without
            checks ``loc`` is used as it is, and NaN gives NaN.

    KL from the uniform has a relative error of about 1e-15 in float64 and 7e-7 in float32 for d from 2 to 1e7 and κ
    from 0 to 1e9. The errors of entropy and normaliser are relative to the larger of their two terms.

    >>> import torch
    >>> loc = torch.nn.functional.normalize(torch.tensor([[1.0, 2.0, 2.0]]), dim=-1)
    >>> p = PowerSpherical(loc, 10.0)
    >>> p.rsample((5,)).shape
    torch.Size([5, 1, 3])
    >>> p.mean, p.closest_von_mises_fisher().mean
    (tensor([[0.2778, 0.5556, 0.5556]]), tensor([[0.2778, 0.5556, 0.5556]]))
    """

    family = POWER_SPHERICAL
    _marginal_class = PowerSphericalMarginal
    _closest_class: ClassVar[type[VonMisesFisher]] = VonMisesFisher

    def closest_von_mises_fisher(self) -> VonMisesFisher:
        """Return the von Mises–Fisher distribution q that minimises KL(self‖q), with the same batch shape.

        vMF is an exponential family with the statistic x, so q has the same mean: its concentration κ' solves
        A_d(κ') = κ/(κ+d-1).
        """
        kappa = self._exact_concentration
        ends = self.family.mean_cosine(kappa, self.dim), self.family.mean_loss(kappa, self.dim)
        closest = VON_MISES_FISHER.from_mean_cosine(*ends, self.dim).to(self.concentration.dtype)
        return self._closest_class(self.loc, closest, self._validate_args)
