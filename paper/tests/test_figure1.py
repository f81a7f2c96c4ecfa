import json
import struct

import numpy as np
import pytest

from powerspherical_paper import figure1
from powerspherical_paper.report.page import read
from powerspherical_paper.results import Task


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("figure1")
    return out, figure1.run(Task("figure1", out, seed=1))


def test_files(made):
    out, outcome = made
    assert outcome.passed
    assert sorted(outcome.files) == sorted(out.iterdir()) == [out / name for name in figure1.FILES]
    png = (out / "figure1.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", png[16:24]) == (912, 420)  # 120 dpi
    assert len(read(out / "figure1.json").finding.tables[0].rows) == 6


def test_json(made):
    out, _ = made
    document = json.loads((out / "figure1.json").read_text(encoding="utf-8"))
    assert document["seed"] == 1
    circle, sphere = document["results"]["circle"], document["results"]["sphere"]
    assert len(circle) == len(sphere) == 3
    locs = np.array([one["loc"] for one in sphere])
    np.testing.assert_allclose(locs @ locs.T, np.eye(3), atol=1e-12)
    for one in circle + sphere:
        d, kappa = len(one["loc"]), one["concentration"]
        assert one["mean_length"] == pytest.approx(kappa / (kappa + d - 1), rel=1e-12)
        assert one["sample_mean_length"] == pytest.approx(one["mean_length"], abs=0.04)


@pytest.mark.slow
def test_the_seed_decides_every_byte_of_the_figure(made, tmp_path):
    out, _ = made
    figure1.run(Task("figure1", tmp_path, seed=1))
    assert (tmp_path / "figure1.png").read_bytes() == (out / "figure1.png").read_bytes()
