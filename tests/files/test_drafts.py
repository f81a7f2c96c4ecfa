"""Atomic writes: what an interrupted write leaves behind, and which drafts the next write removes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from powerspherical._files import drafts
from powerspherical._files.drafts import atomic_write, remove_stale_drafts

# It imports the module alone: the package would import torch, which takes seconds.
WRITER = f"""
import sys, time
from pathlib import Path
sys.path.append({str(Path(drafts.__file__).parent)!r})
from drafts import atomic_write
with atomic_write(Path("a.txt")) as draft:
    draft.write_text("half")
    print(draft.name, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that writes a file in the folder, and the path of its draft."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, tmp_path / process.stdout.readline().strip()
        process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_draft_becomes_the_file(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as draft:
        draft.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    assert names(path.parent) == ["a.txt"]


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("a" * 255)
    with atomic_write(path) as draft:
        draft.write_text("one")
    assert path.read_text() == "one"


def test_the_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    with atomic_write(tmp_path / "a") as draft:
        draft.write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_an_error_leaves_the_old_file_alone(error, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted():
        with atomic_write(path) as draft:
            draft.write_text("new")
            raise error

    with pytest.raises(type(error)):
        interrupted()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_the_draft_of_a_killed_process_is_removed(writer, tmp_path):
    process, draft = writer
    process.kill()
    process.wait()
    assert names(tmp_path) == [draft.name]
    with atomic_write(tmp_path / "b.txt") as other:
        other.write_text("b")
    assert names(tmp_path) == ["b.txt"]


def test_the_draft_of_a_live_process_is_kept(writer, tmp_path):
    process, draft = writer
    assert remove_stale_drafts(tmp_path) == []
    process.send_signal(signal.SIGSTOP)  # also if the process is stopped
    assert remove_stale_drafts(tmp_path) == []
    assert names(tmp_path) == [draft.name]


def test_drafts_of_this_process_are_kept(tmp_path):
    with atomic_write(tmp_path / "a") as first, atomic_write(tmp_path / "b") as second:
        first.write_text("a")
        second.write_text("b")
        assert remove_stale_drafts(tmp_path) == []
    assert names(tmp_path) == ["a", "b"]


def test_drafts_of_other_hosts_and_other_files_are_kept(writer, tmp_path, monkeypatch):
    process, draft = writer
    process.kill()
    process.wait()
    others = [".a.txt.17", ".powerspherical-draft", "powerspherical-draft-1@host", f"{draft.name}.local"]
    for name in others:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(drafts.platform, "node", lambda: "another")
    assert remove_stale_drafts(tmp_path) == []
    monkeypatch.undo()
    assert remove_stale_drafts(tmp_path) == [draft]
    assert names(tmp_path) == sorted(others)


def test_a_draft_removed_before_its_lock_is_made_again(tmp_path, monkeypatch):
    """Another process may see the new draft before it is locked, and remove it as stale."""
    lock, removed = drafts.fcntl.flock, []

    def late(file, how):
        if not removed:
            removed.append(file.name)
            os.unlink(file.name)
        lock(file, how)

    monkeypatch.setattr(drafts.fcntl, "flock", late)
    with atomic_write(tmp_path / "a") as draft:
        draft.write_text("one")
    assert (tmp_path / "a").read_text() == "one"
    assert removed
    assert str(draft) != removed[0]


@pytest.mark.parametrize("missing", [True, False])
def test_without_locks_files_are_written_and_drafts_kept(missing, writer, tmp_path, monkeypatch):
    process, draft = writer
    process.kill()
    process.wait()

    def unsupported(*_):
        raise OSError("Function not implemented")

    if missing:
        monkeypatch.setattr(drafts, "fcntl", None)
    else:
        monkeypatch.setattr(drafts.fcntl, "flock", unsupported)
    with atomic_write(tmp_path / "b") as other:
        other.write_text("b")
    assert names(tmp_path) == [draft.name, "b"]
