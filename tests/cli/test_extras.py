"""Each command runs with only the optional packages it uses, and names a missing extra before it starts."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from helpers.clusters import clustered
from powerspherical import cli

MIXTURE = {"scipy", "sklearn"}
OPTIONAL = {"PIL", "dask", "jinja2", "matplotlib", "pooch", "pyarrow", "pyro", "safetensors"} | MIXTURE
UNIT = clustered(60, dim=3)[0]
UNIT /= np.linalg.norm(UNIT, axis=1, keepdims=True)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", UNIT)
    np.savetxt("a.csv", UNIT, delimiter=",", header="x,y,z", comments="")
    return tmp_path


#: Commands, and the optional packages that each uses. Matplotlib itself needs PIL.
USED = [
    (["sample", "uniform", "-n", "3"], set()),
    (["info", "--json"], set()),
    (["fit", "a.npy"], MIXTURE),
    (["cluster", "a.npy", "-k", "2", "--out", "out"], MIXTURE | {"PIL", "matplotlib", "safetensors"}),
    (["fit", "a.csv"], MIXTURE | {"pyarrow"}),
]


@pytest.mark.slow
def test_a_command_needs_only_what_it_uses(folder) -> None:
    """One process runs all. Those that use least come first: what an earlier command has imported is still there."""
    code = f"""
import sys
from powerspherical.cli import run
for arguments, used in {USED!r}:
    for name in {OPTIONAL!r}:
        if name not in used:
            sys.modules[name] = None  # makes an import fail
        elif sys.modules.get(name, True) is None:
            del sys.modules[name]
    if run(arguments):
        sys.exit(f"Error: {{arguments}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["fit", "a.npy"], "sklearn"),
        (["fit", "a.npy", "--out", "a.safetensors"], "safetensors"),
        (["fit", "a.csv"], "pyarrow"),
        (["cluster", "a.npy", "-k", "2", "--out", "out"], "matplotlib"),
        (["cluster", "a.npy", "-k", "2", "--out", "out"], "safetensors"),
        (["predict", "a.safetensors", "a.npy"], "safetensors"),
    ],
)
def test_what_is_missing_is_named_first(
    arguments: list[str], missing: str, folder, monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    before = sorted(folder.iterdir())
    assert cli.run(arguments) == 2
    shown = capsys.readouterr()
    assert f" needs {missing}; run: pip install 'powerspherical[cli]' (" in shown.err
    assert (shown.out, sorted(folder.iterdir())) == ("", before)


def test_a_figure_asks_for_matplotlib(monkeypatch) -> None:
    from powerspherical.mixture import plot_comparison

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = r"plot_comparison needs Matplotlib: pip install 'powerspherical\[plot\]'"
    with pytest.raises(ImportError, match=message):
        plot_comparison([])
