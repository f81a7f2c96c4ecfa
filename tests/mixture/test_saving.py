"""Files of estimators: what is loaded is what was saved, and other files are refused."""

import functools
import operator
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


def attributes(estimator):
    left_out = ("labels_", "notes_")
    found = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    return estimator.get_params() | {name: found[name] for name in found if name not in left_out}


def assert_same(first, second, rtol=0.0):
    one, two = attributes(first), attributes(second)
    assert (type(first), one.keys()) == (type(second), two.keys())
    for name, value in one.items():
        assert type(value) is type(two[name]) or name == "init", name
        if isinstance(value, str | None):
            assert value == two[name], name
        else:
            np.testing.assert_allclose(value, two[name], rtol, err_msg=name)


@estimators
@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.from_numpy])
def test_what_is_loaded_is_what_was_saved(estimator, kind, path):
    x = kind(X)
    estimator.fit(x)
    estimator.feature_names_in_ = np.array(list("abcde"), dtype=object)  # as a data frame sets it
    assert estimator.save(str(path)) == path
    del estimator.feature_names_in_
    for load in (type(estimator).load, mixture.load):
        again = load(str(path))
        assert list(again.__dict__.pop("feature_names_in_")) == list("abcde")
        assert_same(estimator, again)
        np.testing.assert_allclose(again.transform(x), estimator.transform(x), atol=1e-5)
        np.testing.assert_array_equal(again.get_feature_names_out(), estimator.get_feature_names_out())


@pytest.mark.parametrize("kind", [PowerSphericalMixture, VonMisesFisherMixture])
def test_training_goes_on_after_loading(kind, path):
    batches = np.array_split(X, 3)
    going, stopped = kind(3, random_state=0), kind(3, random_state=0)
    for batch in batches[:2]:
        going.partial_fit(batch)
        stopped.partial_fit(batch)
    again = kind.load(stopped.save(path)).partial_fit(batches[2])
    assert_same(again, going.partial_fit(batches[2]), rtol=1e-12)


def test_what_a_file_cannot_hold_is_left_at_its_default(path):
    estimator = PowerSphericalMixture(2, random_state=np.random.RandomState(0), verbose=[].append)
    again = PowerSphericalMixture.load(estimator.fit(X).save(path))
    assert (again.n_components, again.random_state, again.verbose) == (2, None, 0)


@pytest.mark.parametrize("init", [X[:2].tolist(), X[::-1][:2], torch.from_numpy(X[:2])])
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


def test_the_class_is_found_by_its_name(path):
    class OwnMixture(VonMisesFisherMixture):
        pass

    notes = {"made_by": "a test", "columns": ["a", "b"]}
    OwnMixture(2, random_state=0).fit(X).save(path, notes=notes)
    for kind in (mixture, SphericalMixture, VonMisesFisherMixture, OwnMixture):
        assert type(kind.load(path)) is OwnMixture
        assert kind.load(path).notes_ == notes
    for kind in (PowerSphericalMixture, SphericalKMeans):
        told = f"{path} holds a OwnMixture, not a {kind.__name__}: powerspherical.mixture.load reads any"
        with pytest.raises(CheckpointError, match=re.escape(told)):
            kind.load(path)


@estimators
def test_only_what_is_fitted_is_saved(estimator, path):
    with pytest.raises(NotFittedError):
        type(estimator)(3).save(path)
    with pytest.raises(ValueError, match=r"'tol' parameter .* Got -1"):
        type(estimator)(3, random_state=0).fit(X).set_params(tol=-1.0).save(path)
    assert not path.exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The path of a model file."""
    model = PowerSphericalMixture(3, random_state=0).fit(X)
    return model.save(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("version", 2, "has the format version 2, but this version of powerspherical reads 1"),
        ("version", torch.ones(3), "has the format version tensor"),
        ("estimator", "KMeans", "holds a KMeans, not a "),
        ("arrays", None, "KeyError: 'arrays'"),
        ("fitted", [], "AttributeError: 'list'"),
        ("parameters colour", 1, "TypeError: .*'colour'"),
        ("parameters n_components", 0, r"must be an int in the range \[1, inf\). Got 0"),
        ("fitted weights_", None, "KeyError: 'weights_'"),
        ("fitted weights_", torch.ones(2) / 2, r"weights_ has the shape \(2,\), not \(3,\)"),
        ("fitted lower_bound_", torch.ones(3), r"lower_bound_ has the shape \(3,\), not \(\)"),
        ("fitted mean_directions_", torch.ones(3), "cannot be used"),
        ("fitted averages pull", None, "TypeError: .*'pull'"),
    ],
)
def test_other_content_is_refused(place, value, says, saved, path):
    """A value other than the one at this place, or none."""
    state = load_checkpoint(saved)
    *places, last = place.split()
    entry = functools.reduce(operator.getitem, places, state)
    entry[last] = value
    if value is None:
        del entry[last]
    save_checkpoint(path, state)
    for load in (PowerSphericalMixture.load, mixture.load):
        with pytest.raises(CheckpointError, match=f"{path}.*{says}"):
            load(path)


def test_other_files_are_refused(saved, tmp_path):
    names = ("rows.npy", "run.safetensors", "format.safetensors", "damaged", "none")
    rows, run, form, damaged, none = (tmp_path / name for name in names)
    np.save(rows, X)
    save_checkpoint(run, {"epoch": 3})
    save_checkpoint(form, load_checkpoint(saved) | {"format": "pytorch"})
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    checkpoint = "is a checkpoint, but not"
    for path, says in ((rows, "is not"), (damaged, "is not"), (run, checkpoint), (form, checkpoint)):
        with pytest.raises(CheckpointError, match=f"{path} {says} a model file of powerspherical.mixture"):
            mixture.load(path)
    with pytest.raises(FileNotFoundError, match=str(none)):
        mixture.load(none)
