"""Commands never overwrite their inputs, replace other files only with --force, and write all files or none."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers.clusters import clustered
from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical.cli import cluster as cluster_module
from powerspherical.mixture import PowerSphericalMixture

X, _ = clustered(60, dim=3)
X = X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.fixture(scope="module", autouse=True)
def _blank_pictures():
    """Drawing takes most of the time of `cluster`. Here it matters only what becomes of the files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).write_bytes(os.urandom(8)))
        yield


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A current folder with rows and a model."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    PowerSphericalMixture(2, random_state=0).fit(X).save("model.safetensors")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(command: list[str], says: str, folder: Path, capsys) -> None:
    """The command ends with status 2 and a one-line message, and changes no file."""
    before = contents(folder)
    assert_wrong_use(command, says, capsys)
    assert contents(folder) == before


PREDICT = ["predict", "model.safetensors", "x.npy", "--out"]
SAMPLE = ["sample", "--concentration", "5", "--loc", "loc.npy", "--out"]
CLUSTER = ["cluster", "-k", "2"]


@pytest.fixture
def other_names(folder):
    """Other files, and other names of x.npy."""
    for name in ("symbolic.npy", "linked/labels.npy"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).symlink_to(folder / "x.npy")
    for name in ("hard.npy", "rows/labels.npy", "parts/0.parquet", "x.safetensors"):
        Path(name).parent.mkdir(exist_ok=True)
        os.link("x.npy", name)
    os.link("model.safetensors", "model.npy")
    np.save("loc.npy", X[0])


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([*PREDICT, "x.npy"], "x.npy is the input x.npy"),
        ([*PREDICT, "./x.npy"], "x.npy is the input x.npy"),
        ([*PREDICT, "rows/../x.npy"], "rows/../x.npy is the input x.npy"),
        ([*PREDICT, "symbolic.npy"], "symbolic.npy is the input x.npy"),
        ([*PREDICT, "hard.npy"], "hard.npy is the input x.npy"),
        (["predict", "model.safetensors", "parts", "--out", "x.npy"], "x.npy is the input parts/0.parquet"),
        (["predict", "model.npy", "x.npy", "--out", "model.npy"], "model.npy is the input model.npy"),
        ([*SAMPLE, "loc.npy"], "loc.npy is the input loc.npy"),
        (["fit", "x.safetensors", "--out", "x.safetensors"], "x.safetensors is the input x.safetensors"),
        ([*CLUSTER, "rows/labels.npy", "--out", "rows"], "rows/labels.npy is the input rows/labels.npy"),
        ([*CLUSTER, "x.npy", "--out", "linked"], "linked/labels.npy is the input x.npy"),
    ],
    ids=lambda value: f"{value[0]} {value[-1]}" if isinstance(value, list) else "",
)
def test_no_input_is_overwritten(command, says, force, folder, other_names, capsys):
    refused([*command, *force], says, folder, capsys)
    absolute = str(folder / command[-1])
    refused([*command[:-1], absolute, *force], says.partition(" ")[2], folder, capsys)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ([*PREDICT, "new.npy"], ["new.npy"]),
        ([*PREDICT, "new.csv"], ["new.csv"]),
        (["sample", "uniform", "--out", "new.npy"], ["new.npy"]),
        (["fit", "x.npy", "--out", "new.safetensors"], ["new.safetensors"]),
        ([*CLUSTER, "x.npy", "--out", "new"], [f"new/{name}" for name in cluster_module.FILES]),
    ],
    ids=["predict npy", "predict csv", "sample", "fit", "cluster"],
)
def test_what_exists_needs_force(command, names, folder, capsys):
    """Also if the same command wrote it, if it is unreadable, or if it is a link that points nowhere."""
    assert cli.run(command) == 0
    capsys.readouterr()
    for name in names:
        refused(command, f"'--out': {names[0]} exists; pass --force to replace it", folder, capsys)
        Path(name).unlink()
        Path(name).symlink_to("nowhere")
        refused(command, " exists; pass --force to replace it", folder, capsys)
        Path(name).unlink()
        Path(name).write_text("mine")
        refused(command, " exists; pass --force to replace it", folder, capsys)
        assert cli.run([*command, "--force"]) == 0
        assert Path(name).read_bytes() != b"mine"
        capsys.readouterr()


def test_other_files_stay_and_modes_are_kept(folder):
    command = [*CLUSTER, "x.npy", "--out", "proj"]
    assert cli.run(command) == 0
    Path("proj/notes.txt").write_text("mine")
    Path("proj/labels.npy").chmod(0o600)
    os.rename("proj/summary.json", "kept.json")
    assert cli.run([*command, "--force"]) == 0
    assert Path("proj/notes.txt").read_text() == "mine"
    assert Path("proj/labels.npy").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir("proj")) == sorted([*cluster_module.FILES, "notes.txt"])


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """What `cluster` has written with two components."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("earlier"))
        np.save("x.npy", X)
        assert cli.run([*CLUSTER, "x.npy", "--out", "proj"]) == 0
        return Path("proj").absolute()


@pytest.mark.parametrize("step", range(9))
def test_a_killed_cluster_leaves_no_mixture_of_old_and_new(step, earlier, folder, monkeypatch, capsys):
    """Killed before each change of the folder, and once not. The next run tells the truth about what is there."""
    command = ["cluster", "x.npy", "--out", "proj"]
    shutil.copytree(earlier, "proj")
    old = {name: Path("proj", name).read_bytes() for name in cluster_module.FILES}
    changes = []

    def counted(original):
        def change(path, *arguments, **options):
            if Path(path).name in cluster_module.FILES and "draft" not in str(arguments):
                if len(changes) == step:
                    raise Killed
                changes.append(path)
            return original(path, *arguments, **options)

        return change

    with monkeypatch.context() as patch:
        for module, name in ((Path, "unlink"), (os, "rename"), (os, "replace"), (shutil, "rmtree")):
            patch.setattr(module, name, counted(getattr(module, name)))
        if step < 8:
            with pytest.raises(Killed):
                cli.run([*command, "-k", "3", "--force"])
        else:
            assert cli.run([*command, "-k", "3", "--force"]) == 0
    found = {
        name: Path("proj", name).read_bytes() for name in cluster_module.FILES if Path("proj", name).exists()
    }
    is_old = {name for name, content in found.items() if content == old[name]}
    assert is_old in (set(found), set())
    assert "summary.json" not in found or len(found) == 4
    capsys.readouterr()
    if found:
        first = next(name for name in cluster_module.FILES if name in found)
        says = f"proj/{first} exists; pass --force to replace it"
        refused([*command, "-k", "2"], says, folder, capsys)
    assert cli.run([*command, "-k", "2", "--force"]) == 0
    for name in ("labels.npy", "summary.json"):
        assert Path("proj", name).read_bytes() == old[name]
    assert sorted(os.listdir("proj")) == sorted(old)


def test_the_draft_of_a_killed_cluster_is_replaced(folder):
    Path("proj", ".powerspherical.draft").mkdir(parents=True)
    Path("proj", ".powerspherical.draft", "labels.npy").write_text("old")
    assert cli.run([*CLUSTER, "x.npy", "--out", "proj"]) == 0
    assert sorted(os.listdir()) == ["model.safetensors", "proj", "x.npy"]
    assert sorted(os.listdir("proj")) == sorted(cluster_module.FILES)
