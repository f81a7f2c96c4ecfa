"""The functions of the native library that draws call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from powerspherical._native import library


def use_functions(monkeypatch: pytest.MonkeyPatch, functions: Mapping[str, Callable[[bytes], int]]) -> None:
    """Make draws call these functions instead of those of the library."""
    monkeypatch.setattr(library, "function", functions.__getitem__)


def watched_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each call of the library from now on adds the name of the function."""
    calls: list[str] = []
    find = library.function

    def watched(name: str) -> Callable[[bytes], int]:
        calls.append(name)
        return find(name)

    monkeypatch.setattr(library, "function", watched)
    return calls
