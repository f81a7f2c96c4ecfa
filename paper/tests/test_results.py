import json

import pytest
import torch

from powerspherical_paper.results import Task, hardware, name_on, write_text


def test_json_says_how_it_was_made(tmp_path):
    task = Task("a", tmp_path / "new", 3, quick=True, options={"data": "x"})
    path = task.write("b", {"n": 1}, {"x": 0.5})
    assert path == tmp_path / "new" / "b.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["experiment"] == "a"
    assert document["command"] == "powerspherical reproduce a --seed 3 --data x --quick"
    assert document["configuration"] == {"n": 1}
    assert document["results"] == {"x": 0.5}
    assert 0 <= document["seconds"] < 60
    assert document["versions"]["torch"] == torch.__version__
    assert {"python", "numpy", "powerspherical", "scipy"} <= document["versions"].keys()
    assert document["hardware"] == hardware("cpu")
    assert document["hardware"]["device"] == "cpu"
    assert document["hardware"]["cpu"] != ""


def test_files_say_their_device(tmp_path):
    assert [name_on(torch.device(device), "a") for device in ("cpu", "cuda:1")] == ["a", "a_cuda"]
    task = Task("a", tmp_path, device="cuda:1")
    assert task.path("b.png") == tmp_path / "b_cuda.png"
    assert task.command == "powerspherical reproduce a --seed 0 --device cuda:1"


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = write_text(tmp_path / "a.json", "old")
    with pytest.raises(ValueError, match="JSON"):
        Task("a", tmp_path).write("a", {}, {"x": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\udc80")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
