"""The steps of EM: sums that add up, a likelihood that does not fall, components that start again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from helpers.clusters import clustered, mixtures, tying
from helpers.examples import directions
from powerspherical import PowerSpherical, families
from powerspherical.distributions import distribution_named
from powerspherical.families.power_spherical import PowerSphericalFamily
from powerspherical.mixture import PowerSphericalMixture, SphericalCauchyMixture, _spherical_mixture
from powerspherical.mixture._rows import Block, TensorRows, argmax_
from powerspherical.mixture._spherical_kmeans import clusters_of
from powerspherical.mixture._spherical_mixture import (
    Parameters,
    components_of,
    expectation_maximisation,
    from_clusters,
    maximised,
    statistics_of,
)

all_families = pytest.mark.parametrize(
    "family",
    [families.POWER_SPHERICAL, families.VON_MISES_FISHER, families.SPHERICAL_CAUCHY],
    ids=["PS", "vMF", "Cauchy"],
)


def start_for(family, x: torch.Tensor, components: int) -> Parameters:
    return from_clusters(family, x[:components], clusters_of(x[:components], [Block(x)]), x.dtype)


def no_reseeding(kept: torch.Tensor, wanted: int) -> torch.Tensor:
    raise AssertionError("no component is empty here")


@all_families
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_statistics_are_the_sums_they_say(family, weighted: bool, scaled: bool) -> None:
    unit = directions(50, 5)
    parameters = Parameters(
        torch.tensor([0.3, 0.7]).double().log(), directions(2, 5, seed=9), torch.tensor([3.0, 40.0]).double()
    )
    lengths = torch.rand(50, dtype=torch.float64) + 0.5
    weight = torch.rand(50, dtype=torch.float64) if weighted else torch.ones(50, dtype=torch.float64)
    block = Block(
        unit * lengths[:, None] if scaled else unit,
        1 / lengths if scaled else None,
        weight if weighted else None,
    )
    found = components_of(family, parameters, torch.float64).statistics(block)
    components = distribution_named(family.name)(parameters.directions, parameters.concentrations)
    joint = components.log_prob(unit.unsqueeze(1)) + parameters.log_weights
    shares = joint.softmax(1) * weight[:, None]
    t = unit @ parameters.directions.T
    kappa = parameters.concentrations.expand_as(t)
    pull, bend = family.pull_and_bend(1 - t, 1 + t, kappa, 5)
    torch.testing.assert_close(found.count, shares.sum(0))
    torch.testing.assert_close(found.pull, (shares * pull).T @ unit)
    torch.testing.assert_close(found.bend, (shares * bend).sum(0))
    torch.testing.assert_close(found.log_likelihood, (joint.logsumexp(1) * weight).sum())
    torch.testing.assert_close(found.weight, weight.sum())
    if not family.linear:
        score = family.score(1 - t, 1 + t, kappa, 5)
        torch.testing.assert_close(found.score, (shares * score).sum(0))


@all_families
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 1.0), (3, 0.5), (3, 20.0), (10, 2.0), (50, 30.0), (50, 3000.0)]
)
def test_the_likelihood_does_not_fall(family, tied: bool, dim: int, kappa: float) -> None:
    """Without the safeguard: no step of fifty lowers it, by more than rounding."""
    distribution = distribution_named(family.name)
    truth = distribution(directions(3, dim), kappa)
    if family is families.SPHERICAL_CAUCHY:  # as far from the directions as for the others
        length = families.VON_MISES_FISHER.mean_cosine(torch.tensor(kappa).double(), dim)
        truth = distribution.from_mean_length(directions(3, dim), length)
    x = truth.sample((80,)).reshape(-1, dim)
    rows, parameters = TensorRows(x), start_for(family, x, 4)
    before = -np.inf
    for _ in range(50):
        statistics = statistics_of(rows, family, parameters)
        assert statistics.mean_log_likelihood() >= before - 1e-12 * max(1.0, abs(before))
        before = statistics.mean_log_likelihood()
        parameters = maximised(family, statistics, parameters, tied=tied, dtype=torch.float64)


class OvershootingFamily(PowerSphericalFamily):
    """Without the bend, the step of small concentrations goes too far."""

    def point_sums_(self, kept, shares, kappa, dim):
        found = super().point_sums_(kept, shares, kappa, dim)
        return found._replace(bend=0 * found.bend)


OVERSHOOTING = OvershootingFamily()


def ever_falling(fall: float):
    """An expectation step of which each evaluation gives a likelihood that is lower by a fraction than the last one."""
    score = -100.0

    def lower_each_time(rows: TensorRows, family, parameters: Parameters):
        nonlocal score
        score *= 1 + fall
        found = statistics_of(rows, family, parameters)
        return dataclasses.replace(found, log_likelihood=score * found.weight)

    return lower_each_time


def em_run(rows: TensorRows, family, start: Parameters, **options):
    return expectation_maximisation(
        rows,
        family,
        start,
        **{"tied": True, "tol": 1e-8, "max_iter": 300, "reseed": no_reseeding, "report": lambda *_: None}
        | options,
    )


def unguarded_scores(rows: TensorRows, parameters: Parameters) -> list[float]:
    scores = []
    for _ in range(30):
        statistics = statistics_of(rows, OVERSHOOTING, parameters)
        scores.append(statistics.mean_log_likelihood())
        parameters = maximised(OVERSHOOTING, statistics, parameters, tied=True, dtype=torch.float64)
    return scores


def test_a_step_too_far_is_taken_back() -> None:
    for seed in range(20):  # a few of them need the safeguard
        torch.manual_seed(seed)
        x = PowerSpherical(directions(8), 0.5).sample((300,))
        rows, parameters = TensorRows(x), start_for(OVERSHOOTING, x, 3)
        scores = unguarded_scores(rows, parameters)
        if (np.diff(scores) < -1e-9).any():
            break
    else:
        pytest.fail("no start needs the safeguard")
    run = em_run(rows, OVERSHOOTING, parameters)
    assert (np.diff(run.scores) >= 0).all()
    assert run.scores[-1] >= max(scores)


@pytest.mark.parametrize(("dim", "stretch"), [(10, 15.0), (50, 15.0), (300, 40.0)])
def test_the_maximum_is_found_for_rows_in_a_band(dim: int, stretch: float) -> None:
    """The step assumes rows that spread alike across; these need steps half as long, or a quarter, or less."""
    noise = np.random.default_rng(0).normal(size=(400, dim))
    noise[:, 0] += 1.5
    noise[:, 1] *= stretch
    x = torch.nn.functional.normalize(torch.from_numpy(noise), dim=1)
    alone = PowerSpherical.fit(x)
    fitted = PowerSphericalMixture(tol=1e-9, max_iter=100).fit(x)
    assert fitted.n_iter_ > len(fitted.lower_bounds_) - 1, "no step was taken back"
    assert (np.diff(fitted.lower_bounds_) >= 0).all()
    assert fitted.lower_bound_ == pytest.approx(float(alone.log_prob(x).mean()), abs=1e-6)


@pytest.mark.parametrize(("fall", "steps"), [(1e-2, 11), (3e-8, 1)], ids=["a step too long", "rounding"])
def test_steps_are_not_halved_for_ever(fall: float, steps: int, monkeypatch) -> None:
    """There are a full one and ten halvings of it; and none of what falls by a rounding of float32."""
    monkeypatch.setattr(_spherical_mixture, "statistics_of", ever_falling(fall))
    x, family = directions(40, 5, dtype=torch.float32), families.POWER_SPHERICAL
    start = start_for(family, x.double(), 2)
    run = em_run(TensorRows(x), family, start)
    assert run.converged
    assert run.steps == steps
    assert run.parameters is start
    assert len(run.scores) == 1


@mixtures
def test_rounding_does_not_lower_the_likelihood(mixture: type) -> None:
    """In float32 a settled fit falls a little with the next step, which is then not kept."""
    x, _ = clustered()
    fitted = mixture(5, random_state=0, tol=0.0, max_iter=500).fit(x.astype(np.float32))
    assert fitted.converged_
    assert (np.diff(fitted.lower_bounds_) >= 0).all()


@mixtures
@tying
def test_empty_components_start_again(mixture: type, concentration_type: str) -> None:
    """One direction far from all rows, where its component has none."""
    x, labels = clustered(kappas=(400.0, 400.0, 400.0))
    centres = np.stack([x[labels == i].mean(0) for i in range(3)])
    start = np.stack([centres[0], centres[1], -centres.sum(0)])
    fitted = mixture(3, init=start, concentration_type=concentration_type, random_state=0).fit(x)
    assert fitted.weights_.min() > 0.2
    assert (np.diff(fitted.lower_bounds_) >= 0).all()


@mixtures
@tying
def test_a_component_that_no_row_reaches_starts_again(mixture: type, concentration_type: str) -> None:
    """So far from all rows that its probabilities underflow, it would stay where it is for ever. Heavy tails reach."""
    x, _ = clustered(kappas=(4000.0, 4000.0, 4000.0))
    fitted = mixture(3, concentration_type=concentration_type, warm_start=True, random_state=0).fit(x)
    fitted.mean_directions_[2] = -fitted.mean_directions_.sum(0)
    fitted.mean_directions_ /= np.linalg.norm(fitted.mean_directions_, axis=1, keepdims=True)
    assert (fitted.predict_proba(x)[:, 2].max() == 0) == (mixture is not SphericalCauchyMixture)
    assert np.bincount(fitted.fit(x).predict(x), minlength=3).min() > 100


@all_families
def test_a_new_start_that_lowers_the_likelihood_is_given_up(family) -> None:
    """The steps after it are as long as without it."""
    # The clusters overlap: where they do not, a fit soon settles to the last digit, and no step gains anything.
    x = distribution_named(family.name)(directions(2, 5), 5.0).sample((100,)).reshape(-1, 5)
    rows, nowhere = TensorRows(x), -x.mean(0, keepdim=True) / x.mean(0).norm()
    near = em_run(rows, family, start_for(family, x, 2), tol=1e-4).parameters
    parameters = Parameters(
        torch.nn.functional.pad(near.log_weights, (0, 1), value=-torch.inf),
        torch.cat([near.directions, nowhere]),
        torch.nn.functional.pad(near.concentrations, (0, 1), value=50.0),
    )
    tried: list[int] = []

    def reseed(kept: torch.Tensor, wanted: int) -> torch.Tensor:
        tried.append(wanted)
        return nowhere

    run = em_run(rows, family, parameters, reseed=reseed)
    step = maximised(
        family, statistics_of(rows, family, parameters), parameters, tied=True, dtype=torch.float64
    )
    assert tried == [1]
    assert run.scores[1] == pytest.approx(statistics_of(rows, family, step).mean_log_likelihood(), rel=1e-12)
    assert run.scores[1] > run.scores[0]


@all_families
def test_a_new_start_is_followed_by_another_step(family) -> None:
    """However little it gains: its component has yet to find its rows."""
    centres = torch.eye(5, dtype=torch.float64)[:3]
    x = distribution_named(family.name)(centres, 100.0).sample((100,)).reshape(-1, 5)
    parameters = Parameters(
        torch.tensor([0.5, 0.5, 0.0]).double().log(),
        torch.cat([centres[:2], -centres.sum(0, keepdim=True) / 3**0.5]),
        torch.full((3,), 10.0).double(),
    )
    run = em_run(TensorRows(x), family, parameters, tol=1e9, reseed=lambda kept, wanted: centres[2:])
    assert run.steps == 2


@all_families
def test_a_start_without_rows_has_some_weight(family) -> None:
    """Without it, it would never have a row."""
    x = distribution_named(family.name)(directions(5), 100.0).sample((40,))
    start = torch.stack([x[0], -x.sum(0) / x.sum(0).norm(), x[1]])
    parameters = from_clusters(family, start, clusters_of(start, [Block(x)]), x.dtype)
    assert parameters.log_weights.isfinite().all()
    assert parameters.log_weights.exp().sum() == pytest.approx(1)


@all_families
def test_a_component_without_rows_keeps_its_place(family) -> None:
    x = directions(40, 5)
    parameters = start_for(family, x, 3)
    statistics = statistics_of(TensorRows(x), family, parameters)
    lost = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    left = type(statistics)(
        lost * statistics.count,
        lost[:, None] * statistics.pull,
        lost * statistics.bend,
        lost * statistics.score,
        statistics.log_likelihood,
        statistics.weight,
    )
    free = maximised(family, left, parameters, tied=False, dtype=torch.float64)
    torch.testing.assert_close(free.directions[1], parameters.directions[1])
    assert free.concentrations[1] == parameters.concentrations[1]
    assert free.log_weights[1] == -torch.inf
    tied = maximised(family, left, parameters, tied=True, dtype=torch.float64)
    assert len(tied.concentrations.unique()) == 1


@mixtures
@tying
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hard_rows(mixture: type, concentration_type: str, dtype: type) -> None:
    """Duplicates, antipodes, zeros, more components than different rows: numbers, and no warning."""
    e = np.eye(4)
    for x in (np.ones((6, 4)), np.concatenate([e, -e]), np.zeros((5, 4)), np.repeat(e[:2], 5, 0)):
        fitted = mixture(3, concentration_type=concentration_type, random_state=0).fit(x.astype(dtype))
        for value in (
            fitted.weights_,
            fitted.mean_directions_,
            fitted.concentrations_,
            fitted.score_samples(x),
        ):
            assert np.isfinite(value).all()
        assert fitted.concentrations_.max() <= {np.float32: 1e5, np.float64: 1e9}[dtype]
        assert fitted.mean_directions_.dtype == dtype


def test_best_is_the_first_of_equals() -> None:
    values = torch.tensor([[1.0, 2.0, -5.0], [3.0, 2.0, -4.0], [3.0, 0.0, -4.0]])
    largest, index = argmax_(values.clone())
    assert largest.tolist() == [3.0, 2.0, -4.0]
    assert index.tolist() == [1, 0, 1]
