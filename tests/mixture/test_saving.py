"""Files of estimators: what comes back is what was saved, and every field that is missing or wrong is named."""

import re

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from helpers.clusters import clustered
from powerspherical import mixture
from powerspherical.mixture import (
    CheckpointError,
    PowerSphericalMixture,
    SphericalCauchyMixture,
    SphericalKMeans,
    SphericalMixture,
    VonMisesFisherMixture,
)
from powerspherical.nn import load_checkpoint, save_checkpoint

X, _ = clustered(300, dim=5)
ESTIMATORS = [
    PowerSphericalMixture(3, random_state=0),
    VonMisesFisherMixture(3, concentration_type="free", init=X[:3], tol=1e-3, random_state=0),
    SphericalCauchyMixture(3, random_state=0),
    SphericalKMeans(3, random_state=0),
]
estimators = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "model.safetensors"


def fitted_attributes(estimator):
    return {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and name not in ("labels_", "notes_")
    }


def assert_same(first, second):
    assert type(first) is type(second)
    one, two = fitted_attributes(first), fitted_attributes(second)
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert type(value) is type(two[name]), name
        np.testing.assert_array_equal(value, two[name], err_msg=name)
    for name, value in first.get_params().items():
        np.testing.assert_array_equal(value, second.get_params()[name], err_msg=name)


@estimators
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_loaded_is_what_was_saved(estimator, dtype, path):
    estimator.fit(X.astype(dtype))
    assert estimator.save(str(path)) == path
    for load in (type(estimator).load, mixture.load):
        again = load(str(path))
        assert_same(estimator, again)
        np.testing.assert_array_equal(again.predict(X), estimator.predict(X))
        # Threads add blocks up in no fixed order.
        assert again.score(X) == pytest.approx(estimator.score(X), rel=1e-14)


@estimators
def test_tensors_come_back_as_tensors(estimator, path):
    rows = torch.from_numpy(X)
    estimator.fit(rows).save(path)
    again = mixture.load(path)
    assert_same(estimator, again)
    assert isinstance(again.predict(rows), torch.Tensor)


def test_names_of_features_are_kept(path):
    """Else scikit-learn warns of a data frame whose names the estimator does not know."""
    estimator = PowerSphericalMixture(2, random_state=0).fit(X)
    estimator.feature_names_in_ = np.array(list("abcde"), dtype=object)  # as a data frame's columns set it
    assert_same(PowerSphericalMixture.load(estimator.save(path)), estimator)


def test_transform_works_after_loading(path):
    kmeans = SphericalKMeans(3, random_state=0).fit(X)
    again = SphericalKMeans.load(kmeans.save(path))
    np.testing.assert_array_equal(again.transform(X), kmeans.transform(X))
    np.testing.assert_array_equal(again.get_feature_names_out(), kmeans.get_feature_names_out())


@pytest.mark.parametrize("kind", [PowerSphericalMixture, VonMisesFisherMixture])
def test_training_goes_on_after_loading(kind, path):
    batches = np.array_split(X, 3)
    going, stopped = kind(3, random_state=0), kind(3, random_state=0)
    for batch in batches:
        going.partial_fit(batch)
    for batch in batches[:2]:
        stopped.partial_fit(batch)
    again = kind.load(stopped.save(path)).partial_fit(batches[2])
    assert again.n_iter_ == going.n_iter_
    for name in ("mean_directions_", "weights_", "concentrations_", "lower_bound_"):
        np.testing.assert_allclose(getattr(again, name), getattr(going, name), rtol=1e-12, err_msg=name)


def test_what_a_file_cannot_hold_is_left_at_its_default(path):
    noted = []
    estimator = PowerSphericalMixture(2, random_state=np.random.RandomState(0), verbose=noted.append)
    again = PowerSphericalMixture.load(estimator.fit(X).save(path))
    assert (again.random_state, again.verbose) == (None, 0)
    assert again.n_components == 2


