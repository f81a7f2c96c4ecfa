import json
import struct

import numpy as np
import pytest

from powerspherical_paper import figure1


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("figure1")
    return out, figure1.run(out, seed=1, samples=200)


def test_files(made):
    out, outcome = made
    assert outcome.passed
    assert sorted(outcome.files) == sorted(out.iterdir()) == [out / "figure1.json", out / "figure1.png"]
    png = (out / "figure1.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", png[16:24]) == (1140, 525)  # 150 dpi


def test_json(made):
    out, _ = made
    document = json.loads((out / "figure1.json").read_text(encoding="utf-8"))
    assert document["seed"] == 1
    assert document["configuration"]["samples"] == 200
    circle, sphere = document["results"]["circle"], document["results"]["sphere"]
    assert len(circle) == len(sphere) == 3
    locs = np.array([one["loc"] for one in sphere])
    np.testing.assert_allclose(locs @ locs.T, np.eye(3), atol=1e-12)
    for one in circle + sphere:
        d, kappa = len(one["loc"]), one["concentration"]
        assert one["mean_length"] == pytest.approx(kappa / (kappa + d - 1), rel=1e-12)
        assert one["sample_mean_length"] == pytest.approx(one["mean_length"], abs=0.1)


@pytest.mark.slow
def test_the_seed_decides_every_byte_of_the_figure(made, tmp_path):
    out, _ = made
    figure1.run(tmp_path, seed=1, samples=200)
    assert (tmp_path / "figure1.png").read_bytes() == (out / "figure1.png").read_bytes()
