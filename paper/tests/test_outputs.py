"""`reproduce` overwrites files that it did not write only with --force."""

import pytest

from helpers.command import assert_wrong_use
from powerspherical import cli
from powerspherical_paper import efficiency, figure1, properties, report, stability
from powerspherical_paper.autoencoder import vae
from result_folders import write_all

EXPERIMENTS = {
    "figure1": figure1,
    "properties": properties,
    "stability": stability,
    "efficiency": efficiency,
    "vae": vae,
}


class TestOutputs:
    @pytest.fixture
    def idle(self, monkeypatch):
        """Experiments that fail when they run."""

        def run(out, **_):
            raise AssertionError("it must not run")

        for module in EXPERIMENTS.values():
            monkeypatch.setattr(module, "run", run)

    @pytest.mark.parametrize(
        "name",
        ["figure1.png", "properties.txt", "accuracy.svg", "vae.json", "training_time.json", "report.html"],
    )
    def test_others_files_are_refused(self, name, idle, tmp_path, capsys):
        (tmp_path / name).write_text("mine: powerspherical reproduce")
        command = ["reproduce", "all", "--quick", "--out", str(tmp_path)]
        assert_wrong_use(command, f"{tmp_path / name} exists", capsys)
        assert cli.run([*command, "--force"]) == 1
        assert "it must not run" in capsys.readouterr().err

    def test_files_of_other_experiments_do_not_matter(self, idle, tmp_path, capsys):
        (tmp_path / "properties.txt").write_text("mine")
        (tmp_path / "figure1.txt").write_text("mine")
        assert cli.run(["reproduce", "figure1", "--out", str(tmp_path)]) == 1
        assert "it must not run" in capsys.readouterr().err

    def test_files_of_the_device_are_looked_at(self, idle, tmp_path, capsys):
        (tmp_path / "efficiency_meta.png").write_text("mine")
        command = ["reproduce", "efficiency", "--device", "meta", "--out", str(tmp_path)]
        assert_wrong_use(command, "efficiency_meta.png exists", capsys)

    @pytest.mark.slow
    def test_its_own_files_are_written_again(self, tmp_path, monkeypatch):
        """`FILES` lists exactly the files that experiments write, and the command recognises each as its own."""
        with monkeypatch.context() as patch:
            report.write_report(write_all(tmp_path, patch))
        (tmp_path / "vae_images.png").write_bytes((tmp_path / "vae.png").read_bytes())
        (tmp_path / "vae_images.svg").write_bytes((tmp_path / "vae.svg").read_bytes())
        listed = {name for module in EXPERIMENTS.values() for name in module.FILES}
        assert {path.name for path in tmp_path.iterdir()} == listed | {report.NAME}
        for name, module in EXPERIMENTS.items():
            monkeypatch.setattr(module, "run", lambda out, **_: pytest.fail("ran"))
            with pytest.raises(pytest.fail.Exception, match="ran"):
                cli.run(["reproduce", name, "--quick", "--out", str(tmp_path)])