@pytest.mark.parametrize("init", [X[:2].tolist(), list(X[:2]), X[::-1][:2], torch.from_numpy(X[:2])])
def test_starts_of_any_kind_can_be_saved(init, path):
    again = PowerSphericalMixture.load(PowerSphericalMixture(np.int64(2), init=init).fit(X).save(path))
    np.testing.assert_array_equal(again.init, np.asarray(init))
    again.fit(X)


def test_arrays_that_are_views_can_be_saved(path):
    """One component that is expanded, and memory that is read backwards or cannot be written."""
    estimator = VonMisesFisherMixture(1).fit(X)
    estimator.weights_ = np.broadcast_to(estimator.weights_[0], (1,))
    estimator.mean_directions_ = estimator.mean_directions_[::-1]
    assert_same(VonMisesFisherMixture.load(estimator.save(path)), estimator)


def test_a_file_of_another_estimator_is_refused(path):
    VonMisesFisherMixture(2, random_state=0).fit(X).save(path)
    assert isinstance(SphericalMixture.load(path), VonMisesFisherMixture)
    for kind in (PowerSphericalMixture, SphericalKMeans):
        told = f"{path} holds a VonMisesFisherMixture, not a {kind.__name__}: powerspherical.mixture.load"
        with pytest.raises(CheckpointError, match=re.escape(told)):
            kind.load(path)


def test_notes_are_kept(path):
    notes = {"made_by": "a test", "columns": ["a", "b"]}
    SphericalKMeans(2, random_state=0).fit(X).save(path, notes=notes)
    assert mixture.load(path).notes_ == notes


def test_a_class_of_ones_own_is_found(path):
    class OwnMixture(PowerSphericalMixture):
        pass

    OwnMixture(2, random_state=0).fit(X).save(path)
    assert type(mixture.load(path)) is type(PowerSphericalMixture.load(path)) is OwnMixture


@estimators
def test_only_what_is_fitted_and_right_is_saved(estimator, path):
    estimator = type(estimator)(3, random_state=0)
    with pytest.raises(NotFittedError):
        estimator.save(path)
    estimator.fit(X)
    name = estimator._saved[0]
    setattr(estimator, name, np.full((3, 5), np.nan))
    with pytest.raises(ValueError, match=f"{name} must be finite, got nan"):
        estimator.save(path)
    assert not path.exists()


def put(state, place, value):
    for name in place[:-1]:
        state = state[name]
    if value is KeyError:
        del state[place[-1]]
    else:
        state[place[-1]] = value


