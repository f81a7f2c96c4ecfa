"""Choosing the family and the number of components of a mixture, by held-out likelihood and by BIC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state, check_scalar

from powerspherical._extras import install_hint
from powerspherical.families import family_named, family_names
from powerspherical.mixture._mixture import SphericalMixture, mixture_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Choice(NamedTuple):
    """A fitted mixture and its scores.

    Attributes:
        model: the name of the mixture among those compared.
        n_components: the number of components k.
        held_out: the mean log-likelihood per held-out row, in nats; higher is better.
        training: the mean log-likelihood per training row.
        bic: the Bayesian information criterion on the training rows; lower is better.
        mixture: the fitted estimator.

    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> best = max(compare(X, [2], random_state=0), key=lambda choice: choice.held_out)
    >>> best.n_components, best.mixture.predict(X).shape
    (2, (50,))
    """

    model: str
    n_components: int
    held_out: float
    training: float
    bic: float
    mixture: SphericalMixture


def compare(
    X: Any,
    components: Iterable[int],
    *,
    models: Mapping[str, SphericalMixture] | None = None,
    held_out: float = 0.2,
    random_state: Any = None,
) -> list[Choice]:
    """Fit mixtures with each number of components to a part of the rows, and score them on the rest.

    Args:
        X: rows (n, d) of any kind that the mixtures take. They are not copied.
        components: the numbers of components k to try.
        models: mixtures by name, with the settings to compare. Their ``n_components`` and ``random_state`` are
            overridden. Default: all registered families, each with a tied concentration.
        held_out: the fraction of rows to hold out. They are drawn at random, once for all mixtures.
        random_state: a seed, or a NumPy ``RandomState``, for that draw and for the starts.

    Returns one :class:`Choice` per model and number of components, in this order. Scores can be compared across
    families. They measure how well a density fits the rows. The groups that a person would form may need far fewer
    components and a tied concentration.

    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(size=(200, 3)) + 5 * np.eye(3)[i] for i in range(3)])
    >>> choices = compare(X, range(1, 6), random_state=0)
    >>> min(choices, key=lambda choice: choice.bic).n_components
    3
    """
    counts = list(components)
    for count in counts:
        check_scalar(count, "components", Integral, min_val=1)
    if models is None:
        models = {f"{family_named(name).title}, tied": mixture_named(name)() for name in family_names()}
    if not counts or not models:
        raise ValueError("components and models must each have at least one entry")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be a fraction between 0 and 1, got {held_out!r}")
    random = check_random_state(random_state)
    test = _held_out_rows(X, held_out, random, max(counts))
    seed = int(random.randint(np.iinfo(np.int32).max))
    choices, rows = [], len(test) - test.sum()
    for name, model in models.items():
        for count in counts:
            mixture = clone(model).set_params(n_components=count, random_state=seed)
            training = mixture.fit(X, sample_weight=1 - test).lower_bound_
            bic = mixture._n_parameters() * math.log(rows) - 2 * rows * training
            choices.append(Choice(name, count, mixture.score(X, sample_weight=test), training, bic, mixture))
    return choices


def _held_out_rows(X: Any, fraction: float, random: np.random.RandomState, largest: int) -> np.ndarray:
    """Return weights (n,), 1 for rows to hold out and else 0. With weights, no kind of array has to be split."""
    rows = np.shape(X)[0] if isinstance(X, Sequence) else X.shape[0]
    if not rows == rows:  # Dask's NaN
        raise ValueError("the number of rows of X is unknown: call X.compute_chunk_sizes()")
    wanted = round(fraction * rows)
    if not 0 < wanted <= rows - largest:
        raise ValueError(
            f"of {rows} rows, held_out={fraction} leaves {rows - wanted} to fit {largest} components and {wanted} to "
            "score: use more rows, fewer components or another fraction"
        )
    test = np.zeros(rows)
    test[random.choice(rows, wanted, replace=False)] = 1
    return test


def plot_comparison(choices: Sequence[Choice]) -> Figure:
    """Plot held-out likelihood and BIC against k, with one line per model and the best choice marked.

    ``choices`` come from :func:`compare`. Returns a Matplotlib figure; ``figure.savefig("choice.png")`` writes it.

    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> figure = plot_comparison(compare(X, [1, 2, 3], random_state=0))
    >>> [axes.get_title() for axes in figure.axes]
    ['Log-likelihood per held-out row (higher is better)', 'BIC (lower is better)']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plot_comparison needs Matplotlib: {install_hint('plot')}") from error

    if not choices:
        raise ValueError("choices must be the list that compare returned, got none")
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    criteria = (
        ("held_out", max, "Log-likelihood per held-out row (higher is better)"),
        ("bic", min, "BIC (lower is better)"),
    )
    for axes, (member, best, title) in zip(figure.subplots(1, 2), criteria, strict=True):
        for model in dict.fromkeys(choice.model for choice in choices):
            line = sorted((c.n_components, getattr(c, member)) for c in choices if c.model == model)
            axes.plot(*zip(*line, strict=True), marker="o", markersize=3.5, linewidth=1.2, label=model)
        k, value = best(((c.n_components, getattr(c, member)) for c in choices), key=lambda point: point[1])
        axes.plot(k, value, "ok", markersize=10, fillstyle="none", label="best")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("components")
        axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure
