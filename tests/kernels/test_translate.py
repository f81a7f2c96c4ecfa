"""The generated formulas of both languages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from powerspherical.engines import engine
from powerspherical.formulas import densities, maps, slopes
from powerspherical.nn import SphericalHead
from powerspherical.quadrature.cosine import Cosine, log_half_cosine


@pytest.fixture(scope="module")
def translate() -> ModuleType:
    """The tool that writes the formulas."""
    path = Path(__file__).parents[2] / "tools" / "translate.py"
    spec = importlib.util.spec_from_file_location("translate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_files_are_current(translate: ModuleType) -> None:
    for path, text in translate.translations().items():
        assert path.read_text("utf-8") == text, f"{path} is not current: run tools/translate.py"


def test_a_coefficient_changes_both_languages(translate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = translate.translations()
    monkeypatch.setattr(slopes, "FALL", 19.0)
    after = translate.translations()
    assert len(before) == 2
    assert all(after[path] != before[path] for path in before)


def test_torch_runs_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another constant and another operation change the κ of heads, and the statistic T of Power Spherical."""
    head, two = SphericalHead(None, 2), torch.full((3,), 2.0)
    with engine("torch"):
        kappa = head(two).concentration
        monkeypatch.setattr(maps, "LINEAR", 1.0)
        assert head(two).concentration < kappa
    t = Cosine(torch.tensor(0.5), torch.tensor(1.5))
    statistic = log_half_cosine(t)
    monkeypatch.setattr(densities, "log1p", torch.expm1)
    assert log_half_cosine(t) < statistic


def test_check_says_what_is_not_current(translate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["translate.py", "--check"])
    assert translate.main() == 0
    monkeypatch.setattr(slopes, "FALL", 19.0)
    before = translate.C.read_text("utf-8")
    assert translate.main() == 1
    assert translate.C.read_text("utf-8") == before  # it only looks
