"""The mixtures of our families."""

from __future__ import annotations

from powerspherical.distributions import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.mixture._spherical_mixture import SphericalMixture


class PowerSphericalMixture(SphericalMixture):
    r"""A mixture of Power Spherical distributions, fitted by EM.

    .. math:: p(x) = \sum_k \pi_k \frac{(1 + \mu_k^\top x)^{\kappa_k}}{N(\kappa_k, d)}.

    Rows of ``X`` (n, d), d ≥ 2, are normalised on the way, not copied; a row of zeros has t = 0 to every direction.
    They may be a NumPy array, a SciPy sparse matrix (which stays sparse), a CPU or CUDA tensor, or a Dask array of
    either of the first two. float64 and float32 are computed in themselves, half precision in float32, NumPy's integers
    in float64. What is fitted or predicted is of the same kind, in the dtype of the computation, on the same device
    (with Dask, what there is for each row stays lazy). Memory beyond ``X`` is that of a block of rows for each thread,
    of 32,768 rows (or 32 k) to choose directions from, and of n norms where rows are not unit vectors.

    Args:
        n_components: the number of components k.
        concentration_type: ``"tied"``, one κ for all, or ``"free"``, one for each. Tied components cluster better: as
            in k-means, a row then goes by direction alone (and weight). Free ones fit better, and take differences in
            spread for clusters.
        n_init: the number of starts; the run with the highest likelihood is kept. ``"auto"``: 10 for ``init="random"``,
            else 1, as in scikit-learn's ``KMeans``.
        init: ``"k-means++"``, ``"random"`` (rows), both followed by a few steps of spherical k-means, or an array of
            directions (k, d) to start from.
        tol: EM ends when the log-likelihood of a row rises by no more than this, in nats.
        max_iter: or after so many steps, with scikit-learn's ``ConvergenceWarning``.
        warm_start: whether ``fit`` goes on from the last fit, with the same number of components.
        random_state: a seed, or NumPy's ``RandomState``; it decides the starts and what ``sample`` draws.
        verbose: whether to print the log-likelihood after each step, or a function to give each such line to.
        concentration: the former name of ``concentration_type``.

    Attributes:
        weights_: π, (k,).
        mean_directions_: μ, (k, d).
        concentrations_: κ, (k,); all alike if tied. At most 1e5 in float32 and 1e9 in float64.
        converged_: whether ``tol`` was reached.
        n_iter_: the number of steps, each a pass over the rows (after ``partial_fit``: of batches).
        lower_bound_: the log-likelihood of a row, as ``score`` gives it for the same rows.
        lower_bounds_: the same after each step that was kept; it never falls. A step that would lower it is taken
            back and halved.

    ``transform`` gives the soft assignments of ``predict_proba``, with ``set_output`` as a DataFrame.

    A component that is left with less than a tenth of a row starts again far from the others, once.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(100, 3)) + 4 * np.eye(3)[i] for i in (0, 1)])
    >>> mixture = PowerSphericalMixture(2, random_state=0).fit(X)
    >>> mixture.weights_.round(1), mixture.mean_directions_.shape
    (array([0.5, 0.5]), (2, 3))
    >>> len(set(mixture.predict(X[:100])))
    1
    """

    distribution = PowerSpherical


class VonMisesFisherMixture(SphericalMixture):
    r"""A mixture of von Mises–Fisher distributions, fitted by EM (Banerjee et al., 2005).

    .. math:: p(x) = \sum_k \pi_k C_d(\kappa_k) e^{\kappa_k \mu_k^\top x},

    with concentrations exact in any dimension, by the inverse of the ratio of Bessel functions. Arguments, attributes
    and the kinds of rows are those of :class:`PowerSphericalMixture`.

    >>> import torch
    >>> from powerspherical import VonMisesFisher
    >>> _ = torch.manual_seed(0)
    >>> X = VonMisesFisher(torch.eye(64)[:3], 200.0).sample((500,)).reshape(-1, 64)
    >>> mixture = VonMisesFisherMixture(3, random_state=0).fit(X)
    >>> (mixture.concentrations_ / 200).round(decimals=1)
    tensor([1., 1., 1.])
    """

    distribution = VonMisesFisher


class SphericalCauchyMixture(SphericalMixture):
    r"""A mixture of spherical Cauchy distributions, fitted by EM: heavy tails, which outliers hardly move.

    .. math:: p(x) = \sum_k \pi_k \frac{\Gamma(d/2)}{2 \pi^{d/2}}
              \left( \frac{1 - \rho_k^2}{\lVert x - \rho_k \mu_k \rVert^2} \right)^{d-1}, \qquad
              \rho_k = \frac{\kappa_k}{\kappa_k + 2}.

    Arguments, attributes and the kinds of rows are those of :class:`PowerSphericalMixture`.

    >>> import torch
    >>> from powerspherical import SphericalCauchy
    >>> _ = torch.manual_seed(0)
    >>> X = SphericalCauchy(torch.eye(8)[:3], 10.0).sample((500,)).reshape(-1, 8)
    >>> mixture = SphericalCauchyMixture(3, random_state=0).fit(X)
    >>> (mixture.concentrations_ / 10).round(decimals=1)
    tensor([1., 1., 1.])
    """

    distribution = SphericalCauchy
