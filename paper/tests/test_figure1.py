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
    assert sorted(path.name for path in out.iterdir()) == ["figure1.json", "figure1.png", "figure1.svg"]
    assert sorted(outcome.files) == sorted(out.iterdir())


def test_figures(made):
    out, _ = made
    png = (out / "figure1.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 2000
    assert height >= 900
    svg = (out / "figure1.svg").read_text(encoding="utf-8")
    assert svg.rstrip().endswith("</svg>")
    assert len(svg) < 1_000_000


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
    for name in ("figure1.png", "figure1.svg"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
