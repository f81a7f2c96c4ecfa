"""Fixtures that simulate the presence or absence of the package of the paper's authors."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from powerspherical import PowerSpherical
from powerspherical_paper.baselines.published import REFERENCE


@pytest.fixture
def reference(monkeypatch):
    """A stand-in for the package, with our distribution in place of theirs."""
    module = ModuleType(REFERENCE)
    module.__spec__ = ModuleSpec(REFERENCE, None)
    module.PowerSpherical = PowerSpherical
    monkeypatch.setitem(sys.modules, REFERENCE, module)


@pytest.fixture
def no_reference(monkeypatch):
    """The package is not installed."""
    monkeypatch.setitem(sys.modules, REFERENCE, None)
