"""The von Mises–Fisher distribution."""

from __future__ import annotations

from powerspherical.distributions.marginal import VonMisesFisherMarginal
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.families import VON_MISES_FISHER


class VonMisesFisher(RotationallySymmetric):
    r"""The von Mises–Fisher distribution on the unit sphere of R^d.

    .. math:: p(x; \mu, \kappa) = \frac{\kappa^{d/2-1}}{(2\pi)^{d/2} I_{d/2-1}(\kappa)} e^{\kappa \mu^\top x}.

    Sampling is Wood's rejection (1994), vectorised, and inversion at d = 3. The gradient in κ is the implicit
    derivative of the draw for every d, to 5e-6 in float32 and 1e-12 in float64. It has neither the correction term nor
    the bias of differentiating through the rejection.

    Args:
        loc, concentration, validate_args: as for ``PowerSpherical``, with ``loc`` of shape (…, d).

    KL from the uniform and the mean have relative errors of about 3e-15 in float64 and 1e-6 in float32 for d from 2 to
    1e7 and κ from 0 to 1e9. The errors of entropy and normaliser are relative to the larger of their two terms.

    >>> import torch
    >>> p = VonMisesFisher(torch.eye(3)[0], torch.tensor([1.0, 100.0]))
    >>> p.batch_shape, p.sample().shape
    (torch.Size([2]), torch.Size([2, 3]))
    >>> p.mean[:, 0]
    tensor([0.3130, 0.9900])
    """

    family = VON_MISES_FISHER
    _marginal_class = VonMisesFisherMarginal
