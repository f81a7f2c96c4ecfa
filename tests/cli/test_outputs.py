"""Commands never overwrite their inputs, replace other files only with --force, and write all files or none."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.clusters import clustered
from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical.cli import cluster as cluster_module
from powerspherical.mixture import PowerSphericalMixture

X, _ = clustered(60, dim=3)
X = X / np.linalg.norm(X, axis=1, keepdims=True)


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


@pytest.fixture
def names(folder):
    """Other names of x.npy."""
    (folder / "symbolic.npy").symlink_to("x.npy")
    os.link("x.npy", "hard.npy")
    (folder / "sub").mkdir()


@pytest.mark.parametrize("force", [[], ["--force"]])
class TestInputs:
    @pytest.mark.parametrize("out", ["x.npy", "./x.npy", "sub/../x.npy", "symbolic.npy", "hard.npy"])
    def test_rows(self, out, force, folder, names, capsys):
        refused([*PREDICT, out, *force], f"{Path(out)} is the input x.npy", folder, capsys)
        refused([*PREDICT, str(folder / out), *force], "is the input x.npy", folder, capsys)

    def test_a_model(self, force, folder, capsys):
        os.rename("model.safetensors", "model.npy")
        command = ["predict", "model.npy", "x.npy", "--out", "model.npy", *force]
        refused(command, "model.npy is the input model.npy", folder, capsys)

    def test_a_direction(self, force, folder, capsys):
        np.save("loc.npy", X[0])
        refused([*SAMPLE, "loc.npy", *force], "loc.npy is the input loc.npy", folder, capsys)

    def test_rows_among_the_files_of_a_folder(self, force, folder, capsys):
        os.rename("x.npy", "labels.npy")
        command = ["cluster", "labels.npy", "-k", "2", "--out", ".", *force]
        refused(command, "labels.npy is the input labels.npy", folder, capsys)

    def test_rows_that_a_link_among_them_points_to(self, force, folder, names, capsys):
        (folder / "sub" / "labels.npy").symlink_to("../x.npy")
        refused(
            ["cluster", "x.npy", "-k", "2", "--out", "sub", *force],
            "sub/labels.npy is the input x.npy",
            folder,
            capsys,
        )

    def test_a_file_of_an_input_folder(self, force, folder, capsys):
        (folder / "parts").mkdir()
        os.link("x.npy", "parts/0.parquet")
        command = ["predict", "model.safetensors", "parts", "--out", "x.npy", *force]
        refused(command, "x.npy is the input parts/0.parquet", folder, capsys)

    def test_rows_that_fit_reads(self, force, folder, capsys):
        os.rename("x.npy", "x.safetensors")
        command = ["fit", "x.safetensors", "--out", "x.safetensors", *force]
        refused(command, "x.safetensors is the input x.safetensors", folder, capsys)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ([*PREDICT, "new.npy"], ["new.npy"]),
        ([*PREDICT, "new.csv"], ["new.csv"]),
        (["sample", "uniform", "--out", "new.npy"], ["new.npy"]),
        (["fit", "x.npy", "--out", "new.safetensors"], ["new.safetensors"]),
        (["cluster", "x.npy", "-k", "2", "--out", "new"], [f"new/{name}" for name in cluster_module.FILES]),
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
    command = ["cluster", "x.npy", "-k", "2", "--out", "proj"]
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


@pytest.mark.parametrize("step", range(9))
def test_a_killed_cluster_leaves_no_mixture_of_old_and_new(step, folder, monkeypatch, capsys):
    """Killed before each change of the folder, and once not. The next run tells the truth about what is there."""
    command = ["cluster", "x.npy", "--out", "proj"]
    assert cli.run([*command, "-k", "2"]) == 0
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
    Path(".proj.draft").mkdir()
    Path(".proj.draft", "labels.npy").write_text("old")
    assert cli.run(["cluster", "x.npy", "-k", "2", "--out", "proj"]) == 0
    assert sorted(os.listdir()) == ["model.safetensors", "proj", "x.npy"]
    assert sorted(os.listdir("proj")) == sorted(cluster_module.FILES)
