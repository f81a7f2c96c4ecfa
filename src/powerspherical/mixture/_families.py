"""The mixtures of the built-in families."""

from __future__ import annotations

from powerspherical.distributions import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.mixture._mixture import SphericalMixture


class PowerSphericalMixture(SphericalMixture):
    r"""A mixture of Power Spherical distributions, fitted by EM.

    .. math:: p(x) = \sum_k \pi_k \frac{(1 + \mu_k^\top x)^{\kappa_k}}{N(\kappa_k, d)}.

    The rows of ``X`` (n, d), d ≥ 2, may be a NumPy array, a SciPy sparse matrix (which stays sparse), a CPU or CUDA
    tensor, or a Dask array of NumPy or sparse blocks. They are normalised block by block, without a copy of ``X``. A
    row of zeros has t = 0 to every direction. Half precision is computed in float32, NumPy integers in float64. Results
    have the kind and device of the rows and the dtype of the computation. With Dask, results per row stay lazy. Memory
    beyond ``X``: one block of rows per thread, a sample of at most 32,768 rows and 2²³ numbers (but of 32 k rows) to
    choose directions from, and n norms if rows are not unit vectors.

    Args:
        n_components: the number of components k.
        concentration_type: ``"tied"``, one κ for all components, or ``"free"``, one for each. Tied components cluster
            better: as in k-means, only direction (and weight) decides where a row belongs. Free ones fit the density
            better, but may separate rows by spread instead of direction.
        n_init: the number of starts. The run with the highest likelihood is kept. ``"auto"``: 10 for ``init="random"``,
            else 1, as in scikit-learn's ``KMeans``.
        init: ``"k-means++"`` or ``"random"`` (rows), both followed by a few steps of spherical k-means, or an array of
            directions (k, d).
        tol: EM stops when the mean log-likelihood per row rises by no more than this, in nats.
        max_iter: the maximum number of steps. If they are not enough, ``fit`` warns with a ``ConvergenceWarning``.
        warm_start: whether ``fit`` continues from the last fit, with the same number of components.
        random_state: a seed, or a NumPy ``RandomState``, for the starts and for ``sample``.
        verbose: whether to print the log-likelihood after each step, or a function that receives each such line.

    Attributes:
        weights_: π, (k,).
        mean_directions_: μ, (k, d).
        concentrations_: κ, (k,), all equal if tied. At most 1e5 in float32 and 1e9 in float64.
        converged_: whether ``tol`` was reached.
        n_iter_: the number of steps, each a pass over the rows (after ``partial_fit``: the number of batches).
        lower_bound_: the mean log-likelihood per row, equal to ``score`` of the same rows.
        lower_bounds_: ``lower_bound_`` at the start and after each step that was kept. It never falls: a step that
            would lower it is rejected and halved.

    A component that is left with less than a tenth of a row starts again, once, far from the others.

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
    """A mixture of von Mises–Fisher distributions, fitted by EM (Banerjee et al., 2005).

    Concentrations are exact in any dimension, by the inverse of the ratio of Bessel functions. Arguments, attributes
    and kinds of rows are those of :class:`PowerSphericalMixture`.

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
    """A mixture of spherical Cauchy distributions, fitted by EM. Its tails are heavy: outliers hardly move it.

    Arguments, attributes and kinds of rows are those of :class:`PowerSphericalMixture`.

    >>> import torch
    >>> from powerspherical import SphericalCauchy
    >>> _ = torch.manual_seed(0)
    >>> X = SphericalCauchy(torch.eye(8)[:3], 10.0).sample((500,)).reshape(-1, 8)
    >>> mixture = SphericalCauchyMixture(3, random_state=0).fit(X)
    >>> (mixture.concentrations_ / 10).round(decimals=1)
    tensor([1., 1., 1.])
    """

    distribution = SphericalCauchy
