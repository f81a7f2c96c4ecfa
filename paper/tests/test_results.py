import json

import pytest
import torch

from powerspherical._selfcheck.environment import cpu_model
from powerspherical_paper.results import write_json, write_text


def test_json_says_how_it_was_made(tmp_path):
    path = write_json(
        tmp_path / "new" / "a.json",
        experiment="a",
        seed=3,
        configuration={"n": 1},
        results={"x": 0.5},
        seconds=1.23456,
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["experiment"] == "a"
    assert document["command"] == "powerspherical reproduce a --seed 3"
    assert document["configuration"] == {"n": 1}
    assert document["results"] == {"x": 0.5}
    assert document["seconds"] == 1.235
    assert document["versions"]["torch"] == torch.__version__
    assert {"python", "numpy", "powerspherical", "scipy"} <= document["versions"].keys()
    assert document["hardware"]["device"] == "cpu"
    assert document["hardware"]["cpu"] == cpu_model() != ""


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = write_text(tmp_path / "a.json", "old")
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, experiment="a", seed=0, configuration={}, results={"x": float("nan")}, seconds=0.0)
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udc80")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