NAN, MINUS = float("nan"), torch.tensor([-0.5, 1.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("kind", [PowerSphericalMixture, SphericalKMeans])
def test_every_field_that_is_missing_is_named(kind, path, tmp_path):
    kind(3, random_state=0).fit(X).save(path)
    state = load_checkpoint(path)
    places = [(name,) for name in state if name not in ("format", "notes")]
    places += [(part, name) for part in ("parameters", "fitted") for name in state[part]]
    places += [("fitted", "averages", name) for name in state["fitted"].get("averages", ())]
    optional = {"random_state", "verbose", "lower_bounds_", "averages"}
    assert len(places) >= 15
    for place in places:
        if place[-1] in optional:
            continue
        broken = load_checkpoint(path)
        put(broken, place, KeyError)
        other = save_checkpoint(tmp_path / "broken", broken)
        with pytest.raises(CheckpointError) as raised:
            mixture.load(other)
        told = {"version": "format version None", "estimator": "holds a None"}
        assert str(other) in str(raised.value)
        assert told.get(place[-1], f"has no {place[-1]}") in str(raised.value).replace("parameter ", "")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (["format"], "pytorch", "is a checkpoint, but not a model file of powerspherical.mixture"),
        (["version"], 2, "has the format version 2, but this version of powerspherical reads 1"),
        (["estimator"], "KMeans", "holds a KMeans, not a "),
        (["arrays"], 3, "arrays must be a str, got 3"),
        (["fitted"], [], "fitted must be a dict, got []"),
        (["parameters", "colour"], 1, "it has the unknown parameter colour"),
        (["parameters", "n_components"], 0, "must be an int in the range [1, inf). Got 0"),
        (
            ["parameters", "concentration_type"],
            "loose",
            "'concentration_type' parameter of PowerSphericalMixture must be a str",
        ),
        (["parameters", "tol"], NAN, "must be a float in the range [0.0, inf). Got nan"),
        (["parameters", "init"], "first", "'init' parameter of PowerSphericalMixture must be a str among"),
        (["parameters", "random_state"], "dice", "Got 'dice' instead"),
        (["fitted", "weights_"], "heavy", "weights_ must be an array of floating-point numbers, got str"),
        (["fitted", "weights_"], torch.arange(3), "weights_ must be an array of floating-point"),
        (["fitted", "weights_"], torch.ones(2) / 2, "weights_ must have the shape (3,), got (2,)"),
        (["fitted", "weights_"], MINUS, "weights_ must be finite and ≥ 0, got -0.5"),
        (["fitted", "weights_"], torch.ones(3), "weights_ must add up to one, got 3"),
        (["fitted", "concentrations_"], MINUS, "concentrations_ must be finite and ≥ 0, got -0.5"),
        (["fitted", "concentrations_"], NAN * MINUS, "concentrations_ must be finite and ≥ 0, got nan"),
        (["fitted", "mean_directions_"], NAN * torch.ones(3, 5), "mean_directions_ must be finite, got nan"),
        (["fitted", "mean_directions_"], torch.ones(3, 1), "mean_directions_ must have the shape (k, d)"),
        (["fitted", "mean_directions_"], torch.eye(5), "weights_ must have the shape (5,), got (3,)"),
        (["fitted", "mean_directions_"], 2 * torch.eye(3), "must be unit vectors, but one has length 2"),
        (["fitted", "n_iter_"], -1, "n_iter_ must be an integer ≥ 0, got -1"),
        (["fitted", "lower_bound_"], NAN, "lower_bound_ must be a finite number, got nan"),
        (["fitted", "lower_bounds_"], [1.0, "x"], "lower_bounds_ must be a finite number, got 'x'"),
        (["fitted", "converged_"], "yes", "converged_ must be True or False, got 'yes'"),
        (["fitted", "seen"], -3, "the number of rows seen must be an integer ≥ 0, got -3"),
        (["fitted", "averages", "pull"], torch.ones(3), "the statistic pull must have the shape (3, 5)"),
        (["fitted", "averages", "bend"], NAN * MINUS, "the statistic bend must be finite, got nan"),
        (["fitted", "feature_names_in_"], ["a"], "feature_names_in_ must be 5 names, got ['a']"),
    ],
)
def test_every_field_that_is_wrong_is_named(place, value, says, path):
    PowerSphericalMixture(3, random_state=0).fit(X).save(path)
    state = load_checkpoint(path)
    put(state, place, value)
    save_checkpoint(path, state)
    for load in (PowerSphericalMixture.load, mixture.load):
        with pytest.raises(CheckpointError) as raised:
            load(path)
        assert str(path) in str(raised.value)
        assert says in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("cluster_centers_", torch.zeros(3, 5), "must be unit vectors, but one has length 0"),
        ("inertia_", -1.0, "inertia_ must be a finite number ≥ 0, got -1.0"),
        ("inertia_", True, "inertia_ must be a finite number ≥ 0, got True"),
        ("n_iter_", 1.5, "n_iter_ must be an integer ≥ 0, got 1.5"),
    ],
)
def test_wrong_fields_of_k_means_are_named(name, value, says, path):
    SphericalKMeans(3, random_state=0).fit(X).save(path)
    state = load_checkpoint(path)
    state["fitted"][name] = value
    save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match=re.escape(says)):
        mixture.load(path)


def test_other_files_are_refused(tmp_path):
    rows, run = tmp_path / "rows.npy", tmp_path / "run.safetensors"
    np.save(rows, X)
    save_checkpoint(run, {"epoch": 3})
    for path, says in ((rows, "is not a model file"), (run, "is a checkpoint, but not a model file")):
        with pytest.raises(CheckpointError, match=f"{path} {says} of powerspherical.mixture"):
            mixture.load(path)
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "none")):
        mixture.load(tmp_path / "none")
