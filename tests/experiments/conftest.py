"""The package of the paper's authors, whether or not it is installed."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from powerspherical import PowerSpherical
from powerspherical.experiments.baselines.published import REFERENCE


@pytest.fixture
def reference(monkeypatch):
    """A stand-in for it, with our own distribution in place of theirs."""
    module = ModuleType(REFERENCE)
    module.__spec__ = ModuleSpec(REFERENCE, None)
    module.PowerSpherical = PowerSpherical
    monkeypatch.setitem(sys.modules, REFERENCE, module)


@pytest.fixture
def no_reference(monkeypatch):
    """Its absence."""
    monkeypatch.setitem(sys.modules, REFERENCE, None)
