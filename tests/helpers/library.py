"""The functions of the native library that draws call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from powerspherical.sampling import native


def use_functions(monkeypatch: pytest.MonkeyPatch, functions: native._Functions) -> None:
    """Make draws call these functions instead of those of the library."""
    monkeypatch.setattr(native, "_functions", lambda: functions)


def watched_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each call of the library from now on adds the name of the function."""
    calls: list[str] = []
    functions = native._functions()
    assert functions is not None

    def watched(name: str, function: Callable[[bytes], int]) -> Callable[[bytes], int]:
        def call(packed: bytes) -> int:
            calls.append(name)
            return function(packed)

        return call

    use_functions(monkeypatch, native._Functions(*map(watched, functions._fields, functions)))
    return calls
