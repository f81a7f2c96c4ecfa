"""The steps of EM: sums that add up, a likelihood that does not fall, components that start again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.clusters import clustered, given, mixtures, tying, unguarded_step
from helpers.examples import directions
from helpers.own_family import registered
from powerspherical import PowerSpherical, VonMisesFisher, families
from powerspherical.families.derived import fisher_step, forces, from_mean_score
from powerspherical.families.power_spherical import PowerSphericalFamily
from powerspherical.mixture import PowerSphericalMixture, SphericalCauchyMixture, mixture_named
from powerspherical.quadrature.cosine import Cosine

WEIGHTS, KAPPAS = np.array([0.3, 0.7]), np.array([3.0, 40.0])


@mixtures
@tying
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_is_the_maximum_for_the_sums(mixture: type, concentration_type: str, weighted, scaled) -> None:
    unit, start = directions(50, 5), directions(2, 5, seed=9)
    lengths, weight = torch.rand(2, 50, dtype=torch.float64) + 0.5
    kappas = KAPPAS if concentration_type == "free" else np.full(2, 12.0)
    before = given(mixture, WEIGHTS, start, kappas, concentration_type=concentration_type)
    x = (unit * lengths[:, None] if scaled else unit).numpy()
    after, score = unguarded_step(before, x, weight.numpy() if weighted else None)

    family, weight = mixture.distribution.family, weight if weighted else torch.ones(50).double()
    components = mixture.distribution(start, torch.from_numpy(kappas))
    joint = components.log_prob(unit.unsqueeze(1)) + torch.from_numpy(WEIGHTS).log()
    shares, t = joint.softmax(1) * weight[:, None], unit @ start.T
    cosine, column = Cosine(1 - t, 1 + t), torch.from_numpy(kappas).expand_as(t)
    (pull, bend), score_there = forces(family, cosine, column, 5), family.score(cosine, column, 5)
    count, sums = shares.sum(0), (shares * pull).T @ unit
    target = sums + ((shares * bend).sum(0) / 4)[:, None] * start
    statistic = sums.norm(dim=1) - count if family.linear else (shares * score_there).sum(0)
    mean = statistic.sum() / count.sum() if concentration_type == "tied" else statistic / count
    if mixture is SphericalCauchyMixture:
        kappa = torch.from_numpy(kappas)
        kappa = fisher_step(family, mean, kappa[0] if concentration_type == "tied" else kappa, 5)
    else:
        kappa = from_mean_score(family, mean, 5)
    assert score == pytest.approx(float((joint.logsumexp(1) * weight).sum() / weight.sum()), rel=1e-12)
    np.testing.assert_allclose(after.weights_, count / count.sum(), rtol=1e-10)
    np.testing.assert_allclose(after.mean_directions_, target / target.norm(dim=1, keepdim=True), rtol=1e-9)
    np.testing.assert_allclose(after.concentrations_, kappa.expand(2), rtol=1e-9)


@mixtures
@tying
@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 1.0), (3, 0.5), (3, 20.0), (10, 2.0), (50, 30.0), (50, 3000.0)]
)
def test_the_likelihood_does_not_fall(mixture: type, concentration_type: str, dim: int, kappa: float) -> None:
    """Even without the safeguard, none of fifty steps lowers it by more than rounding."""
    length = families.VON_MISES_FISHER.mean_cosine(torch.tensor(kappa).double(), dim)
    x = mixture.distribution.from_mean_length(directions(3, dim), length).sample((80,)).reshape(-1, dim)
    options = {"init": x[:4], "max_iter": 1, "tol": 1e9, "concentration_type": concentration_type}
    fitted, before = mixture(4, **options).fit(x.numpy()), -np.inf
    for _ in range(50):
        fitted, score = unguarded_step(fitted, x.numpy())
        assert score >= before - 1e-12 * max(1.0, abs(before))
        before = score


class OvershootingFamily(PowerSphericalFamily):
    """Without the bend, the step of small concentrations goes too far."""

    name = "overshooting"

    def derivatives(self, t, kappa, dim):
        pull, _ = super().derivatives(t, kappa, dim)
        return pull, 0 * pull


def test_a_step_too_far_is_taken_back(monkeypatch) -> None:
    mixture = mixture_named(registered(monkeypatch, OvershootingFamily()).name)
    for seed in range(20):  # a few of them need the safeguard
        torch.manual_seed(seed)
        x = PowerSpherical(directions(8), 0.5).sample((300,)).numpy()
        fitted, scores = given(mixture, np.ones(3) / 3, x[:3], np.full(3, 0.5)), []
        for _ in range(30):
            fitted, score = unguarded_step(fitted, x)
            scores.append(score)
        if (np.diff(scores) < -1e-9).any():
            break
    else:
        pytest.fail("no start needs the safeguard")
    options = {"warm_start": True, "tol": 1e-7, "max_iter": 2000}
    guarded = given(mixture, np.ones(3) / 3, x[:3], np.full(3, 0.5), **options).fit(x)
    assert (np.diff(guarded.lower_bounds_) >= 0).all()
    assert guarded.lower_bounds_[-1] >= max(scores)


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


class FallingFamily(PowerSphericalFamily):
    """Each pass over the rows finds a likelihood that is lower by ``fall`` than the one before."""

    name, level, fall = "falling", -1e4, 0.0

    def offset(self, kappa, dim):
        self.level -= self.fall
        return super().offset(kappa, dim) + self.level


# At 1e4 the numbers of float32 are 9.8e-4 apart.
@pytest.mark.parametrize(("fall", "steps"), [(100.0, 11), (2.0**-10, 1)], ids=["a step too long", "rounding"])
def test_steps_are_not_halved_for_ever(fall: float, steps: int, monkeypatch) -> None:
    """A full step and ten halvings of it are tried, but no halving after a fall that may be rounding."""
    family = registered(monkeypatch, FallingFamily())
    x = VonMisesFisher(directions(2, 5), 1e3).sample((40,)).reshape(-1, 5).float()
    settled = PowerSphericalMixture(2, tol=0.0, max_iter=500, random_state=0).fit(x.double().numpy())
    start = settled.weights_, settled.mean_directions_, settled.concentrations_
    family.fall = fall
    fitted = given(mixture_named(family.name), *start, warm_start=True, tol=1e-8, max_iter=300).fit(x.numpy())
    assert fitted.converged_
    assert fitted.n_iter_ == steps
    assert len(fitted.lower_bounds_) == 1
    np.testing.assert_array_equal(fitted.mean_directions_, settled.mean_directions_.astype(np.float32))


@mixtures
def test_rounding_does_not_lower_the_likelihood(mixture: type) -> None:
    """In float32 the next step from a settled fit lowers the likelihood a little, and is not kept."""
    x, _ = clustered()
    fitted = mixture(5, random_state=0, tol=0.0, max_iter=500).fit(x.astype(np.float32))
    assert fitted.converged_
    assert (np.diff(fitted.lower_bounds_) >= 0).all()


@mixtures
@tying
@pytest.mark.parametrize("kappa", [400.0, 4000.0])
def test_a_component_far_from_all_rows_starts_again(
    mixture: type, concentration_type: str, kappa: float
) -> None:
    """Also where its probabilities underflow, so that it would stay there for ever. Heavy tails do not underflow."""
    x, _ = clustered(kappas=(kappa, kappa, kappa))
    fitted = mixture(3, concentration_type=concentration_type, warm_start=True, random_state=0).fit(x)
    fitted.mean_directions_[2] = -fitted.mean_directions_.sum(0)
    fitted.mean_directions_ /= np.linalg.norm(fitted.mean_directions_, axis=1, keepdims=True)
    if kappa == 4000:
        assert (fitted.predict_proba(x)[:, 2].max() == 0) == (mixture is not SphericalCauchyMixture)
    assert np.bincount(fitted.fit(x).predict(x), minlength=3).min() > 100
    assert (np.diff(fitted.lower_bounds_) >= 0).all()


@mixtures
def test_a_new_start_that_lowers_the_likelihood_is_given_up(mixture: type) -> None:
    """The step after it is the one without it, in full length."""
    x = mixture.distribution(directions(2, 5), 5.0).sample((1000,)).reshape(-1, 5).numpy()
    near = mixture(2, init=x[:2], tol=1e-6, max_iter=1000).fit(x)
    start = (
        np.append(near.weights_, 0.0),
        np.concatenate([near.mean_directions_, -near.mean_directions_[:1]]),
        np.append(near.concentrations_, 50.0),
    )
    for seed in range(20):
        fitted = given(mixture, *start, warm_start=True, tol=1e9).set_params(random_state=seed).fit(x)
        if len(fitted.lower_bounds_) == 2:
            break
    else:
        pytest.fail("no new start lowers the likelihood")
    assert fitted.n_iter_ == 2
    step, score = unguarded_step(given(mixture, *start), x)
    assert fitted.lower_bounds_[0] == pytest.approx(score, rel=1e-12)
    assert fitted.lower_bounds_[1] == pytest.approx(step.score(x), rel=1e-12)
    assert fitted.lower_bounds_[1] > fitted.lower_bounds_[0]


@mixtures
def test_a_new_start_is_followed_by_another_step(mixture: type) -> None:
    """However little it gains: its component has yet to find its rows."""
    centres = torch.eye(5, dtype=torch.float64)[:3]
    x = mixture.distribution(centres, 100.0).sample((100,)).reshape(-1, 5).numpy()
    places = np.concatenate([centres[:2], -centres.sum(0, keepdim=True) / 3**0.5])
    fitted = given(mixture, [0.5, 0.5, 0.0], places, np.full(3, 10.0), warm_start=True, tol=1e9).fit(x)
    assert fitted.n_iter_ == 2


@mixtures
def test_a_start_without_rows_has_some_weight(mixture: type) -> None:
    """Without it, it would never have a row. All components start with the concentration of the clusters."""
    x = mixture.distribution(directions(5), 100.0).sample((40,))
    start = torch.stack([x[0], -x.sum(0) / x.sum(0).norm(), x[1]])
    with pytest.warns(match="after 1 steps"):
        fitted = mixture(3, init=start, tol=0.0, max_iter=1).fit(x.numpy())
    cosine, labels = (x @ start.T).max(1)
    share = torch.bincount(labels, minlength=3).double() + 40e-3 / 3
    kappa = mixture.distribution.family.from_mean_cosine(cosine.mean(), 1 - cosine.mean(), 5)
    expected = given(mixture, share / share.sum(), start, kappa.expand(3)).score(x.numpy())
    assert fitted.lower_bounds_[0] == pytest.approx(expected, rel=1e-10)


@mixtures
@tying
def test_a_component_without_rows_keeps_its_place(mixture: type, concentration_type: str) -> None:
    x = directions(40, 5).numpy()
    before = given(mixture, [0.5, 0.0, 0.5], x[:3], np.full(3, 7.0), concentration_type=concentration_type)
    after, _ = unguarded_step(before, x)
    np.testing.assert_allclose(after.mean_directions_[1], x[1], rtol=1e-12)
    assert after.weights_[1] == 0
    assert (after.concentrations_[1] == 7) == (concentration_type == "free")
    assert (len(set(after.concentrations_)) == 1) == (concentration_type == "tied")


@mixtures
@tying
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hard_rows(mixture: type, concentration_type: str, dtype: type) -> None:
    """Duplicates, antipodes, zeros, more components than different rows: numbers, and no warning."""
    e = np.eye(4)
    for x in (np.ones((6, 4)), np.concatenate([e, -e]), np.zeros((5, 4)), np.repeat(e[:2], 5, 0)):
        fitted = mixture(3, concentration_type=concentration_type, random_state=0).fit(x.astype(dtype))
        numbers = fitted.weights_, fitted.mean_directions_, fitted.concentrations_, fitted.score_samples(x)
        assert all(np.isfinite(value).all() for value in numbers)
        assert fitted.concentrations_.max() <= {np.float32: 1e5, np.float64: 1e9}[dtype]
        assert fitted.mean_directions_.dtype == dtype


def test_of_equals_the_first_is_predicted() -> None:
    x = directions(20, 5).numpy()
    fitted = given(PowerSphericalMixture, np.ones(4) / 4, x[[0, 1, 0, 1]], np.full(4, 5.0))
    assert set(fitted.predict(x)) == {0, 1}
