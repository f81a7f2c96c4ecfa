"""The benchmarks of mixtures: their arithmetic, and that they run; never how long anything takes."""

import gzip
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from powerspherical.families import family_names

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # as Python does for the scripts there
clustering, clustering_choice, dask_mixture, mixture, robust_clustering = map(
    importlib.import_module,
    ("clustering", "clustering_choice", "dask_mixture", "mixture", "robust_clustering"),
)


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_an_iteration_is_the_difference_of_two_fits():
    taken = []

    def clock(call, calls):
        call()
        return 5.0 + 3.0 * taken[-1]

    def fit(steps):
        taken.append(steps)
        return SimpleNamespace(n_iter_=steps)

    assert mixture.iteration(fit, clock) == pytest.approx(3.0)
    assert taken == [mixture.FEW, mixture.FEW, mixture.MORE]
    with pytest.raises(RuntimeError, match="settled after 1 of 2 steps"):
        mixture.iteration(lambda steps: SimpleNamespace(n_iter_=1), lambda call, calls: call() or 1.0)


def test_ratios_are_taken_round_by_round():
    times = {"power_spherical": [2.0, 9.0], mixture.LLOYD: [1.0, 3.0], mixture.PRODUCTS: [2.0, 3.0]}
    first = next(mixture.summary(times, {}))
    assert (first["to_lloyd"], first["to_products"]) == (2.5, 2.0)
    assert (first["target_to_lloyd"], first["target_to_products"], first["bytes_beyond_rows"]) == (
        2.6,
        None,
        None,
    )
    on_cuda = {name: times[name] for name in ("power_spherical", mixture.PRODUCTS)}
    alone, products = mixture.summary(on_cuda, {"power_spherical": 3_000_000_000})
    assert (alone["to_lloyd"], alone["target_to_lloyd"], alone["target_to_products"]) == (None, None, 2.0)
    assert (alone["bytes_beyond_rows"], products["bytes_beyond_rows"]) == (3_000_000_000, None)
    shown = mixture.shown([{"threads": 1} | row for row in (alone, products)])
    assert [list(column.cells) for column in shown.columns[5:]] == [
        ["2.00", "1.00"],
        ["2.00", "–"],
        ["3.00", "–"],
    ]


def test_mixture(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(mixture, "QUICK_SIZE", (2000, 16, 5))
    mixture.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "mixture.json").read_text(encoding="utf-8"))
    assert [row["method"] for row in document["results"]] == [
        *mixture.TARGETS,
        mixture.LLOYD,
        mixture.PRODUCTS,
    ]
    assert document["configuration"]["rows"] == 2000
    assert "products" in capsys.readouterr().out


@pytest.mark.slow
def test_clustering(monkeypatch, tmp_path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 30).astype(np.uint8)
    images = np.zeros((90, 2, 3), np.uint8)
    images.reshape(90, 6)[np.arange(90), labels] = 200
    images += generator.integers(0, 20, images.shape, dtype=np.uint8)
    np.savez(tmp_path / "some.npz", embeddings=images.reshape(90, 6).astype(np.float16), labels=labels)
    (tmp_path / "t10k-images.gz").write_bytes(gzip.compress(bytes(16) + images.tobytes()))
    (tmp_path / "t10k-labels.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes()))
    monkeypatch.setattr(clustering, "load_digits", lambda return_X_y: (images.reshape(90, 6), labels))
    files = [str(tmp_path / "some.npz"), f"{tmp_path / 't10k-images.gz'}:{tmp_path / 't10k-labels.gz'}"]
    clustering.main([*files, "--quick", "--threads", "1", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "clustering.json").read_text(encoding="utf-8"))["results"]
    assert {row["data"] for row in rows} == {"digits", "some", "t10k-mnist"}
    assert {row["method"] for row in rows} == set(clustering.METHODS)
    assert all(row["ari"] == 1 and len(row["each"]) == 2 for row in rows)
    assert all((row["held_out"] is None) == ("means" in row["method"].lower()) for row in rows)


def test_clustering_choice(tmp_path, capsys):
    labels = np.arange(300) % 3
    noise = np.random.default_rng(0).normal(size=(300, 6))
    np.savez(
        tmp_path / "some.npz", embeddings=(noise + 8 * np.eye(6)[labels]).astype(np.float16), labels=labels
    )
    clustering_choice.main([str(tmp_path / "some.npz"), "--quick", "--threads", "1", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "clustering_choice.json").read_text(encoding="utf-8"))
    assert document["configuration"]["classes"] == 3
    keys = [(row["model"], row["n_components"]) for row in document["results"]]
    assert keys == [(m, k) for m in clustering_choice.MODELS for k in clustering_choice.QUICK_COMPONENTS]
    assert all(row["ari"] > 0.1 for row in document["results"])
    assert (tmp_path / "clustering_choice.png").stat().st_size > 10_000
    figure = clustering_choice.drawn(
        [row | {"seed": s, "ari": s} for row in document["results"] for s in (0, 1)], 3
    )
    line = figure.axes[2].lines[0]
    assert list(line.get_xdata()) == [2, 10]
    assert list(line.get_ydata()) == [0.5, 0.5]  # means over the seeds


def test_clustering_refuses_what_it_cannot_read(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        clustering.main([str(tmp_path / "none.npz"), "--out", str(tmp_path)])
    assert "cannot read the data: " in capsys.readouterr().err


@pytest.mark.slow
def test_robust_clustering(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(robust_clustering, "POINTS", 60)
    robust_clustering.main(["--quick", "--threads", "1", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "robust_clustering.json").read_text(encoding="utf-8"))
    assert document["configuration"]["outliers"] == 0.2
    methods = [row["method"] for row in document["results"]]
    assert len(set(methods)) == len(methods) == 2 * len(family_names())
    assert all(0.5 < row["ari"] <= 1 and len(row["each"]) == 2 for row in document["results"])
    assert "spherical Cauchy, free" in capsys.readouterr().out
    x, labels = robust_clustering.planted(5, 50.0, 0)
    assert (len(x), len(labels)) == (450, 360)  # a fifth of all are outliers


def test_rows_made_lazily_are_the_same_each_time(monkeypatch):
    monkeypatch.setattr(dask_mixture, "BLOCK", 300)
    rows = dask_mixture.lazy_rows(1000, 32)
    assert rows.chunks == ((300, 300, 300, 100), (32,))
    first = rows.compute()
    np.testing.assert_array_equal(first, rows.compute())
    assert first.dtype == np.float32
    near = (first @ dask_mixture.directions(32).T).max(1) / np.linalg.norm(first, axis=1)
    assert 0.85 < near.mean() < 0.93  # about 1/√(1+¼)
    assert not np.array_equal(first[:100], first[300:400])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what a cluster says when it ends is not ours
def test_dask_mixture(tmp_path, capsys):
    dask_mixture.main(["--quick", "--dim", "16", "--workers", "1", "--out", str(tmp_path)])
    (found,) = json.loads((tmp_path / "dask_mixture.json").read_text(encoding="utf-8"))["results"]
    assert (found["rows"], found["dim"]) == (20_000, 16)
    assert found["gigabytes_of_a_worker_at_most"] >= found["gigabytes_of_a_worker_before"] > 0
    assert "PowerSphericalMixture: start, step 1: " in capsys.readouterr().out
