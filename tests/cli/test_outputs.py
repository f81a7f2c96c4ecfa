"""Commands never overwrite their inputs, and overwrite foreign files only with --force."""

import os
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


class TestOthersFiles:
    @pytest.mark.parametrize("name", ["mine.npy", "mine.csv"])
    @pytest.mark.parametrize("command", [PREDICT, ["sample", "uniform", "--out"]])
    def test_arrays(self, name, command, folder, capsys):
        Path(name).write_text("mine")
        refused([*command, name], f"{name} exists", folder, capsys)
        assert cli.run([*command, name, "--force"]) == 0
        assert Path(name).read_bytes() != b"mine"
        capsys.readouterr()
        refused([*command, name], "--force", folder, capsys)  # an array does not record who wrote it

    def test_a_link_that_points_nowhere(self, folder, capsys):
        Path("link.npy").symlink_to("elsewhere.npy")
        refused([*PREDICT, "link.npy"], "link.npy exists", folder, capsys)
        assert Path("link.npy").is_symlink()

    @pytest.mark.slow
    def test_models(self, folder, capsys):
        """Also refused if another command or a program wrote the model."""
        fit = ["fit", "x.npy", "--out"]
        assert cli.run(["cluster", "x.npy", "-k", "2", "--out", "clusters"]) == 0
        Path("text.safetensors").write_text("mine")
        capsys.readouterr()
        for name in ("model.safetensors", "clusters/model.safetensors", "text.safetensors"):
            refused([*fit, name], f"{name} exists", folder, capsys)
            assert cli.run([*fit, name, "--force"]) == 0
            assert cli.run([*fit, name]) == 0  # now fit wrote it
            capsys.readouterr()

    @pytest.mark.parametrize("name", cluster_module.FILES)
    def test_clusters(self, name, folder, capsys):
        command = ["cluster", "x.npy", "-k", "2", "--out", "proj"]
        Path("proj").mkdir()
        Path("proj", name).write_text('{"command": "mine"}')
        refused(command, f"proj/{name} exists", folder, capsys)
        assert cli.run([*command, "--force"]) == 0
        assert cli.run([*command, "--seed", "1"]) == 0  # cluster wrote all of them
        Path("proj", name).write_text('{"command": "mine"}')
        capsys.readouterr()
        refused(command, "exists", folder, capsys)

    def test_labels_that_were_changed_are_the_users(self, folder, capsys):
        command = ["cluster", "x.npy", "-k", "2", "--out", "proj"]
        assert cli.run(command) == 0
        np.save("proj/labels.npy", 1 - np.load("proj/labels.npy"))
        capsys.readouterr()
        refused(command, "proj/labels.npy exists", folder, capsys)

    def test_files_beside_the_clusters_do_not_matter(self, folder):
        assert cli.run(["cluster", "x.npy", "-k", "2", "--out", "proj"]) == 0
        os.rename("proj/summary.json", "kept.json")
        Path("proj/notes.txt").write_text("mine")
        os.remove("proj/labels.npy")
        assert cli.run(["cluster", "x.npy", "-k", "2", "--out", "proj"]) == 0
        assert Path("proj/notes.txt").read_text() == "mine"
