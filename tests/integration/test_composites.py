"""Compiled graphs on disk, which hold our functions as operators, are not used with other code of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerspherical._torch import operators


def test_the_digest_changes_with_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(operators, "_PACKAGE", tmp_path)
    digests = set()
    for code in ("x = 1", "x = 2"):
        (tmp_path / "module.py").write_text(code)
        digests.add(operators._digest.__wrapped__())
    assert len(digests) == 2
